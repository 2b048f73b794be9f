"""Checks of notebook 11: a rank's part of an MLP, the heads it holds, the bytes that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedlab.checks import Wrong, compare, exercise, trying


@exercise
def mlp_part(answer: Callable[..., Any]) -> str:
    """Rank's part of three weights [out, in] such that the parts' outputs add up to the whole MLP's."""
    import torch

    def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    generator = torch.Generator().manual_seed(0)
    for hidden, width, size in [(2, 2, 1), (2, 2, 2), (3, 4, 2), (4, 6, 3), (8, 16, 4), (16, 8, 8)]:
        shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        weights = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes.values()]
        x = torch.randn(3, hidden, generator=generator, dtype=torch.float64)
        setup = f"hidden size {hidden}, MLP width {width}, {size} rank{'s' if size > 1 else ''}"
        total = torch.zeros_like(x)
        for rank in range(size):
            with trying(f"mlp_part(gate, up, down, rank={rank}, size={size})", setup=setup):
                parts = list(answer(*(weight.clone() for weight in weights), rank, size))
                wanted = [(width // size, hidden), (width // size, hidden), (hidden, width // size)]
                got = [tuple(getattr(part, "shape", ())) for part in parts]
                if got != wanted:
                    raise Wrong(
                        "A rank holds one part in size of each weight: here are the shapes of gate, up and down.",
                        wanted,
                        got,
                    )
                total += mlp(x, *parts)
        expected = mlp(x, *weights)
        if not torch.allclose(total, expected, rtol=1e-9, atol=1e-9):
            message = "The sum over the ranks is another vector than the whole MLP's."
            right, yours = ([round(number, 4) for number in sums[0].tolist()] for sums in (expected, total))
            step = f"sum of the outputs of the {size} parts, for one token"
            raise Wrong(message, right, yours, setup=setup, operations=[step])
    return "Each rank holds its part of every weight, computes alone, and one sum at the end makes it whole."


def _heads(rank: int, size: int, num_heads: int, num_kv_heads: int) -> tuple[list[int], list[int]] | None:
    if num_heads % size or num_kv_heads % size:
        return None
    heads, kv_heads = num_heads // size, num_kv_heads // size
    return [*range(rank * heads, (rank + 1) * heads)], [*range(rank * kv_heads, (rank + 1) * kv_heads)]


@exercise
def heads_of_rank(answer: Callable[[int, int, int, int], tuple[list[int], list[int]] | None]) -> str:
    """The query heads and the KV heads of a rank, None if they cannot be shared evenly."""
    models = [(2, 1), (2, 2), (8, 2), (14, 2), (15, 5), (6, 4), (32, 8), (64, 8), (28, 4)]
    cases = [(rank, size, *model) for size in (1, 2, 4, 8) for model in models for rank in range(size)]
    compare(answer, _heads, cases)
    return f"Right in all {len(cases)} cases: every query head finds its KV head on its own rank."


@exercise
def wire_bytes(answer: Callable[[int, int, int, int], float]) -> str:
    """Bytes that each of `size` ranks sends for one token, by ring all-reduce, two a layer."""
    from pagedlab.distributed.shards import ring_bytes  # here, for it imports torch

    def reference(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
        return ring_bytes(2 * num_layers * hidden_size * dtype_bytes, size)

    cases = [(1, 4, 1, 2), (1, 4, 1, 1), (1, 4, 2, 4), (5, 256, 4, 2), (24, 896, 2, 2), (80, 8192, 2, 8)]
    compare(answer, reference, cases)
    return (
        "Qwen2.5-0.5B in bf16 over two ranks: 84 KiB a token from each to the other. The token's keys and values,\n"
        "12 KiB, never travel."
    )
