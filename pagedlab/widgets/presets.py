"""Examples that the widget can play: each is a list of operations that fits any block size."""

from __future__ import annotations

from collections.abc import Callable

from pagedlab.widgets.words import Operation

Preset = Callable[[int, int], list[Operation]]  # (num_blocks, block_size) -> operations


def _new(name: str, tokens: int) -> Operation:
    return Operation("new", name, tokens)


def _append(name: str, tokens: int) -> Operation:
    return Operation("append", name, tokens)


def _fork(name: str, child: str) -> Operation:
    return Operation("fork", name, child=child)


def _free(name: str) -> Operation:
    return Operation("free", name)


def prompt_and_forks(num_blocks: int, size: int) -> list[Operation]:
    """A prompt whose last block is a quarter full, two forks, and a write by each of the three."""
    forks = [_fork("s0", "s1"), _fork("s0", "s2")]
    return [_new("s0", 2 * size + max(1, size // 4)), *forks, _append("s1", 1), _append("s2", 1), _append("s0", 1)]


def parallel_sampling(num_blocks: int, size: int) -> list[Operation]:
    """Four samples of one prompt, each writing an answer of its own length."""
    names = ["s0", "s1", "s2", "s3"]
    writes = [_append(name, size // 2 + i * size // 2 + 1) for i, name in enumerate(names)]
    return [_new("s0", 5 * size + size // 2), *(_fork("s0", name) for name in names[1:]), *writes]


def beam_search(num_blocks: int, size: int) -> list[Operation]:
    """Four beams over a prompt of four full blocks. Two beams are dropped, and the best one takes their place."""
    beams = ["s0", "s1", "s2", "s3"]
    step = max(1, 5 * size // 8)
    first = [_new("s0", 4 * size), *(_fork("s0", name) for name in beams[1:]), *(_append(name, step) for name in beams)]
    second = [_free("s2"), _free("s3"), _fork("s0", "s4"), _fork("s0", "s5")]
    return [*first, *second, *(_append(name, 1) for name in ("s0", "s1", "s4", "s5"))]


def system_prompt(num_blocks: int, size: int) -> list[Operation]:
    """Three requests behind one system prompt of three blocks; its own table is not needed once they have it."""
    requests = ["r1", "r2", "r3"]
    questions = [_append(name, size // 2 + i * size // 4 + 1) for i, name in enumerate(requests)]
    return [_new("system", 3 * size), *(_fork("system", name) for name in requests), _free("system"), *questions]


def out_of_blocks(num_blocks: int, size: int) -> list[Operation]:
    """Sequences fill the pool to the last block; the next token of one of them has no place."""
    share = max(1, num_blocks // 4)
    sizes = [share, share, share, num_blocks - 3 * share]
    return [*(_new(f"s{i}", blocks * size) for i, blocks in enumerate(sizes) if blocks > 0), _append("s0", 1)]


PRESETS: dict[str, Preset] = {
    "a prompt and its forks": prompt_and_forks,
    "parallel sampling": parallel_sampling,
    "beam search": beam_search,
    "shared system prompt": system_prompt,
    "out of blocks": out_of_blocks,
}
