"""Examples that the widget can play: each is a row of operations that fits any block size."""

from __future__ import annotations

from collections.abc import Callable

from pagedlab.widgets.words import Operation, operations

Preset = Callable[[int, int], tuple[Operation, ...]]  # (num_blocks, block_size) -> operations


def prompt_and_forks(num_blocks: int, size: int) -> tuple[Operation, ...]:
    """A prompt whose last block is a quarter full, two forks, and a write by each of the three."""
    prompt = 2 * size + max(1, size // 4)
    return operations(f"new s0 {prompt}, fork s0 s1, fork s0 s2, append s1 1, append s2 1, append s0 1")


def parallel_sampling(num_blocks: int, size: int) -> tuple[Operation, ...]:
    """Four samples of one prompt, each writing an answer of its own length."""
    writes = ", ".join(f"append s{i} {size // 2 + i * size // 2 + 1}" for i in range(4))
    return operations(f"new s0 {5 * size + size // 2}, fork s0 s1, fork s0 s2, fork s0 s3, {writes}")


def beam_search(num_blocks: int, size: int) -> tuple[Operation, ...]:
    """Four beams over a prompt of four full blocks. Two beams are dropped, and the best one takes their place."""
    first = ", ".join(f"append s{i} {max(1, 5 * size // 8)}" for i in range(4))
    second = ", ".join(f"append s{i} 1" for i in (0, 1, 4, 5))
    forks = "fork s0 s1, fork s0 s2, fork s0 s3"
    return operations(f"new s0 {4 * size}, {forks}, {first}, free s2, free s3, fork s0 s4, fork s0 s5, {second}")


def system_prompt(num_blocks: int, size: int) -> tuple[Operation, ...]:
    """Three requests behind one system prompt of three blocks; its own table is not needed once they have it."""
    questions = ", ".join(f"append r{i + 1} {size // 2 + i * size // 4 + 1}" for i in range(3))
    return operations(
        f"new system {3 * size}, fork system r1, fork system r2, fork system r3, free system, {questions}"
    )


def out_of_blocks(num_blocks: int, size: int) -> tuple[Operation, ...]:
    """Sequences fill the pool to the last block; the next token of one of them has no place."""
    share = max(1, num_blocks // 4)
    shares = [blocks for blocks in (share, share, share, num_blocks - 3 * share) if blocks > 0]
    return operations(", ".join(f"new s{i} {blocks * size}" for i, blocks in enumerate(shares)) + ", append s0 1")


PRESETS: dict[str, Preset] = {
    "a prompt and its forks": prompt_and_forks,
    "parallel sampling": parallel_sampling,
    "beam search": beam_search,
    "shared system prompt": system_prompt,
    "out of blocks": out_of_blocks,
}
