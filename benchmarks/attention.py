"""Paged attention on this machine's GPU, beside what bounds it and beside its peers, on the same tensors.

    python benchmarks/attention.py --json data/results/h200.json --text data/results/h200_attention.txt
    python benchmarks/attention.py --json data/results/h200.json --rungs      # notebook 07's ladder, under "ladder"

Every figure comes from a CUDA graph that calls the method several times, with inputs rotated so that none is
still in the L2 cache, and is the median over replays. Decoding is reported as bytes of KV that must be read
over time, prefill as floating-point operations that causal attention needs over time. Roofs (a device-to-device
copy and a sum that only reads) are measured in the same run. Errors are ||out - ref|| / ||ref|| against fp64.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import random
import statistics
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from attention_methods import METHODS, Case, Inputs, Run, cases, cuts, other_plans, reference

from pagedlab.lessons import ladder


def seconds(runs: list[Run], budget: float = 0.15) -> float:
    """Median seconds of one call, over replays of a CUDA graph that makes each of `runs` a few times."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for run in runs:
            run()  # compiles, and loads what is loaded on first use
        stream.synchronize()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(), [run() for run in runs], stop.record()
        stream.synchronize()
        calls = max(len(runs), min(64, round(5e-3 / max(start.elapsed_time(stop) * 1e-3 / len(runs), 1e-6))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = [runs[i % len(runs)]() for i in range(calls)]
        times: list[float] = []
        for _ in range(3):
            graph.replay()
        while sum(times) < budget or len(times) < 5:
            start.record()
            graph.replay()
            stop.record()
            stream.synchronize()
            times.append(start.elapsed_time(stop) * 1e-3)
    del kept
    return statistics.median(times) / calls


def roofs() -> dict[str, float]:
    """Bytes a second of a device-to-device copy, read and written, and of a sum that only reads."""
    source = torch.randn(1 << 31, dtype=torch.bfloat16, device="cuda")
    target, words = torch.empty_like(source), source.view(torch.float32)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def rate(moved: int, run: Callable[[], object]) -> float:
        # Not in a graph: there a copy becomes a node that a slower engine carries out.
        times = []
        for _ in range(20):
            start.record()
            run()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e-3)
        return moved / statistics.median(times)

    size = source.numel() * source.element_size()
    return {"copy": rate(2 * size, lambda: target.copy_(source)), "read": rate(size, lambda: words.sum())}


def product() -> float:
    """Operations a second of the tensor cores, in a product of two 8,192 x 8,192 matrices in bf16."""
    a, b = torch.randn(2, 8192, 8192, dtype=torch.bfloat16, device="cuda")
    return 2 * 8192**3 / seconds([lambda: a @ b], budget=1)


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


def sweep(case: Case, seed: int) -> Iterator[dict[str, Any]]:
    """The library's decode kernel cut in other ways than it chooses."""
    for plan, runs in other_plans(Inputs(case, seed)):
        cut = {"case": case.name, "tile": plan.few.tile, "warps": plan.few.warps, "splits": plan.splits}
        yield {**cut, "GB/s": case.kv_bytes / seconds(runs, budget=0.05) * 1e-9}


def other_cuts(case: Case, seed: int) -> Iterator[dict[str, Any]]:
    """The last rung with other tiles, warps and stages."""
    for cut, runs in cuts(Inputs(case, seed)):
        try:
            yield {"case": case.name, **cut, "GB/s": case.kv_bytes / seconds(runs, budget=0.05) * 1e-9}
        except Exception as error:  # more shared memory than there is
            print(f"{case.name:<50} {cut} {type(error).__name__}")


def made_of(case: Case, seed: int) -> dict[str, dict[str, int]]:
    """What Triton's compiler made of the rungs."""
    batch = Inputs(case, seed, rotate_bytes=0).paged(0)[:5]
    return {name: ladder.compiled(name, *batch) for name in ladder.CUTS}


# What notebook 07 draws: every rung beside the library, unpaged attention and the gather; pages of 64 in one shape.
LADDER = ["rung", "pagedlab", "unpaged SDPA (cudnn, token first)", "gather + SDPA", "FlashAttention"]


def of_ladder(case: Case) -> bool:
    return (case.is_decode and case.name.endswith("block 16")) or case.name == "llama-3-8b decode 32 x 4096, block 64"


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    found = {}
    for package in ("torch", "triton", "flashinfer-python", "flash-attn", "vllm"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        **found,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['case']:<50} {row['method']:<38} {row['failed']}"
    speed = f"{row['GB/s']:8.0f} GB/s {row['of copy']:5.2f}" if "GB/s" in row else f"{row['TFLOP/s']:8.1f} TFLOP/s    "
    return f"{row['case']:<50} {row['method']:<38} {row['ms'] * 1e3:9.1f} us {speed}  error {row['error']:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="also write the table here")
    parser.add_argument(
        "--json", type=Path, help='write all figures here, under "attention" or "ladder", beside the rest'
    )
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name contains one of these")
    parser.add_argument("--methods", nargs="*", default=[""], help="methods whose name contains one of these")
    parser.add_argument("--sweep", action="store_true", help="also other tiles and splits, for one long sequence")
    parser.add_argument("--rungs", action="store_true", help='notebook 07\'s ladder only, under "ladder"')
    parser.add_argument("--cuts", action="store_true", help="with --rungs: the last rung's launch parameters as well")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device; figures measured on one are in data/results/")
    result: dict[str, Any] = {"machine": machine(), "seed": options.seed, "roofs": roofs(), "rows": []}
    lines = [
        ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + f", seed {options.seed}",
        ", ".join(f"{key} {value * 1e-9:.0f} GB/s" for key, value in result["roofs"].items()),
    ]
    print(*lines, sep="\n", flush=True)
    if options.rungs:
        options.methods = LADDER
        result["roofs"]["product"] = product()
    methods = [name for name in METHODS if any(part in name for part in options.methods)]
    chosen = [case for case in cases() if any(part in case.name for part in options.only)]
    chosen = [case for case in chosen if of_ladder(case)] if options.rungs else chosen
    for case in chosen:
        for row in measure(case, methods, result["roofs"]["copy"], options.seed):
            result["rows"].append(row)
            lines.append(line(row))
            print(lines[-1], flush=True)
    if options.rungs:
        result["compiled"] = made_of(chosen[0], options.seed)
        for name, made in result["compiled"].items():
            lines.append(f"{name:<50} {made}")
            print(lines[-1])
        if options.cuts:
            result["cuts"] = [
                row for case in chosen if "block 16" in case.name for row in other_cuts(case, options.seed)
            ]
            for row in result["cuts"]:
                lines.append(" ".join(f"{value:.0f}" if name == "GB/s" else f"{value}" for name, value in row.items()))
                print(lines[-1], flush=True)
    if options.sweep:
        result["sweep"] = list(sweep(next(case for case in cases() if len(case.lengths) == 1), options.seed))
        for row in result["sweep"]:
            lines.append("{case:<50} tile {tile:3}, warps {warps}, splits {splits:2} {GB/s:15.0f} GB/s".format(**row))
            print(lines[-1])
    if options.text:
        options.text.write_text("\n".join(lines) + "\n")
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(
            json.dumps({**known, "ladder" if options.rungs else "attention": result}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
