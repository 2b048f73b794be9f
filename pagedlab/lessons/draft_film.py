"""Drafts in their slots: each draft of a recorded run before its check and after it.

recording = record(llm, [prompt], [params])    # of an engine that drafts
checks, words = checks_of(recording)
draw_drafts(checks, words, "3 drafted", block_size)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.lessons.colors import sequence_color
from pagedlab.lessons.drawing import (
    BOLD,
    INK,
    LINE,
    SOFT,
    WRONG,
    box,
    label,
    legend,
    linked,
    plain,
    svg,
)
from pagedlab.trace import Replay

OURS = sequence_color(0)
WIDTH = 1080
ROW = 16  # slots in a row of the drawing
SLOT = WIDTH / ROW  # its width
TOP = 50  # of the first row
PITCH = 41.0  # from row to row
STRUCK = f"text-decoration:line-through 2px {WRONG}"
DRAFTED = OURS, 0.07, OURS, 'stroke-dasharray="4 3"'


@dataclass(frozen=True)
class Check:
    """A draft that was checked.

    Args:
        blocks: the sequence's blocks during the check.
        position: of the first drafted token.
        drafted: the drafted words.
        accepted: how many of them were right.
        step: of the engine.
        outputs: new tokens after the check.
    """

    blocks: list[int]
    position: int
    drafted: list[str]
    accepted: int
    step: int
    outputs: int

    @property
    def stop(self) -> int:
        """The position after the last drafted token."""
        return self.position + len(self.drafted)


def checks_of(recording: dict[str, Any], name: str = "r0") -> tuple[list[Check], list[str]]:
    """The checks of a sequence's drafts, and all words of its prompt and its answer.

    Args:
        recording: of an engine that drafts, with words.
        name: of the sequence.
    """
    replay = Replay(recording)
    sequence = replay.seek(len(replay) - 1).sequences[name]
    checks = []
    for step in range(1, len(replay)):
        replay.seek(step)
        draft = replay.now.get("drafts", {}).get(name)
        if draft is None:
            continue
        after = replay.sequences[name]
        # the last token of the check is the model's own
        known = min(draft["position"] + draft["accepted"] + 1, len(sequence.words))
        check = Check(
            blocks=replay.now.get("held", {}).get(name, after.blocks),
            position=draft["position"],
            drafted=draft["words"],
            accepted=draft["accepted"],
            step=replay.now["step"],
            outputs=known - sequence.prompt,
        )
        checks.append(check)
    return checks, sequence.words


def moments_of(checks: Sequence[Check]) -> list[str]:
    """Two of each check, in order."""
    return [f"{i} {state}" for i in range(1, len(checks) + 1) for state in ("drafted", "checked")]


@dataclass(frozen=True)
class Scene:
    """One moment of a check.

    Args:
        check: the check.
        is_after: whether the draft has been checked.
        words: all words of the sequence.
        size: slots in a block.
        num_blocks: blocks that the drawing has.
    """

    check: Check
    is_after: bool
    words: Sequence[str]
    size: int
    num_blocks: int

    @property
    def known(self) -> int:
        """How many tokens are certain."""
        return self.check.position + (self.check.accepted if self.is_after else 0)

    @property
    def own(self) -> str:
        """The word that the model itself put after the accepted ones; "" before the check."""
        return self.words[self.known] if self.is_after and self.known < len(self.words) else ""

    @property
    def held(self) -> int:
        """How many blocks the sequence has."""
        blocks = len(self.check.blocks)
        return min(blocks, blocks_for(self.known, self.size)) if self.is_after else blocks


def draw_drafts(checks: Sequence[Check], words: Sequence[str], moment: str, size: int) -> str:
    """The sequence in its blocks, as many as there ever are: what is known, drafted, right and
    wrong.

    Args:
        checks, words: as `checks_of` returns them.
        moment: one of `moments_of(checks)`.
        size: slots in a block.
    """
    number, state = moment.split()
    check = checks[int(number) - 1]
    longest = max(len(words), *(one.stop for one in checks))
    scene = Scene(check, state == "checked", words, size, blocks_for(longest, size))
    said = _result(scene) if scene.is_after else _draft(check)
    headline = f"Check {number} of {len(checks)}.  {said}"
    parts = [label(0, 16, headline, 14, within=WIDTH, look=BOLD)]
    count = (
        f"With this check: {check.outputs} new tokens in {check.step} steps. Without drafts it is "
        "a step for each."
    )
    parts.append(label(0, 36, count, 12.5, SOFT))
    for entry in range(scene.num_blocks):
        parts.append(_block(scene, entry))
    rows = -(-scene.num_blocks * size // ROW)
    y = TOP + PITCH * rows + 4
    parts += _legend(y)
    return svg(WIDTH, y + 22, parts)


def _draft(check: Check) -> str:
    """What is said before the check."""
    drafted = " | ".join(plain(word) for word in check.drafted)
    return f"Drafted, and computed in one step: {drafted}"


def _result(scene: Scene) -> str:
    """What is said after the check."""
    check = scene.check
    drafted = len(check.drafted)
    wrong = drafted - check.accepted
    said = f"{check.accepted} of {drafted} right: solid." if check.accepted else "None right."
    if wrong:
        said += f" {wrong} wiped."
    if scene.own:
        said += f" Behind them the model's own: {plain(scene.own)!r}."
    return said


def _block(scene: Scene, entry: int) -> str:
    """A block of the table, or the place of one that is not needed yet."""
    size = scene.size
    first = entry * size
    is_held = entry < scene.held
    x = SLOT * (first % ROW)
    y = TOP + PITCH * (first // ROW)
    look = (OURS, 0, OURS) if is_held else (OURS, 0, LINE, 'stroke-dasharray="3 3"')
    drawn = [box(x, y, SLOT * size - 3, 36, *look)]
    for at in range(first, first + size):
        drawn += _slot(scene, at, x + SLOT * (at - first) + 3, y)
    return linked([f"p{entry}"], _say(scene, entry), *drawn)


def _say(scene: Scene, entry: int) -> str:
    """What is said of a block that is pointed at."""
    blocks = scene.check.blocks
    if entry < scene.held:
        full = max(0, min(scene.size, scene.known - entry * scene.size))
        return f"block {blocks[entry]}: {full} of {scene.size} slots known"
    if entry < len(blocks):
        return "given back: it held nothing but wrong guesses"
    return "a block that the text does not need yet"


def _slot(scene: Scene, at: int, left: float, y: float) -> list[str]:
    """The word at a position: known, drafted or wrong, and the model's own."""
    check = scene.check
    drawn = []
    if at < scene.known:
        drawn += _known_word(left, y, scene.words[at], scene.is_after and at >= check.position)
    elif check.position <= at < check.stop:
        word = plain(check.drafted[at - check.position])
        if scene.is_after:
            drawn.append(label(left + 3, y + 15, word, 11.5, SOFT, SLOT - 16, STRUCK))
        else:
            drawn.append(box(left, y + 4, SLOT - 9, 28, *DRAFTED))
            look = "font-style:italic"
            drawn.append(label(left + 3, y + 22, word, 12, SOFT, SLOT - 16, look))
    if scene.own and at == scene.known:
        drawn.append(label(left + 3, y + 31, plain(scene.own), 12, INK, SLOT - 16, BOLD))
    return drawn


def _known_word(left: float, y: float, word: str, is_new: bool) -> list[str]:
    """A word that is certain; a new one was drafted, and is right."""
    share = 0.5 if is_new else 0.2
    edge = OURS if is_new else "none"
    look = BOLD if is_new else ""
    return [
        box(left, y + 4, SLOT - 9, 28, OURS, share, edge),
        label(left + 3, y + 22, plain(word), 12, INK, SLOT - 16, look),
    ]


def _legend(y: float) -> list[str]:
    looks = {
        "known": (OURS, 0.2),
        "drafted, not yet checked": DRAFTED,
        "right, and kept": (OURS, 0.5, OURS),
    }
    return [
        *legend(0, y, looks),
        label(480, y + 12, "word", 11.5, SOFT, look=STRUCK),
        label(516, y + 12, "wrong, and wiped", 12, SOFT),
        label(660, y + 12, "word", 12, look=BOLD),
        label(696, y + 12, "the model's own: its slot comes with the next step", 12, SOFT),
    ]
