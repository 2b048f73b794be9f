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
    "256 requests of 100 to 1,024 tokens in and out, seed 0: output tokens/s": "throughput seed 0",
    "seed 1": "throughput seed 1",
    "seed 2": "throughput seed 2",
    "2,048 requests of 16 to 64 in and out: output tokens/s": "short tokens/s",
    "64 prompts of 2,048: prompt tokens/s": "prefill tokens/s",
    "8 texts behind 512 tokens, 256 new ones each: output tokens/s": "batch 8",
    "32 texts": "batch 32",
    "128 texts": "batch 128",
    "256 texts": "batch 256",
    "one text: ms a token": "one: ms a token",
}
RATES = 10, 20, 40, 60, 80, 100, 140
STEP = {"ms on the wall": "wall ms", "ms on the device": "device ms", "kernels": "launches"}


def table() -> str:
    """All figures as Markdown: a column a run, a row a figure."""
    found = results("h200_vllm")
    runs = [(found[key] if key else found, engine) for key, engine in RUNS.values()]
    loads = [{row["rate"]: row for row in run["load"][engine]} for run, engine in runs]
    steps = [run.get("a step", {}).get(engine, {}) for run, engine in runs]

    def at(rate: int, *names: str) -> list[Any]:
        return [" / ".join(f"{load[rate][name]:,.0f}" for name in names) if rate in load else None for load in loads]

    rows = {name: [run["offline"][engine][key] for run, engine in runs] for name, key in OFFLINE.items()}
    rows |= {f"first token at {r} a second, ms: median / 99th percentile": at(r, "ttft p50", "ttft p99") for r in RATES}
    rows |= {f"longest gap in an answer at {r} a second, ms: 99th percentile": at(r, "gap p99") for r in RATES}
    rows |= {f"output tokens/s at {r} a second": at(r, "tok/s") for r in RATES[3:]}
    rows |= {f"a decode step of 256 texts: {name}": [step.get(key) for step in steps] for name, key in STEP.items()}

    def line(name: str, cells: list[Any]) -> str:
        return f"| {name} | " + " | ".join(f"{c:,}" if isinstance(c, int | float) else c or "" for c in cells) + " |"

    return "\n".join([line("", [*RUNS]), "|---" * (len(RUNS) + 1) + "|", *(line(*row) for row in rows.items())])


if __name__ == "__main__":
    print(table())
