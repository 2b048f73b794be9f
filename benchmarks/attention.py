"""Paged attention on this machine's GPU, beside what bounds it and beside its peers, on the same tensors.

python benchmarks/attention.py --json data/results/h200.json
python benchmarks/attention.py --rungs --json data/results/h200.json      notebook 07's ladder, under "ladder"

Every figure comes from a CUDA graph that calls the method several times (`triton.testing`), with inputs rotated so that
none is still in the L2 cache, and is the median over replays. Decoding is reported as bytes of KV that must be read
over time, prefill as floating-point operations that causal attention needs over time. Roofs (a device-to-device
copy and a sum that only reads) are measured in the same run. Errors are ||out - ref|| / ||ref|| against fp64.
The file keeps its parts "attention" and "ladder" apart, because notebooks 06 and 07 read them so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Any

import torch
from attention_methods import METHODS, Case, Inputs, Run, cases, reference
from common import command_line, machine, versions
from pagedlab_lessons.kernels07 import ladder
from triton.testing import do_bench, do_bench_cudagraph


def seconds(runs: list[Run]) -> float:
    """Median seconds of one call, over replays of a CUDA graph that makes each of `runs` many times."""
    return 1e-3 * do_bench_cudagraph(lambda: [run() for run in runs], return_mode="median") / len(runs)


def roofs() -> dict[str, float]:
    """Bytes a second of a device-to-device copy, read and written, and of a sum that only reads."""
    source = torch.randn(1 << 31, dtype=torch.bfloat16, device="cuda")
    target, words = torch.empty_like(source), source.view(torch.float32)
    # Not in a graph: there a copy becomes a node that a slower engine carries out.
    copy_ms = do_bench(lambda: target.copy_(source), return_mode="median")
    read_ms = do_bench(words.sum, return_mode="median")
    size = source.numel() * source.element_size()
    return {"copy": 2 * size / copy_ms * 1e3, "read": size / read_ms * 1e3}


def product() -> float:
    """Operations a second of the tensor cores, in a product of two 8,192 x 8,192 matrices in bf16."""
    a, b = torch.randn(2, 8192, 8192, dtype=torch.bfloat16, device="cuda")
    return 2 * 8192**3 / seconds([lambda: a @ b])


def measure(case: Case, methods: list[str], copy: float, seed: int) -> Iterator[dict[str, Any]]:
    inputs = Inputs(case, seed)
    exact = reference(inputs)
    for method in methods:
        row: dict[str, Any] = {"case": case.name, "method": method}
        try:
            runs = METHODS[method](inputs)
            out = runs[0]()
            row["error"] = float((out.double() - exact).norm() / exact.norm())
            row["ms"] = seconds(runs) * 1e3
            if case.is_decode or "mixed" in case.name:
                row["GB/s"] = case.kv_bytes / row["ms"] * 1e-6
                row["of copy"] = row["GB/s"] * 1e9 / copy
            else:
                row["TFLOP/s"] = case.flops / row["ms"] * 1e-9
        except NotImplementedError:
            continue
        except Exception as error:  # a peer that is absent, or refuses this shape, is a finding, not a failure
            row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        yield row


def compiled(case: Case, seed: int) -> dict[str, dict[str, int]]:
    """Registers, spills and shared memory of the rungs, as Triton's compiler reports them."""
    batch = Inputs(case, seed, rotate_bytes=0).paged(0)[:5]
    return {name: ladder.compiled(name, *batch) for name in ladder.CUTS}


# What notebook 07 draws: every rung beside the library, unpaged attention and the gather; pages of 64 in one shape.
LADDER = ["rung", "pagedlab", "unpaged SDPA (cudnn, token first)", "gather + SDPA", "FlashAttention"]


def of_ladder(case: Case) -> bool:
    return (case.is_decode and case.name.endswith("block 16")) or case.name == "llama-3-8b decode 32 x 4096, block 64"


def read_by_notebooks() -> dict[str, Any]:
    """The machine, with the names under which notebooks 06 and 07 read it."""
    here = machine()
    cuda = str(torch.version.cuda)
    today = date.today().isoformat()
    return {"card": here["gpu"], "driver": here["driver"], "cuda": cuda, **versions(), "date": today}


def main() -> None:
    parser = command_line(__doc__, seed=0)
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name contains one of these")
    parser.add_argument("--methods", nargs="*", default=[""], help="methods whose name contains one of these")
    parser.add_argument("--rungs", action="store_true", help='notebook 07\'s ladder only, under "ladder"')
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device; figures measured on one are in data/results/")
    result: dict[str, Any] = {"machine": read_by_notebooks(), "seed": args.seed, "roofs": roofs(), "rows": []}
    print(result["machine"], result["roofs"], sep="\n", flush=True)
    wanted = LADDER if args.rungs else args.methods
    methods = [name for name in METHODS if any(part in name for part in wanted)]
    chosen = [case for case in cases() if any(part in case.name for part in args.only)]
    if args.rungs:
        chosen = [case for case in chosen if of_ladder(case)]
        result["roofs"]["product"] = product()
        result["compiled"] = compiled(chosen[0], args.seed)
    for case in chosen:
        for row in measure(case, methods, result["roofs"]["copy"], args.seed):
            result["rows"].append(row)
            print(row, flush=True)
    if args.json:
        parts = json.loads(args.json.read_text()) if args.json.exists() else {}
        parts["ladder" if args.rungs else "attention"] = result
        args.json.write_text(json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    main()
