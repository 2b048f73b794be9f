"""The ladder of notebook 07: the measured speed of each rung and of its peers, and bars for them.

The speeds are those of data/results, measured by `benchmarks/attention.py --rungs`. `measured_now`
measures a reader's kernel beside the rungs.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from pagedlab.shipped import results
from pagedlab_lessons.colors import BLUE, ORANGE, VERMILION, Look
from pagedlab_lessons.drawing import Bar, Drawing, Lane, Lanes, Run, page

RUNG = Look(BLUE)
PEER = Look(ORANGE, "//", is_pale=True)
MARKED = Look(VERMILION)
SHAPES = {
    "Llama-3-8B, 32 x 4,096": "llama-3-8b decode 32 x 4096, block 16",
    "Qwen2.5-7B, 64 x 4,096": "qwen2.5-7b decode 64 x 4096, block 16",
    "Qwen2.5-0.5B, 256 x 1,024": "qwen2.5-0.5b decode 256 x 1024, block 16",
    "Llama-3-8B, 1 x 16,384": "llama-3-8b decode 1 x 16384, block 16",
}
RUNGS = {  # what each rung changes, and what that does
    "rung 1, one page at a time": "A tile, the keys loaded at once, is one page: much "
    "waiting for few keys.",
    "rung 2, a tile of several pages": "A tile is two pages: twice the keys in one wait.",
    "rung 3, heads share a load": "Each key is loaded once for all heads, by a quarter of the "
    "programs.",
    "rung 4, tensor cores": "Two things: tensor cores multiply faster, and tiles are loaded ahead.",
    "rung 5, more in flight": "Two tiles are loaded ahead instead of one.",
    "rung 6, fewer warps": "Two warps instead of four: fewer threads wait for each other.",
    "rung 7, a longer tile": "A tile is four pages: twice the keys in one wait.",
    "rung 8, splits and their merge": (
        "Programs share a sequence; a merge follows. Drawn: 4 splits, tiles of 32. In use: splits "
        "from 256 tokens on, tiles of 64."
    ),
}
UNPAGED = "unpaged SDPA (cudnn, token first)"  # keys in a row in memory, as if there were no pages
PEERS = {
    "pagedlab": "the library's kernel",
    UNPAGED: "unpaged, cuDNN",
    "gather + SDPA": "gather, then torch",
}
# Names of methods in benchmarks/attention.py, and of their bars.
METHODS = {name: name for name in RUNGS} | PEERS


def recorded() -> dict[str, Any]:
    """Return the measured ladder: machine, roofs, rows, and the compiler's figures."""
    return results("h200")["ladder"]


def speeds_of(case: str, pages: int = 16) -> dict[str, float]:
    """Return the recorded GB/s of each rung and peer.

    Args:
        case: one of the values of `SHAPES`.
        pages: slots in a page, 16 or 64. Not every kernel was measured with 64.
    """
    case = case.replace("block 16", f"block {pages}")
    rows = {
        row["method"]: row["GB/s"]
        for row in recorded()["rows"]
        if row["case"] == case and "GB/s" in row
    }
    return {name: rows[method] for method, name in METHODS.items() if method in rows}


def ladder(
    values: Mapping[str, float],
    line: float,
    now: str,
    unit: str = "GB/s",
    written: str = "{:,.0f}",
    says: str = "a copy",
) -> Lanes:
    """Return a bar for each kernel, and a dotted line that they are compared with.

    Args:
        values: by name.
        line: the value of the line.
        now: the name to mark.
        unit: of the values.
        written: how a value is written.
        says: what the line is.
    """
    lanes = []
    for name, value in values.items():
        look = RUNG if name in RUNGS else PEER
        number = written.format(value)
        say = f"{name}: {number} {unit}, {value / line:.1%} of {says}"
        bar = Bar([Run(0, value, MARKED if name == now else look)], [name], say)
        lanes.append(Lane(f"{name.removeprefix('rung '):26}{number:>6}", [bar]))
    longest = 1.02 * max(line, *values.values())  # room for the number below the line
    names = f"{unit}; dotted: {says}"
    return Lanes(lanes, longest, line, names, names=216, height=18, every=round(line))


def draw_speeds(shape: str) -> Drawing:
    """Draw the recorded speeds of all rungs and peers.

    Args:
        shape: one of `SHAPES`.
    """
    found = recorded()
    headline = f"{found['machine']['card']}: GB/s of keys and values, {shape}"
    copy = found["roofs"]["copy"] / 1e9
    now = list(RUNGS)[-1]
    return page(headline, ladder(speeds_of(SHAPES[shape]), copy, now))


def measured_now(answer: Any, **cut: int) -> Drawing:
    """Measure a kernel and the rungs with Llama-3-8B's heads, 32 x 4,096, and draw their speeds.

    Args:
        answer: the reader's kernel.
        cut: tile, num_stages and num_warps.
    """
    from triton.testing import do_bench, do_bench_cudagraph

    from pagedlab.kernels.attention import triton_attention
    from pagedlab_lessons.kernels07 import ladder as rungs

    q = torch.randn(32, 32, 128, dtype=torch.bfloat16, device="cuda")
    k, v = torch.randn(2, 32 * 256, 16, 8, 128, dtype=q.dtype, device="cuda")
    tables = torch.randperm(len(k), device="cuda").int().view(32, 256)
    seq_lens, starts = torch.full((32,), 4096).int().cuda(), torch.arange(33).int().cuda()
    target = torch.empty_like(k)
    copy = 2 * k.nbytes / do_bench(lambda: target.copy_(k), return_mode="median") / 1e6
    own = rungs.decoder(answer, **cut)
    batch = q, k, v, tables, seq_lens
    kernels = {"yours": own, **rungs.RUNGS}
    kernels[PEERS["pagedlab"]] = partial(triton_attention, query_starts=starts)
    exact = triton_attention(*batch, query_starts=starts).double()
    error = (own(*batch) - exact).norm() / exact.norm()
    if not error < 0.02:  # bf16 gives 0.002
        return page(f"Not measured: it differs from attention by {error:.0%}.")
    speeds = {}
    for name, run in kernels.items():
        with suppress(Exception):  # a smaller card has too little shared memory for some
            ms = do_bench_cudagraph(lambda run=run: run(*batch), return_mode="median")
            speeds[name] = 2 * k.nbytes / ms / 1e6
    card = torch.cuda.get_device_name()
    headline = f"{card}, measured now: GB/s of keys and values, Llama-3-8B, 32 x 4,096"
    return page(headline, ladder(speeds, copy, "yours"))
