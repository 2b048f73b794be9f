"""Checks of notebook 04: reordering beams by numbers alone, blocks of beams, prefill that samples
save.
"""

from collections.abc import Callable
from typing import Any

from pagedlab.blocks import BlockEvent, BlockPool, BlockTable
from pagedlab.checks import Wrong, agree, compared, exercise, trying
from pagedlab.checks.blocks import family
from pagedlab.prefix import PrefixCache


@exercise
def reorder_beams(answer: Callable[[list[BlockTable], list[int]], list[BlockTable]]) -> str:
    """The tables of the beams that go on, without a block taken or copied, and the dropped ones
    freed.
    """
    # Parents of one step after the other, the smallest first; a beam that is not among them is
    # dropped.
    histories = [
        [[0]],
        [[0, 1]],
        [[1, 0]],
        [[0, 0]],
        [[1, 1], [0, 0], [1, 0]],
        [[0, 0, 2, 2], [1, 2, 3, 0]],
    ]
    histories += [[[3, 3, 3, 3], [3, 1, 1, 0], [0, 1, 2, 3], [2, 2, 0, 0]]]
    for size, prompt in ((4, 6), (4, 8), (16, 3), (1, 2)):
        for history in histories:
            pool, tables = family(prompt, size, len(history[0]) - 1)
            forks = f" and {len(tables) - 1} forks of it" if len(tables) > 1 else ", no forks"
            done = [f"beams over a prompt of {prompt} tokens: a{forks}"]
            for parents in history:
                for beam in tables:
                    beam.append(1)
                done.append(f"every beam appends a token; tables = my_reorder(tables, {parents})")
                with trying(*done, setup=f"pool = BlockPool({pool.num_blocks}, {size})"):
                    tables = _reordered(answer, pool, tables, parents)
    does = (
        "Beams are dropped, kept and doubled by counting up and down. No block is taken and none "
        "is copied"
    )
    costs = "what a\nstep of beam search costs does not depend on how long the texts are"
    return f"{does}: {costs}, except for the lists of numbers."


def _reordered(
    answer: Any, pool: BlockPool, tables: list[BlockTable], parents: list[int]
) -> list[BlockTable]:
    """The new tables, if they are right."""
    expected = [list(tables[parent].block_ids) for parent in parents]
    lengths = [tables[0].num_tokens] * len(parents)
    events: list[BlockEvent] = []
    stop = pool.subscribe(events.append)
    new = answer(list(tables), list(parents))
    stop()
    if not isinstance(new, list) or not all(isinstance(table, BlockTable) for table in new):
        raise Wrong(
            "Return a list of block tables, one for each parent.",
            f"{len(parents)} tables",
            repr(new)[:80],
        )
    if taken := [
        f"{event.kind} {event.block_id}" for event in events if event.kind in ("allocate", "copy")
    ]:
        raise Wrong(
            "Nothing may be taken or copied: every block that is needed exists.",
            "none",
            ", ".join(taken),
        )
    got = [list(table.block_ids) for table in new]
    agree(expected, got, "The new beams do not hold their parents' blocks.")
    if len({id(table) for table in new}) < len(new) or len(
        {id(table.block_ids) for table in new}
    ) < len(new):
        raise Wrong(
            "Two beams are one and the same table: what one appends, the other has too.",
            "tables apart",
            got,
        )
    agree(lengths, [table.num_tokens for table in new], "num_tokens differs.")
    with trying(
        message="The counts do not match the beams that go on.",
        expected="a count for each table mapping it",
    ):
        pool.check(new)
    return new


_BEAMS = [(4, 1), (4, 2), (8, 2), (7, 3), (64, 4), (60, 4), (1, 6), (256, 4)]


@compared(
    "The same as counting the pool in all {} cases, among them 8 blocks for the prompt of 64 "
    "tokens\n"
    "and 11 for the one of 60: full prompt blocks once, everything after them once per beam.",
    [(prompt, width, new, 4) for prompt, width in _BEAMS[:4] for new in (1, 0, 4, 5)],
    [(prompt, width, new, 16) for prompt, width in _BEAMS for new in (10, 1, 0, 16, 40)],
)
def beam_blocks(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    """Blocks of `width` beams that part at the first of `new_tokens` tokens and stay apart."""
    pool, beams = family(prompt_tokens, block_size, width - 1)
    for beam in beams:
        beam.append(new_tokens)
    return pool.num_used


@compared(
    "Right in all {} cases, counted with the real prefix cache: it finds full blocks only, and "
    "leaves\n"
    "at least one token to compute, since there would be no logits to draw from.",
    [(tokens, n, 4) for n in (2, 1, 3) for tokens in (3, 4, 5, 8, 11)],
    [(tokens, n, 16) for tokens in (64, 60, 17, 160) for n in (4, 8)],
)
def saved_prefill(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    """Prompt tokens that n samples need not compute: as forks, and as n requests over a prefix
    cache.
    """
    pool, (first,) = family(prompt_tokens, block_size, 0)
    cache, prompt = PrefixCache(pool), list(range(prompt_tokens))
    cache.insert(first, prompt)
    return (n - 1) * prompt_tokens, sum(
        cache.match(prompt, leave=1).num_tokens for _ in range(n - 1)
    )
