"""Notebook 12's opening: drafts in their slots, before their check and after it.

recording = record(llm, [prompt], [params])    # of an engine that drafts
checks, words = checks_of(recording)
draw_drafts(checks, words, "3 drafted", block_size)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pagedlab.blocks import blocks_for
from pagedlab.recipes.trace import Replay
from pagedlab_lessons.colors import look_of
from pagedlab_lessons.drawing import Block, Blocks, Drawing, Legend, Owner, Word, note, page, plain

OURS = (Owner("", look_of(0)),)
MEANINGS = {  # of a kind of word
    "stored": "stored",
    "drafted": "drafted, unchecked",
    "new": "right, kept",
    "rejected": "wrong, deleted",
    "not stored": "the model's own, stored next",
}


class Check(NamedTuple):
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
    is_after = state == "checked"
    known = check.position + (check.accepted if is_after else 0)  # tokens that are certain
    held = check.blocks[: blocks_for(known, size)] if is_after else check.blocks
    longest = max(len(words), *(one.position + len(one.drafted) for one in checks))
    own = "".join(words[known : known + 1]) if is_after else ""  # the model's own word
    shown = [Word(plain(word)) for word in words[: check.position]]
    for i, word in enumerate(check.drafted):
        kind = "drafted"
        if is_after:
            kind = "new" if i < check.accepted else "rejected"
        shown.append(Word(plain(word), kind))
    if own and known < len(shown):
        shown[known] = shown[known]._replace(below=plain(own))  # in place of the first wrong one
    elif own:
        shown.append(Word(plain(own), "not stored"))
    blocks = []
    for entry in range(blocks_for(longest, size)):
        first = entry * size
        block = Block(None, words=tuple(shown[first : first + size]), links=(f"p{entry}",))
        block.say = "a block that is not allocated yet"
        if entry < len(held):
            block.number = held[entry]
            block.owners = OURS
            full = max(0, min(size, known - first))
            block.say = f"block {block.number}: {full} of {size} slots known"
        elif entry < len(check.blocks):
            block.say = "released: it held nothing but wrong guesses"
        blocks.append(block)
    said = f"Drafted, and computed in one step: {' | '.join(map(plain, check.drafted))}"
    if is_after:
        said = _result(check, own)
    return page(
        f"Check {number} of {len(checks)}.  {said}",
        note(
            f"After this check: {check.outputs} new tokens in {check.step} steps. Without drafts "
            f"they take {check.outputs} steps."
        ),
        Blocks(blocks, (16 // size, 8 // size), size, height=(36, 30), head=15, font=(12.5, 11)),
        Legend([(Word("word", kind), meaning) for kind, meaning in MEANINGS.items()]),
        note("A dashed frame: a block that is not allocated yet, or that is released."),
        shown_width=1015,
    )


def _result(check: Check, own: str) -> str:
    """The line of text after the check."""
    drafted = len(check.drafted)
    said = f"{check.accepted} of {drafted} right: kept." if check.accepted else "None right."
    if wrong := drafted - check.accepted:
        said += f" {wrong} deleted."
    if own:
        said += f" Then the model's own token: {plain(own)!r}."
    return said
