"""Where the time goes before the first request: a fresh process with no kernel compiled yet, then one that finds them.

python benchmarks/start_up.py [--model FOLDER] [--device cuda] [--dtype auto] [--json data/results/start_up.json]

  imports    pagedlab, torch, and what of transformers loads weights
  weights    from the folder to the device
  engine     `LLM(model)`: pool, layers stacked, tables on the device
  graphs     of `warm_up`: a step of each shape, and its CUDA graph
  texts      the rest of `warm_up`: some that the host draws for, one of which blocks are copied
  first      one token of a first request

Kernels are those in Triton's cache, a temporary folder, at the process's end. Libraries are imported once before, so
that the first process does not pay for the disk, nor for Python's bytecode where pip has not compiled it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import record


def parts(model: str | None, device: str, dtype: str) -> dict[str, float]:
    """Seconds of each part in this process."""
    seconds, began = dict[str, float](), time.perf_counter()

    def part(name: str) -> None:
        nonlocal began
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            sys.modules["torch"].cuda.synchronize()
        seconds[name], began = round(time.perf_counter() - began, 2), time.perf_counter()

    from pagedlab import LLM, SamplingParams
    from pagedlab.loading import no_collections
    from pagedlab.model import load_model

    with no_collections():  # as `load_model` imports it
        import transformers.modeling_utils  # what loads weights: most of what there is to import

        _ = transformers.AutoModelForCausalLM, transformers.AutoTokenizer  # imported when they are asked for
    part("imports")
    loaded = load_model(model, device, dtype, verbose=False)
    part("weights")
    llm = LLM(loaded, verbose=False)
    part("engine")
    if llm.run_ahead:
        llm.run_ahead.decoder.capture()
        part("graphs")
    llm.warm_up()  # what has its graph takes no time again
    part("texts")
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1))
    part("first")
    return seconds


def with_bytecode(cache: str) -> dict[str, str]:
    """The environment of a process whose kernels and bytecode are in this folder."""
    own = {"TRITON_CACHE_DIR": f"{cache}/kernels", "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | own


def fresh(arguments: list[str], cache: str) -> dict[str, float]:
    """The parts of a process of its own, their sum, and the kernels in its cache at its end."""
    command = [sys.executable, __file__, *arguments, "--here"]
    said = subprocess.run(command, env=with_bytecode(cache), capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(said.stderr)
    seconds = json.loads(said.stdout.splitlines()[-1])
    return {**seconds, "all": round(sum(seconds.values()), 2), "kernels": len([*Path(cache).rglob("*.cubin")])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(parts(args.model, args.device, args.dtype)))
        return
    read_once = "import pagedlab.llm, transformers.modeling_utils, transformers.models.qwen2.modeling_qwen2"
    given = [w for name in ("model", "device", "dtype") if (said := getattr(args, name)) for w in (f"--{name}", said)]
    rows = {}
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run([sys.executable, "-c", read_once], env=with_bytecode(cache), check=True)
        for name in ("nothing compiled", "kernels in the cache"):
            rows[name] = fresh(given, cache)
            print(f"{name}:", ", ".join(f"{part} {seconds}" for part, seconds in rows[name].items()), flush=True)
    if args.json:
        import torch  # noqa: F401  that the record names the card

        record(args.json, "seconds before the first request; see benchmarks/start_up.py", **rows)


if __name__ == "__main__":
    main()
