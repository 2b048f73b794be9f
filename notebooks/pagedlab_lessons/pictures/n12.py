"""Notebook 12's opening: drafts in their slots, before their check and after it.

recording = record(llm, [prompt], [params])    # of an engine that drafts
checks, words = checks_of(recording)
draw_drafts(checks, words, "3 drafted", block_size)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.recipes.trace import Replay
from pagedlab_lessons.colors import look_of
from pagedlab_lessons.drawing import Block, Drawing, Owner, Word, plain
from pagedlab_lessons.drawing.flow import Blocks, Entry, Legend, note, page

OURS = look_of(0)
CELLS = (16, 8)  # slots in a row of the drawing
LEGEND: list[Entry] = [
    (Word("word", "stored"), "stored"),
    (Word("word", "drafted"), "drafted, unchecked"),
    (Word("word", "new"), "right, kept"),
    (Word("word", "rejected"), "wrong, deleted"),
    (Word("word", "not stored"), "the model's own, stored next"),
]


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
    """

    check: Check
    is_after: bool
    words: Sequence[str]
    size: int

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


def draw_drafts(checks: Sequence[Check], words: Sequence[str], moment: str, size: int) -> Drawing:
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
    scene = Scene(check, state == "checked", words, size)
    said = _result(scene) if scene.is_after else _draft(check)
    blocks = [_block(scene, entry) for entry in range(blocks_for(longest, size))]
    columns = (CELLS[0] // size, CELLS[1] // size)
    return page(
        f"Check {number} of {len(checks)}.  {said}",
        note(
            f"After this check: {check.outputs} new tokens in {check.step} steps. Without drafts "
            f"they take {check.outputs} steps."
        ),
        Blocks(blocks, columns, size, height=(36, 30), head=15, font=(12.5, 11)),
        Legend(LEGEND),
        note("A dashed frame: a block that is not allocated yet, or that is released."),
        shown_width=1015,
    )


def _draft(check: Check) -> str:
    """The line of text before the check."""
    drafted = " | ".join(plain(word) for word in check.drafted)
    return f"Drafted, and computed in one step: {drafted}"


def _result(scene: Scene) -> str:
    """The line of text after the check."""
    check = scene.check
    drafted = len(check.drafted)
    wrong = drafted - check.accepted
    said = f"{check.accepted} of {drafted} right: kept." if check.accepted else "None right."
    if wrong:
        said += f" {wrong} deleted."
    if scene.own:
        said += f" Then the model's own token: {plain(scene.own)!r}."
    return said


def _block(scene: Scene, entry: int) -> Block:
    """A block of the table with its words, or one that is not allocated."""
    first = entry * scene.size
    words = tuple(_word(scene, position) for position in range(first, first + scene.size))
    blocks = scene.check.blocks
    say = _say(scene, entry)
    links = (f"p{entry}",)
    if entry >= scene.held:
        return Block(None, words=words, links=links, say=say)
    return Block(blocks[entry], (Owner("", OURS),), words=words, links=links, say=say)


def _say(scene: Scene, entry: int) -> str:
    """The line of text for a block that is pointed at."""
    blocks = scene.check.blocks
    if entry < scene.held:
        full = max(0, min(scene.size, scene.known - entry * scene.size))
        return f"block {blocks[entry]}: {full} of {scene.size} slots known"
    if entry < len(blocks):
        return "released: it held nothing but wrong guesses"
    return "a block that is not allocated yet"


def _word(scene: Scene, position: int) -> Word:
    """The word in the slot of a position: a stored, drafted or wrong word, or the model's own."""
    check = scene.check
    if position < scene.known:
        is_new = scene.is_after and position >= check.position
        return Word(plain(scene.words[position]), "new" if is_new else "stored")
    below = plain(scene.own) if scene.own and position == scene.known else ""
    if check.position <= position < check.stop:
        text = plain(check.drafted[position - check.position])
        return Word(text, "rejected" if scene.is_after else "drafted", below=below)
    return Word(below, "not stored") if below else Word("", "empty")
