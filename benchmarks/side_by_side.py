"""The runs of `data/results/h200_vllm.json` beside each other, as docs/measured.md has them.

python benchmarks/side_by_side.py
"""

from __future__ import annotations

from typing import Any

from pagedlab.shipped import results

# Engine, and where in the file it stands; runs on one machine have one letter.
RUNS = {
    "vLLM, A": ("earlier", "vllm"),
    "ours, A": ("earlier", "pagedlab"),
    "vLLM, B": (None, "vllm"),
    "ours, B": (None, "pagedlab"),
    "ours, C": ("again", "pagedlab"),
    "ours, D": ("last layer", "pagedlab"),
    "ours, E": ("latest", "pagedlab"),
}
OFFLINE = {
    "256 requests, seed 0": "throughput seed 0",
    "seed 1": "throughput seed 1",
    "seed 2": "throughput seed 2",
    "2,048 short ones": "short tokens/s",
    "64 long prompts": "prefill tokens/s",
    "8 texts": "batch 8",
    "32 texts": "batch 32",
    "128 texts": "batch 128",
    "256 texts": "batch 256",
    "one text": "one: ms a token",
}
RATES = 10, 20, 40, 60, 80, 100, 140
STEP = {"a step": "wall ms", "on the card": "device ms", "kernels": "launches"}


def table() -> str:
    """All figures as Markdown: a column a run, a row a figure."""
    found = results("h200_vllm")
    runs = [(found[key] if key else found, engine) for key, engine in RUNS.values()]
    loads = [{row["rate"]: row for row in run["load"][engine]} for run, engine in runs]
    steps = [run.get("a step", {}).get(engine, {}) for run, engine in runs]

    def at(rate: int, *names: str) -> list[Any]:
        return [" / ".join(f"{load[rate][name]:,.0f}" for name in names) if rate in load else None for load in loads]

    rows = {name: [run["offline"][engine][key] for run, engine in runs] for name, key in OFFLINE.items()}
    rows |= {f"first token, {r}/s": at(r, "ttft p50", "ttft p99") for r in RATES}
    rows |= {f"longest gap, {r}/s": at(r, "gap p99") for r in RATES}
    rows |= {f"written, {r}/s": at(r, "tok/s") for r in RATES[3:]}
    rows |= {name: [step.get(key) for step in steps] for name, key in STEP.items()}

    def line(name: str, cells: list[Any]) -> str:
        return f"| {name} | " + " | ".join(f"{c:,}" if isinstance(c, int | float) else c or "" for c in cells) + " |"

    return "\n".join([line("", [*RUNS]), "|---" * (len(RUNS) + 1) + "|", *(line(*row) for row in rows.items())])


if __name__ == "__main__":
    print(table())
