"""Output tokens a second, rung by rung: from transformers' padded `generate` to continuous batching on pages.

python benchmarks/serving.py --model FOLDER [--requests 16 --shortest 16 --longest 128] [--json data/results/...]

The workload is the one that nano-vllm made common: prompt and output lengths each uniform between two bounds (100 and
1,024 there, with 256 requests), random token ids, end-of-text ignored. Only the tokens that were asked for count: a
padded batch computes the longest answer for everybody. All rungs run in one process, one after the other, and what
matters are their ratios. Seconds are of this process's CPU time on one thread without a GPU, so that a busy machine
disturbs little, and of the clock on the wall with one.

  generate      transformers' own, one batch padded on the left
  sequential    pagedlab, one request at a time
  looped        pagedlab, continuous batching; attention in a Python loop over requests
  ragged        pagedlab, continuous batching; attention over the ragged batch in one call
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

from allocator import processor

from pagedlab import LLM, Completion, SamplingParams
from pagedlab.baseline import generate_baseline
from pagedlab.model import Model, load_model

RUNGS: dict[str, dict[str, Any]] = {
    "sequential": {"max_sequences": 1},
    "looped": {"attention_backend": "online"},
    "ragged": {},
}


def workload(
    requests: int, shortest: int, longest: int, vocabulary: int, seed: int
) -> tuple[list[list[int]], list[int]]:
    """Prompts of random ids, and how many tokens each answer has."""
    rng = random.Random(seed)
    lengths = [(rng.randint(shortest, longest), rng.randint(shortest, longest)) for _ in range(requests)]
    return [[rng.randrange(vocabulary) for _ in range(prompt)] for prompt, _ in lengths], [n for _, n in lengths]


def clock() -> float:
    """Seconds: on the wall once the GPU is idle, or of this process on the CPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def latencies(completions: list[Completion]) -> dict[str, float]:
    """Milliseconds on the wall to the first token, and between tokens: median and 99th percentile."""
    first = [c.times[0] - c.added for c in completions]
    between = [b - a for c in completions for a, b in zip(c.times, c.times[1:], strict=False)]
    figures = {}
    for name, values in (("to first token", first), ("between tokens", between)):
        figures[f"{name} ms, median"] = round(1000 * statistics.median(values), 1)
        figures[f"{name} ms, 99th percentile"] = round(1000 * statistics.quantiles(values, n=100)[-1], 1)
    return figures


def measure(model: Model, rung: str, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    """One rung on the whole workload."""
    if rung == "generate":
        began = clock()
        generate_baseline(model, prompts, max(outputs), padded=True, ignore_eos=True)
        figures: dict[str, Any] = {"steps": max(outputs)}
    else:
        llm = LLM(model, verbose=False, **RUNGS[rung])
        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in outputs]
        began = clock()
        completions = llm.generate(prompts, params)
        assert [len(c.outputs[0].token_ids) for c in completions] == outputs, "a request did not get its tokens"
        figures = {"steps": llm.stats.steps, "preemptions": llm.stats.preemptions, **latencies(completions)}
    seconds = clock() - began
    return {"rung": rung, "tokens/s": round(sum(outputs) / seconds, 2), "seconds": round(seconds, 1), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shortest", type=int, default=16)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rungs", nargs="+", default=["generate", *RUNGS])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = load_model(args.model, dtype=args.dtype)
    prompts, outputs = workload(args.requests, args.shortest, args.longest, model.vocab_size, args.seed)
    LLM(model, num_blocks=8, verbose=False).generate([[1, 2]], SamplingParams(max_tokens=2))  # the first pass is slower
    rows = []
    for rung in args.rungs:
        rows.append(measure(model, rung, prompts, outputs))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
        result = {
            "machine": machine,
            "threads": torch.get_num_threads(),
            "date": date.today().isoformat(),
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "model": model.name,
            "dtype": str(model.module.dtype).removeprefix("torch."),
            "workload": {k: getattr(args, k) for k in ("requests", "shortest", "longest", "seed")},
            "prompt tokens": sum(map(len, prompts)),
            "output tokens": sum(outputs),
            "rows": rows,
        }
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
