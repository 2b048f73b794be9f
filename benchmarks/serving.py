"""Output tokens a second, rung by rung: from transformers' padded `generate` to steps launched ahead as CUDA graphs.

python benchmarks/serving.py [--model FOLDER] [--requests 16 --shortest 16 --longest 128] [--json FILE]

The lengths of prompts and answers are uniform between two bounds (100 and 1,024 with 256 requests in docs/measured.md);
token ids are random, and the end of text is ignored. Only the tokens that were asked for count: a padded batch computes
the longest answer for all. All rungs run in one process, one after the other, and what matters are their ratios.
Seconds are CPU time of this process on one thread without a GPU, and elapsed time with one. Latency under load, other
engines and a single sequence are measured by `peers.py`.

  generate      transformers' own, one batch padded on the left
  sequential    pagedlab.LLM, one request at a time
  looped        pagedlab.LLM, continuous batching; attention in a Python loop over requests
  ragged        pagedlab.LLM, continuous batching; attention over the ragged batch in one call
  fused         pagedlab_fast.LLM with fewer, larger kernels (GPU), or with transposed products of few tokens (CPU)
  graphs alone  unfused, each step a CUDA graph; the host waits for it before it plans the next (GPU)
  graphs        the same graphs, several steps in flight (GPU)
  all           fused layers in graphs that run ahead: what `pagedlab_fast.LLM()` does on a GPU
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import torch
from common import Result, command_line, give_back, quantiles, requests
from pagedlab_lessons.baseline import generate_baseline

import pagedlab_fast
from pagedlab import LLM, SamplingParams
from pagedlab.model import Model, load_model

GPU = torch.cuda.is_available()
if not GPU:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

RUNGS: dict[str, dict[str, Any]] = {
    "generate": {},
    "sequential": {"max_sequences": 1},
    "looped": {"attention_backend": "concat"},
    "ragged": {},
    "fused": {"cuda_graphs": False},
    "graphs alone": {"fused": False},
    "graphs": {"fused": False},
    "all": {},
}
FAST = ("fused", "graphs alone", "graphs", "all")  # of pagedlab_fast
ON_GPU_ONLY = FAST[1:]
PROFILED = ("ragged", *FAST)
FIRST_ONLY = {"sequential": 3, "looped": 8}  # requests on a GPU, where these rungs would take many minutes
# Kinds of kernels, each with parts of their names; the first kind that fits counts.
GROUPS = {
    "attention": ("decode_kernel", "ragged_kernel", "merge_kernel"),
    "sampling": ("chunk_kernel", "pick_kernel", "uniform_kernel", "advance_kernel"),
    "matrix products": ("nvjet", "gemm", "cutlass", "splitK", "gemv", "product_kernel"),
    "norm, rotate, gate, write": ("norm_kernel", "rotate_kernel", "gate_kernel", "write_kernel"),
}


def clock() -> float:
    """Seconds: elapsed time once the GPU is idle, or CPU time of this process."""
    if GPU:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def sampled(outputs: list[int]) -> list[SamplingParams]:
    temperature = 0.6 if GPU else 0.0
    return [SamplingParams(max_tokens=length, ignore_eos=True, temperature=temperature) for length in outputs]


def measure(model: Model, rung: str, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    """Run one rung on the whole workload, or on its first few requests where the whole would take many minutes."""
    figures: dict[str, Any] = {}
    if GPU and rung in FIRST_ONLY:
        prompts, outputs = prompts[: FIRST_ONLY[rung]], outputs[: FIRST_ONLY[rung]]
        figures["requests"] = len(prompts)
    if rung == "generate":
        began = clock()
        generate_baseline(model, prompts, max(outputs), padded=True, ignore_eos=True)
        seconds = clock() - began
    else:
        engine = pagedlab_fast.LLM if rung in FAST else LLM
        llm = engine(model, verbose=False, **RUNGS[rung])
        if rung == "graphs alone":
            one_by_one(llm.runner)
        if rung in FAST:
            llm.warm_up()
        llm.generate([prompt[::-1] for prompt in prompts[:4]], sampled([4])[0])
        gc.collect()
        began = clock()
        completions = llm.generate(prompts, sampled(outputs))
        seconds = clock() - began
        assert [len(completion.outputs[0].token_ids) for completion in completions] == outputs
        gaps = [after - before for completion in completions for before, after in pairwise(completion.times)]
        figures |= {"steps": llm.stats.steps, **quantiles("between tokens ms", gaps)}
        if GPU and rung in PROFILED:
            figures["a step"] = profile_step(llm)
    return {"rung": rung, "tokens/s": round(sum(outputs) / seconds, 2), "seconds": round(seconds, 2), **figures}


def one_by_one(runner: Any) -> None:
    """Have the host wait for each step before it plans the next."""
    runner.max_in_flight = runner.num_steps = runner.max_streamed_steps = runner.max_steps = 1


def profile_step(llm: LLM, sequences: int = 256, context: int = 600) -> dict[str, Any]:
    """Where a decode step's time goes: elapsed, on the GPU, and by kind of kernel."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # a full collection could otherwise happen in the few steps that are timed
    if isinstance(llm, pagedlab_fast.LLM):
        llm.scheduler.max_prompt_tokens = llm.scheduler.max_batch_tokens  # so that all decode at once
    for i in range(sequences):
        prompt = [(7919 * i + j) % llm.model.vocab_size for j in range(context)]
        llm.add(prompt, sampled([96])[0])
    while len(llm.plan.chunks) < sequences or any(chunk.start < context + 8 for chunk in llm.plan.chunks):
        llm.step()
    began = time.perf_counter()
    first = llm.stats.steps
    while (passes := llm.stats.steps - first) < 16:
        llm.step()
    wall = (time.perf_counter() - began) / passes
    torch.cuda.synchronize()  # steps in flight are not recorded, only those that `step` launches next
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        llm.step()
        torch.cuda.synchronize()
    kernels = [event for event in recorded.events() if event.device_type == DeviceType.CUDA]
    passes = sum("advance_kernel" in event.name for event in kernels) or 1
    launches, busy = Counter(), Counter()
    end = 0.0
    for event in sorted(kernels, key=lambda event: event.time_range.start):
        if not event.name.startswith(("Memcpy", "Memset")):
            group = group_of(event.name)
            launches[group] += 1
            span = event.time_range
            # A kernel may begin before the last one has ended, and wait for it: what it adds counts.
            busy[group] += max(0.0, span.end - max(span.start, end))
            end = max(end, span.end)
    while llm.scheduler.running:
        llm.step()
    return {
        "wall ms": round(1000 * wall, 3),
        "kernels ms": round(sum(busy.values()) / passes / 1000, 3),
        "launches": round(sum(launches.values()) / passes),
        "ms by group": {group: round(us / passes / 1000, 3) for group, us in busy.most_common()},
        "launches by group": {group: round(launches[group] / passes) for group, _ in busy.most_common()},
    }


def group_of(kernel: str) -> str:
    for group, parts in GROUPS.items():
        if any(part in kernel for part in parts):
            return group
    return "other"


def main() -> None:
    parser = command_line(__doc__, model=None, dtype="auto", seed=0)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shortest", type=int, default=16)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--rungs", nargs="+", default=RUNGS, choices=RUNGS)
    args = parser.parse_args()
    model = load_model(args.model, dtype=args.dtype)
    lengths = (args.shortest, args.longest)
    prompts, outputs = requests(args.requests, lengths, lengths, model.vocab_size, args.seed)
    generate_baseline(model, [[1, 2]], 2)  # the first pass is slower
    result = Result(
        "output tokens a second, rung by rung, see benchmarks/serving.py",
        args.json,
        threads=torch.get_num_threads(),
        model=model.name,
        dtype=str(model.module.dtype).removeprefix("torch."),
        workload={name: getattr(args, name) for name in ("requests", "shortest", "longest", "seed")},
        rows=[],
    )
    machine = result.content["machine"]
    result.content["machine"] = machine["gpu"] if GPU else machine["processor"]  # notebooks 10 and 11 print it
    result.content["prompt tokens"] = sum(map(len, prompts))
    result.content["output tokens"] = sum(outputs)
    for rung in RUNGS:  # in this order: the fast engine changes the model's layers on a CPU
        if rung in args.rungs and (GPU or rung not in ON_GPU_ONLY):
            row = measure(model, rung, prompts, outputs)
            result.content["rows"].append(row)  # notebook 10 reads these
            result.add("tokens/s", rung, row["tokens/s"], "output tokens/s")
            give_back()


if __name__ == "__main__":
    main()
