"""Checks of notebook 04: reordering beams, blocks of beams, prefill that samples save."""

import random
from functools import partial
from typing import Any

from pagedlab.blocks import BlockTable, blocks_for
from pagedlab.prefix import PrefixCache
from pagedlab_lessons.checks import (
    Function,
    Trial,
    Wrong,
    agree,
    compared,
    exercise,
    search,
    trying,
)
from pagedlab_lessons.checks.n02 import family


def beams_trial(answer: Function, width: int, block_size: int, prompt: int) -> Trial:
    """Reorder beams again and again; each appends a token before.

    Args:
        answer: the reader's function.
        width: number of beams.
        block_size: of the pool.
        prompt: tokens that all beams share.
    """
    pool, tables = family(prompt, block_size, width - 1)
    yield f"{width} beams over a prompt of {prompt} tokens in blocks of {block_size}"
    chance = random.Random(width)
    some = [[*range(width)], [0] * width]
    some += [chance.choices(range(width), k=width) for _ in range(6)]
    choices = {f"each appends a token; my_reorder(tables, {each})": each for each in some}
    while True:
        parents = choices[(yield list(choices))]
        for table in tables:
            table.append(1)
        expected = [(list(tables[i].block_ids), tables[i].num_tokens) for i in parents]
        tables = answer(list(tables), list(parents))
        if not isinstance(tables, list) or not all(isinstance(each, BlockTable) for each in tables):
            message = "Return a list of block tables, one for each parent."
            raise Wrong(message, f"{width} tables", repr(tables)[:80])
        got = [(table.block_ids, table.num_tokens) for table in tables]
        agree(expected, got, "The new beams do not hold their parents' blocks.")
        message = "Two beams are one and the same table: what one appends, the other has too."
        agree(len(tables), len(set(map(id, tables))), message)
        message = "The counts do not match the new beams."
        with trying(message=message, expected="a count for each table that lists it"):
            pool.check(tables)


@exercise
def reorder_beams(answer: Any) -> str:
    """my_reorder(tables, parents): the tables of the next step's beams.

    No block is allocated or copied, and the tables of dropped beams are freed.
    """
    sizes = [(2, 4, 6), (3, 4, 8), (4, 16, 3), (6, 1, 2)]
    search([partial(beams_trial, answer, *size) for size in sizes])
    return (
        "Beams are dropped, continued and forked by changing counts. No block is allocated or "
        "copied: the cost of a step\ndoes not depend on the length of the sequences, except for "
        "the lists of numbers."
    )


def _why_blocks(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> str:
    """Return why this many blocks are in use, as one or two sentences."""
    full, tail = divmod(prompt_tokens, block_size)
    if new_tokens == 0:
        return "No beam has written a token yet, so nothing is copied: the prompt is stored once."
    each = blocks_for(tail + new_tokens, block_size)
    total = full + width * each
    if tail == 0:
        last = f"Blocks per beam for its {new_tokens} new tokens: {each}"
    else:
        last = (
            f"Every beam writes after the {tail} tokens in the prompt's last block. All but the "
            f"last beam copy that block.\nBlocks per beam for {tail} + {new_tokens} tokens: {each}"
        )
    once = f"Full blocks of the prompt, stored once: {full}."
    return f"{once} {last}. {full} + {width} x {each} = {total}."


_BEAMS = [(4, 1), (8, 2), (7, 3), (48, 4), (40, 4), (1, 6)]


@compared(
    "The same as counting the pool in all {} cases, among them 7 blocks for the prompt of 48 "
    "tokens\n"
    "and 10 for the one of 40: full prompt blocks once, everything after them once per beam.",
    [
        *((prompt, width, new, 4) for prompt, width in _BEAMS[:4] for new in (1, 0, 4, 5)),
        *((prompt, width, new, 16) for prompt, width in _BEAMS for new in (10, 1, 0, 16, 40)),
    ],
    why=_why_blocks,
)
def beam_blocks(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    """Blocks of `width` beams that differ from the first of `new_tokens` tokens on."""
    pool, beams = family(prompt_tokens, block_size, width - 1)
    for beam in beams:
        beam.append(new_tokens)
    return pool.num_used


def _why_saved(prompt_tokens: int, n: int, block_size: int) -> str:
    """Return why the two ways save this many tokens, as a sentence for each."""
    others = n - 1
    found = (prompt_tokens - 1) // block_size * block_size
    return (
        f"Forks: one sample computes the prompt, so {others} x {prompt_tokens} tokens are saved.\n"
        f"Cache: the last token is always computed, and the {prompt_tokens - 1} before it contain "
        f"{found // block_size} full blocks of {block_size}: {others} x {found} tokens are saved."
    )


@compared(
    "Right in all {} cases, counted with the real prefix cache: it finds full blocks only, and "
    "leaves\n"
    "at least one token to compute, since there would be no logits to sample from.",
    [
        *((tokens, n, 4) for n in (2, 1, 3) for tokens in (3, 4, 5, 8, 11)),
        *((tokens, n, 16) for tokens in (64, 60, 17, 160) for n in (4, 8)),
    ],
    why=_why_saved,
)
def saved_prefill(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    """Prompt tokens that n samples need not compute, in two ways.

    First as forks, then as n requests over a prefix cache.
    """
    pool, (first,) = family(prompt_tokens, block_size, 0)
    prompt = list(range(prompt_tokens))
    cache = PrefixCache(pool)
    cache.register(first, prompt)
    found = [cache.match(prompt).num_tokens for _ in range(n - 1)]
    return (n - 1) * prompt_tokens, sum(found)
