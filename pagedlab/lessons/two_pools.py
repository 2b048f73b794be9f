"""Two ranks, one table: what lies in the pool of each after every step of a real run.

frames = record_pools(llm, prompts, params)  ->  draw_pools(frames, step, size, heads)
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from pagedlab.lessons.colors import sequence_color
from pagedlab.lessons.drawing import (
    BOLD,
    INK,
    LINE,
    SOFT,
    block_of_words,
    box,
    label,
    linked,
    plain,
    svg,
)
from pagedlab.sampling_params import SamplingParams

LAYER = 2  # whose keys are shown


class Frame(NamedTuple):
    """After a step: of each text its words in slots and its blocks; of each rank and block two
    numbers of a key.
    """

    texts: list[tuple[list[str], list[int]]]
    keys: list[list[list[float]]]


def record_pools(llm: Any, prompts: Sequence[str], params: SamplingParams) -> list[Frame]:
    """Let an engine of several ranks write, and look into the blocks of every rank after each
    step.
    """
    frames = list[Frame]()
    llm.cache.poison()  # NaN everywhere: what is not NaN was written

    def record() -> None:
        tables = [
            (text.token_ids[: text.table.num_tokens], text.table.block_ids[:])
            for text in llm.sequences()
        ]
        keys = [
            part[0, LAYER, :, 0, 0, :2].tolist()
            for part in llm.cache.of_each_rank(range(llm.pool.num_blocks))
        ]
        if tables:
            frames.append(
                Frame([([llm.decode([i]) for i in ids], blocks) for ids, blocks in tables], keys)
            )

    with ExitStack() as stack:
        stack.callback(llm.on_step(record))
        llm.generate(list(prompts), params)
    return frames


def draw_pools(frames: Sequence[Frame], step: int, size: int, heads: Sequence[str]) -> str:
    """The table above, with the words; below it a pool a rank: the same ids, each with numbers of
    its own heads.
    """
    texts, keys = frames[step]
    longest = max(len(blocks) for _, blocks in frames[-1].texts)
    wide, owner = 1030 / longest, dict[int, tuple[int, list[str]]]()
    parts = [
        label(
            0,
            16,
            "One table: rank 0 has it, and tells every rank which blocks to use",
            14,
            look=BOLD,
        )
    ]
    for row, (said, blocks) in enumerate(texts):
        y, color = 28 + 34.0 * row, sequence_color(row)
        parts.append(label(0, y + 18, f"text {row}", 12, SOFT, 44))
        for place, block in enumerate(blocks):
            held = [plain(word) for word in said[place * size : (place + 1) * size]]
            owner[block], x = (row, held), 50 + wide * place
            told = say(block, row, held, keys, heads)
            parts.append(block_of_words(x, y, wide - 6, 27, block, held, color, told))
    top, left = 28 + 34.0 * len(texts) + 26, 555
    for rank, numbers in enumerate(keys):
        parts.append(label(left * rank, top, f"Pool of rank {rank}", 14, look=BOLD))
        parts.append(label(left * rank + 130, top, f"{heads[rank]} of every layer", 12, SOFT))
        for block, pair in enumerate(numbers):
            x, y = left * rank + 65.6 * (block % 8), top + 12 + 76.0 * (block // 8)
            drawn = [box(x, y, 60, 70, "var(--well)", 1, LINE)]
            if block in owner:
                row, held = owner[block]
                color = sequence_color(row)
                drawn += [
                    box(x + 7 * i + 2, y + 20, 5, 8, color, 0.85 if i < len(held) else 0.12)
                    for i in range(size)
                ]
                drawn.insert(1, box(x, y, 60, 70, color, 0.22, color))
                written = enumerate(n for n in pair if not math.isnan(n))
                drawn += [label(x + 5, y + 44 + 17 * i, f"{n:+.2f}", 12.5) for i, n in written]
            drawn.append(
                label(x + 5, y + 14, str(block), 12, INK if block in owner else SOFT, look=BOLD)
            )
            told = (
                say(block, *owner[block], keys, heads)
                if block in owner
                else f"block {block}: free, on every rank"
            )
            parts.append(linked([f"b{block}"], told, *drawn))
    y = top + 12 + 76 * -(-len(keys[0]) // 8) + 14
    key = (
        f"In a block: its filled slots, and two numbers of its first key in layer {LAYER}, as that "
        "rank has them."
    )
    parts.append(label(0, y, key, 12, SOFT))
    return svg(1080, y + 8, parts)


def say(
    block: int, row: int, held: Sequence[str], keys: Sequence[Any], heads: Sequence[str]
) -> str:
    """What is said of a block that is pointed at."""
    ranks = [
        f"rank {r}, {heads[r]}: {', '.join(f'{n:+.2f}' for n in part[block])} …"
        for r, part in enumerate(keys)
    ]
    return f"block {block}, text {row}: {' '.join(held)}\n{';  '.join(ranks)}"
