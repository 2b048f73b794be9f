"""What all benchmarks share: the command line, the record of the machine, and the result file with its reader.

python benchmarks/common.py RESULT.json [...]        print results of one machine

Every benchmark is called as `python benchmarks/NAME.py [options] [--json FILE]`. The file has "about", "date",
"machine" and "versions", then the benchmark's own settings, then its figures in "rounds": of each workload, of each
variant (an engine, a method), a list with one entry a round. An entry is {"figure": number, "unit": words}, and may
have more. The reader prints the median of the rounds and their range. It refuses results of different machines.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# The options that more than one benchmark has, and what each is.
OPTIONS = {
    "model": "a folder, a .gguf file or a hub id",
    "device": "cuda, cpu or auto",
    "dtype": "of the weights",
    "seed": "of all random numbers",
    "rounds": "how often each workload is timed",
    "minutes": "how long it runs",
}
PACKAGES = ("torch", "triton", "transformers", "flashinfer-python", "flash-attn", "vllm")


def command_line(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, with `--json` and some of the shared options.

    Args:
        doc: the benchmark's docstring, which is its help.
        defaults: the shared options that it has (names of `OPTIONS`), each with its default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        kind = str if default is None else type(default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{OPTIONS[name]} (default: {default})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    return parser


def machine() -> dict[str, Any]:
    """What a result is true of: two results can be compared if this is the same for both."""
    name, driver, identity = first_gpu()
    boot = read_or_nothing("/proc/sys/kernel/random/boot_id")
    return {
        "gpu": name,
        "driver": driver,
        "processor": processor(),
        "cores": os.cpu_count(),
        "host": hashlib.sha256((identity + boot).encode()).hexdigest()[:12],
    }


def first_gpu() -> list[str]:
    """Name, driver and identity of a GPU, as nvidia-smi says."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,uuid", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ["none", "", ""]
    return said.splitlines()[0].split(", ")


def processor() -> str:
    """The processor's name, where the system knows it."""
    for line in read_or_nothing("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def read_or_nothing(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def versions() -> dict[str, str]:
    """Of Python and of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


class Result:
    """A result that is written to its file whenever a figure is added.

    Args:
        about: what was measured, in a sentence.
        path: the file; None if nobody asked for one.
        settings: what the benchmark says beside its figures: the model, the workload.
    """

    def __init__(self, about: str, path: Path | None, **settings: Any) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "about": about,
            "date": date.today().isoformat(),
            "machine": machine(),
            "versions": versions(),
            **settings,
            "rounds": {},
        }

    def add(self, workload: str, variant: str, figure: float, unit: str, **more: Any) -> None:
        """Add a round of a workload, and print it."""
        print(f"{workload:24} {variant:24} {written(figure)} {unit}", flush=True)
        self.note("rounds", workload, variant, {"figure": figure, "unit": unit, **more})

    def note(self, part: str, workload: str, variant: str, entry: dict[str, Any]) -> None:
        """Add an entry to a part of the file that has the form of "rounds"."""
        self.content.setdefault(part, {}).setdefault(workload, {}).setdefault(variant, []).append(entry)
        self.save()

    def save(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")


def written(figure: float) -> str:
    return f"{figure:,.3f}" if abs(figure) < 100 else f"{figure:,.0f}"


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    """The median and the 99th percentile of some times, in milliseconds."""
    ranked = sorted(seconds)
    last = len(ranked) - 1
    return {
        f"{name}, median": 1000 * ranked[last // 2],
        f"{name}, 99th percentile": 1000 * ranked[int(0.99 * last)],
    }


def requests(
    count: int, prompt: tuple[int, int], answer: tuple[int, int], vocabulary: int, seed: int
) -> tuple[list[list[int]], list[int]]:
    """Prompts of random token ids, and how many tokens each answer has.

    Args:
        count: of requests.
        prompt: the fewest and the most tokens of a prompt. Lengths are uniform.
        answer: the same of an answer.
        vocabulary: token ids are below.
        seed: of lengths and ids.
    """
    rng = random.Random(seed)
    lengths = [(rng.randint(*prompt), rng.randint(*answer)) for _ in range(count)]
    prompts = [[rng.randrange(vocabulary) for _ in range(length)] for length, _ in lengths]
    return prompts, [length for _, length in lengths]


def give_back() -> None:
    """Free the memory of what was measured: the next engine takes what is free."""
    import torch

    gc.unfreeze()  # `warm_up` froze its engine
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def show(paths: list[Path]) -> None:
    """Print results, each workload in a line.

    Raises:
        SystemExit: they are of different machines.
    """
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if any(result["machine"] != results[0]["machine"] for result in results[1:]):
        raise SystemExit("these results are of different machines; compare results of one machine only")
    print(json.dumps(results[0]["machine"]))
    for result in results:
        print(f"\n{result.get('model', result['about'])}, {result['date']}")
        for workload, by_variant in result.get("rounds", {}).items():
            spreads = [spread(variant, entries) for variant, entries in by_variant.items()]
            print("   ".join([f"{workload:10}", *spreads]))
        for rate, by_engine in result.get("load", {}).items():
            print(f"{rate} a second   {by_engine}")


def spread(variant: str, entries: list[dict[str, Any]]) -> str:
    """The median of the rounds, and in brackets the smallest and the largest."""
    figures = [entry["figure"] for entry in entries if "figure" in entry]
    if not figures:
        return f"{variant} failed"
    middle = written(statistics.median(figures))
    if len(figures) == 1:
        return f"{variant} {middle}"
    return f"{variant} {middle} ({written(min(figures))} to {written(max(figures))})"


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
    else:
        show([Path(name) for name in sys.argv[1:]])
