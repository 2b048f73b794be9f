"""Drafts in their slots: every draft of a real run before its check and after it, the words pale,
solid or wiped.

checks, words = record_drafts(llm, prompt, params)  ->  draw_drafts(checks, words, "3 drafted",
size)
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

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
from pagedlab.sampling_params import SamplingParams

OURS = sequence_color(0)
ROW = 16  # slots in a row of the drawing
STRUCK = f"text-decoration:line-through 2px {WRONG}"
DRAFTED = OURS, 0.07, OURS, 'stroke-dasharray="4 3"'


class Check(NamedTuple):
    """A draft that was checked: the text's blocks meanwhile, its words, and how many were right."""

    blocks: list[int]
    position: int  # of the first drafted token
    drafted: list[str]
    accepted: int
    step: int  # of the engine
    outputs: int  # new tokens after it


def record_drafts(llm: Any, prompt: Any, params: SamplingParams) -> tuple[list[Check], list[str]]:
    """The checks while `llm`, which drafts and serves nobody else, answers; all words of prompt and
    answer.
    """
    checks, held, fresh = list[Check](), list[int](), list[int]()

    def on_step() -> None:
        for draft in llm.speculation.checked:
            drafted, outputs = (
                [llm.decode([token]) for token in draft.tokens],
                draft.position + draft.accepted + 1,
            )
            checks.append(
                Check(
                    held + fresh, draft.position, drafted, draft.accepted, llm.stats.steps, outputs
                )
            )
        fresh.clear()
        held[:] = [block for text in llm.sequences() for block in text.table.block_ids]

    ends = llm.pool.subscribe(
        lambda event: fresh.append(event.block_id) if event.kind == "allocate" else None
    )
    with ExitStack() as stack:
        stack.callback(ends)
        stack.callback(llm.on_step(on_step))
        (answer,) = llm.generate([prompt], params)
    start, ids = (
        len(answer.prompt_token_ids),
        [*answer.prompt_token_ids, *answer.outputs[0].token_ids],
    )
    counted = [check._replace(outputs=min(check.outputs, len(ids)) - start) for check in checks]
    return counted, [llm.decode([token]) for token in ids]


def moments_of(checks: Sequence[Check]) -> list[str]:
    """Two of each check, in order."""
    return [f"{i} {state}" for i in range(1, len(checks) + 1) for state in ("drafted", "checked")]


def draw_drafts(checks: Sequence[Check], words: Sequence[str], moment: str, size: int) -> str:
    """The text in its blocks of `size` slots, as many as there ever are: what is known, drafted,
    right and wrong.
    """
    number, state = moment.split()
    check, after, wide = checks[int(number) - 1], state == "checked", 1080 / ROW
    known = check.position + (check.accepted if after else 0)
    held = check.blocks[: blocks_for(known, size)] if after else check.blocks
    own = words[known] if after and known < len(words) else ""
    lost = len(check.drafted) - check.accepted
    if after:
        said = (
            f"{check.accepted} of {len(check.drafted)} right: solid."
            if check.accepted
            else "None right."
        )
        said += f" {lost} wiped." if lost else ""
        said += f" Behind them the model's own: {plain(own)!r}." if own else ""
    else:
        said = (
            "Drafted, and computed in one step: "
            f"{' | '.join(plain(word) for word in check.drafted)}"
        )
    parts = [label(0, 16, f"Check {number} of {len(checks)}.  {said}", 14, within=1080, look=BOLD)]
    count = (
        f"With this check: {check.outputs} new tokens in {check.step} steps. Without drafts it is "
        "a step for each."
    )
    parts.append(label(0, 36, count, 12.5, SOFT))
    last = max(one.position + len(one.drafted) for one in checks)
    for place in range(blocks_for(max(last, len(words)), size)):
        block = check.blocks[place] if place < len(check.blocks) else None
        first, alive = place * size, place < len(held)
        x, y = wide * (first % ROW), 50 + 41.0 * (first // ROW)
        look = (OURS, 0, OURS) if alive else (OURS, 0, LINE, 'stroke-dasharray="3 3"')
        drawn = [box(x, y, wide * size - 3, 36, *look)]
        for at in range(first, first + size):
            left, nth = x + wide * (at - first) + 3, at - check.position
            if at < known:
                new = after and nth >= 0
                drawn.append(
                    box(
                        left,
                        y + 4,
                        wide - 9,
                        28,
                        OURS,
                        0.5 if new else 0.2,
                        OURS if new else "none",
                    )
                )
                drawn.append(
                    label(
                        left + 3, y + 22, plain(words[at]), 12, INK, wide - 16, BOLD if new else ""
                    )
                )
            elif 0 <= nth < len(check.drafted) and not after:
                word = plain(check.drafted[nth])
                drawn.append(box(left, y + 4, wide - 9, 28, *DRAFTED))
                drawn.append(
                    label(left + 3, y + 22, word, 12, SOFT, wide - 16, "font-style:italic")
                )
            elif 0 <= nth < len(check.drafted):
                drawn.append(
                    label(
                        left + 3, y + 15, plain(check.drafted[nth]), 11.5, SOFT, wide - 16, STRUCK
                    )
                )
            if own and at == known:
                drawn.append(label(left + 3, y + 31, plain(own), 12, INK, wide - 16, BOLD))
        full = max(0, min(size, known - first))
        say = f"block {block}: {full} of {size} slots known"
        if not alive:
            unused = "a block that the text does not need yet"
            say = unused if block is None else "given back: it held nothing but wrong guesses"
        parts.append(linked([f"p{place}"], say, *drawn))
    y = 50 + 41.0 * -(-blocks_for(max(last, len(words)), size) * size // ROW) + 4
    looks = {
        "known": (OURS, 0.2),
        "drafted, not yet checked": DRAFTED,
        "right, and kept": (OURS, 0.5, OURS),
    }
    parts += legend(0, y, looks)
    parts += [
        label(480, y + 12, "word", 11.5, SOFT, look=STRUCK),
        label(516, y + 12, "wrong, and wiped", 12, SOFT),
    ]
    parts += [label(660, y + 12, "word", 12, look=BOLD)]
    parts += [label(696, y + 12, "the model's own: its slot comes with the next step", 12, SOFT)]
    return svg(1080, y + 22, parts)
