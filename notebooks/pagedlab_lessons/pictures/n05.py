"""Notebook 05's opening: two prompts, block by block, and what the second finds of the first."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from pagedlab_lessons.colors import Look, sequence_color
from pagedlab_lessons.drawing import (
    Block,
    Drawing,
    Drawn,
    Grid,
    Legend,
    Space,
    Word,
    grid_in,
    note,
    owned,
    page,
    plain,
    slots,
)


class Prompt(NamedTuple):
    """A prompt that was looked up: its tokens, its blocks, and the hashes of full blocks."""

    tokens: list[str]
    blocks: list[int]
    hashes: list[str]


ROW = 58  # pixels from a block of the first prompt to one of the second
HEIGHT = 50  # of a block, in pixels
MOST_BLOCKS = 24  # that are drawn of a prompt
OWNERS = ("in both, stored once", "only the upper prompt", "only the lower prompt")


def two_prompts(
    prompts: Sequence[Iterable[Any]],
    block_size: int,
    second: str = "The second prompt",
    other_past: str = "another past",
) -> Drawing:
    """Draw two prompts block by block; a block that both hold is drawn once, across both.

    Args:
        prompts: tokens, blocks and hashes of the two; the second one was matched with the prefix
            cache.
        block_size: slots in a block.
        second: what the headline calls the second prompt.
        other_past: what the headline calls the past of a block that is found after another past.
    """
    first, matched = both = [Prompt(*prompt) for prompt in prompts]
    pairs = enumerate(zip(first.blocks, matched.blocks, strict=False))
    shared = [at for at, (one, other) in pairs if one == other]
    # the shared blocks before which the prompts differ
    stale = [
        at for at in shared if first.tokens[: at * block_size] != matched.tokens[: at * block_size]
    ]
    if stale:
        headline = (
            f"{second} finds block {matched.blocks[stale[0]]}, which was computed after "
            f"{other_past}. Its keys and values are wrong here."
        )
    else:
        hits = len(shared) * block_size
        headline = (
            f"{second} has {len(matched.tokens)} tokens. {hits} of them are found in the first "
            f"one's blocks; {len(matched.tokens) - hits} must be computed."
        )
    most = max(len(prompt.blocks) for prompt in both)
    more = f"and {most - MOST_BLOCKS} more blocks" if most > MOST_BLOCKS else ""

    def blocks(space: Space) -> Drawn:
        grid = grid_in(space, (6, 2), ROW + HEIGHT + 12, gap=(8, 8))
        parts = []
        for me, prompt in enumerate(both):
            for at in range(len(prompt.blocks))[:MOST_BLOCKS]:
                if me and at in shared:
                    continue  # shared blocks are drawn once
                block = _block(both, me, at, block_size, shared, stale)
                x, y = grid.corner(at)
                height = ROW + HEIGHT if at in shared else HEIGHT
                parts += slots([block], Grid(x, y + ROW * me, 1, grid.width, height))
        return Drawn(parts, grid.bottom(min(MOST_BLOCKS, most)))

    looks = [(Look(sequence_color(i)).tint, text) for i, text in enumerate(OWNERS)]
    unlike = "same words, different past, and yet found"
    if not stale:
        unlike = "same words, different past: different hash"
    return page(headline, Legend([*looks, ("≠", unlike)]), blocks, note(more))


def _block(
    both: Sequence[Prompt],
    me: int,
    at: int,
    size: int,
    shared: Collection[int],
    stale: Collection[int],
) -> Block:
    """Return block number `at` of a prompt; tokens that differ from the other's are marked."""
    prompt, other = both[me], both[1 - me]
    mine, others = (one.tokens[at * size : (at + 1) * size] for one in (prompt, other))
    is_full = at < len(prompt.hashes)
    note = prompt.hashes[at] if is_full else "not full: no hash"
    say = f"block {prompt.blocks[at]}, {note}"
    mark = ""
    if at in stale:
        mark = "≠"
        say += ", in both tables, though the words before it differ"
    elif at in shared:
        say += ", in both tables"
    elif is_full and mine == others and note == other.hashes[at]:
        say += "; the hash is known, but the prompt's last token must be computed"
    elif is_full and mine == others:
        mark = "≠"
        say += (
            "; the other prompt has the same words after a different past, so they have a "
            "different hash"
        )
    words = []
    for i, token in enumerate(mine):
        words.append(Word(plain(token), "stored" if others[i : i + 1] == [token] else "marked"))
    return Block(
        prompt.blocks[at],
        owned(sequence_color(0 if at in shared else 1 + me)),
        words=tuple(words),
        note=note,
        mark=mark,
        links=(f"w{at}",),
        say=say,
    )
