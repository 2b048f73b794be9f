"""Output tokens a second, rung by rung: from transformers' padded `generate` to CUDA graphs, and latency under load.

python benchmarks/serving.py --model FOLDER [--requests 16 --shortest 16 --longest 128] [--json data/results/...]
python benchmarks/serving.py --model FOLDER --requests 256 --shortest 100 --longest 1024 --seeds 0 1 2 --load 0.5 0.9

The workload is the one that nano-vllm made common: prompt and output lengths each uniform between two bounds (100 and
1,024 there, with 256 requests), random token ids, end-of-text ignored. Only the tokens that were asked for count: a
padded batch computes the longest answer for everybody. All rungs run in one process, one after the other, and what
matters are their ratios. Seconds are of this process's CPU time on one thread without a GPU, so that a busy machine
disturbs little, and of the clock on the wall with one.

  generate      transformers' own, one batch padded on the left
  continuous    transformers' continuous batching, where this version has it (GPU); last, since it takes all the memory
  sequential    pagedlab, one request at a time
  looped        pagedlab, continuous batching; attention in a Python loop over requests
  ragged        pagedlab, continuous batching; attention over the ragged batch in one call
  fused         the same with fewer, larger kernels (GPU), or turned-round products of few tokens (CPU)
  graphs alone  ragged, each step a CUDA graph, for which the host waits before it plans the next (GPU)
  graphs        the same graphs in windows of some steps, the next sent while one runs (GPU)
  all           fused layers in graphs that run ahead: what `LLM()` does on a GPU
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from machine import processor

from pagedlab import LLM, Completion, SamplingParams
from pagedlab.lessons.baseline import generate_baseline
from pagedlab.model import Model, load_model

GPU = torch.cuda.is_available()
if not GPU:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

PLAIN: dict[str, Any] = {"cuda_graphs": False, "fused": False}
RUNGS: dict[str, dict[str, Any]] = {
    "sequential": {"max_sequences": 1, **PLAIN},
    "looped": {"attention_backend": "concat", **PLAIN},
    "ragged": PLAIN,
    "fused": {"cuda_graphs": False},
    "graphs alone": {"fused": False},
    "graphs": {"fused": False},
    "all": {},
}
ON_GPU_ONLY = ("continuous", "graphs alone", "graphs", "all")
PROFILED = ("ragged", "fused", "graphs alone", "graphs", "all")
FIRST_ONLY = {"sequential": 3, "looped": 8}  # requests on a GPU, where these rungs would take many minutes
TEMPERATURE = 0.6
# Which kernel does what, by a part of its name; the first that fits.
GROUPS = {
    "attention": ("decode_kernel", "ragged_kernel", "merge_kernel"),
    "sampling": ("chunk_kernel", "pick_kernel", "uniform_kernel", "advance_kernel"),
    "matrix products": ("nvjet", "gemm", "cutlass", "splitK", "gemv", "product_kernel"),
    "norm, rotate, gate, write": ("norm_kernel", "rotate_kernel", "gate_kernel", "angles_kernel", "write_kernel"),
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
    if GPU:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in milliseconds."""
    ranked = sorted(seconds)
    return {
        f"{name} ms, median": round(1000 * statistics.median(ranked), 1),
        f"{name} ms, 99th percentile": round(1000 * ranked[int(0.99 * (len(ranked) - 1))], 1),
        f"{name} ms, largest": round(1000 * ranked[-1], 1),
    }


def latencies(completions: list[Completion]) -> dict[str, float]:
    """Milliseconds on the wall to the first token, and between tokens (those that came together included, as 0)."""
    first = [c.times[0] - c.added for c in completions]
    between = [b - a for c in completions for a, b in zip(c.times, c.times[1:], strict=False)]
    each = [(c.times[-1] - c.times[0]) / (len(c.times) - 1) for c in completions if len(c.times) > 1]
    return quantiles("to first token", first) | quantiles("between tokens", between) | quantiles("a token", each)


def sampled(outputs: list[int]) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=n, ignore_eos=True, temperature=TEMPERATURE if GPU else 0.0) for n in outputs]


def serve(llm: LLM, prompts: list[list[int]], outputs: list[int]) -> tuple[float, list[Completion]]:
    """Seconds for the workload when all of it is there at once. Nothing of an earlier one is cached."""
    if llm.prefix_cache:
        llm.prefix_cache.clear()
    gc.collect()
    params = sampled(outputs)
    began = clock()
    completions = llm.generate(prompts, params)
    seconds = clock() - began
    assert [len(c.outputs[0].token_ids) for c in completions] == outputs, "a request did not get its tokens"
    return seconds, completions


def continuous(model: Model, prompts: list[list[int]], outputs: list[int]) -> float:
    """Seconds of transformers' own continuous batching: each request its own number of tokens."""
    from transformers import GenerationConfig

    config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max(outputs))
    with model.stock_attention() as module:
        manager = module.init_continuous_batching(generation_config=config)
        manager.start()
        try:
            began = clock()
            for prompt, n in zip(prompts, outputs, strict=True):
                manager.add_request(prompt, max_new_tokens=n)
            got: list[int] = []
            while len(got) < len(outputs):
                result = manager.get_result(timeout=30)
                if result is None:
                    raise RuntimeError("it gave no result for 30 s")
                if result.is_finished():
                    got.append(len(result.generated_tokens))
            seconds = clock() - began
        finally:
            manager.stop(block=True)
    assert sorted(got) == sorted(outputs), "a request did not get its tokens"
    return seconds


def measure(model: Model, rung: str, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    """One rung on the whole workload, or on its first few requests where the whole would take many minutes."""
    figures: dict[str, Any] = {}
    if GPU and rung in FIRST_ONLY:
        prompts, outputs = prompts[: FIRST_ONLY[rung]], outputs[: FIRST_ONLY[rung]]
        figures["requests"] = len(prompts)
    if rung == "generate":
        began = clock()
        generate_baseline(model, prompts, max(outputs), padded=True, ignore_eos=True)
        seconds = clock() - began
        figures |= {"steps": max(outputs)}
    elif rung == "continuous":
        seconds = continuous(model, prompts, outputs)
    else:
        began = clock()
        llm = LLM(model, verbose=False, **RUNGS[rung])
        if rung == "graphs alone":
            one_by_one(llm)
        llm.warm_up()
        figures["start-up s"] = round(clock() - began, 1)
        spent = watch(llm.scheduler, "schedule", "reserve_ahead")
        seconds, completions = serve(llm, prompts, outputs)
        figures |= {"steps": llm.stats.steps, "preemptions": llm.stats.preemptions, **latencies(completions)}
        figures["scheduler ms a step"] = round(1000 * sum(spent) / llm.stats.steps, 3)
        if GPU and rung in PROFILED:
            figures["a step"] = profile_step(llm)
        if rung == "all":
            figures["one text: ms a token"] = one_text(llm)
    return {"rung": rung, "tokens/s": round(sum(outputs) / seconds, 2), "seconds": round(seconds, 2), **figures}


def one_by_one(llm: LLM) -> None:
    """Have the host wait for each step before it plans the next."""
    assert llm.run_ahead is not None
    llm.run_ahead.max_in_flight = llm.run_ahead.num_steps = llm.run_ahead.max_steps = 1


def give_back() -> None:
    """Give the memory of a rung's engine back: the next rung takes what is free."""
    gc.unfreeze()  # `warm_up` froze its engine
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()


def watch(thing: Any, *names: str) -> list[float]:
    """Seconds of every call of these methods from now on."""
    spent: list[float] = []

    def timed(method: Any) -> Any:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args)
            finally:
                spent.append(time.perf_counter() - began)

        return call

    for name in names:
        setattr(thing, name, timed(getattr(thing, name)))
    return spent


def one_text(llm: LLM, tokens: int = 512) -> float:
    """Milliseconds a token of one text, behind a prompt of 128."""
    serve(llm, [list(range(128))], [16])
    seconds, (completion,) = serve(llm, [list(range(128))], [tokens])
    return round(1000 * (seconds - (completion.times[0] - completion.added)) / (tokens - 1), 3)


def profile_step(llm: LLM, texts: int = 256, context: int = 600) -> dict[str, Any]:
    """Where a decode step's time goes: on the wall, on the GPU, and in which kernels. The context is of each text."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # or a full collection may fall into the few steps that are timed
    llm.scheduler.max_prompt_tokens = llm.scheduler.max_batch_tokens  # or the first end before the last come in
    for i in range(texts):
        llm.add([(7919 * i + j) % llm.model.vocab_size for j in range(context)], sampled([96])[0])
    while len(llm.plan.chunks) < texts or any(c.start < context + 8 for c in llm.plan.chunks):
        llm.step()
    began, passes = time.perf_counter(), 0  # a window's tokens have just come, and those of another end it
    while passes < 16:
        llm.step()
        passes += llm.plan.passes
    wall = (time.perf_counter() - began) / passes
    torch.cuda.synchronize()  # what is under way is not recorded, but the window that `step` sends next
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        llm.step()
        torch.cuda.synchronize()
    launches, busy = Counter[str](), Counter[str]()
    averages = recorded.key_averages()
    passes = sum(event.count for event in averages if "advance_kernel" in event.key) or 1
    for event in averages:
        if event.self_device_time_total > 0 and not event.key.startswith(("aten::", "Memcpy", "Memset")):
            group = next((g for g, parts in GROUPS.items() if any(part in event.key for part in parts)), "other")
            launches[group] += event.count
            busy[group] += event.self_device_time_total
    while llm.scheduler.running:
        llm.step()
    return {
        "texts": texts,
        "context": context,
        "wall ms": round(1000 * wall, 3),
        "kernels ms": round(sum(busy.values()) / passes / 1000, 3),
        "launches": round(sum(launches.values()) / passes),
        "ms by group": {group: round(us / passes / 1000, 3) for group, us in busy.most_common()},
        "launches by group": {group: round(launches[group] / passes) for group, _ in busy.most_common()},
    }


def under_load(llm: LLM, prompts: list[list[int]], outputs: list[int], rate: float, seed: int) -> dict[str, Any]:
    """Requests that come by themselves, `rate` a second, with exponential gaps: how long they wait."""
    rng, due = random.Random(seed), []
    for _ in prompts:
        due.append((due[-1] if due else 0.0) + rng.expovariate(rate))
    params, done, arrived = sampled(outputs), [], 0
    if llm.prefix_cache:
        llm.prefix_cache.clear()
    gc.collect()
    began = time.perf_counter()
    while len(done) < len(prompts):
        now = time.perf_counter() - began
        while arrived < len(due) and due[arrived] <= now:
            llm.add(prompts[arrived], params[arrived])
            arrived += 1
        if llm.scheduler.running or llm.scheduler.waiting:
            done += [c for c in llm.step() if c.finished]
        else:
            time.sleep(max(0.0, due[arrived] - now))
    seconds = time.perf_counter() - began
    return {"requests/s": round(rate, 1), "tokens/s": round(sum(outputs) / seconds), **latencies(done)}


def by_itself(
    model: Model, bounds: tuple[int, int, int, int], seeds: list[int], shares: list[float], keep: Callable[..., None]
) -> None:
    """`all` on each seed, three times, then under these shares of the load that it could take of the first."""
    llm = LLM(model, verbose=False)
    llm.warm_up()
    rates = []
    for seed in seeds:
        prompts, outputs = workload(*bounds, seed)
        runs = sorted(round(sum(outputs) / serve(llm, prompts, outputs)[0]) for _ in range(3))
        rates.append(runs[1] / sum(outputs) * len(outputs))
        keep("seeds", {"seed": seed, "output tokens": sum(outputs), "tokens/s": runs[1], "of three runs": runs})
    prompts, outputs = workload(4 * bounds[0], *bounds[1:], seeds[0])
    for share in shares:
        keep("load", {"share": share, **under_load(llm, prompts, outputs, share * rates[0], seeds[0])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shortest", type=int, default=16)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="the rungs run on the first, all on each")
    parser.add_argument("--rungs", nargs="+", default=["generate", "continuous", *RUNGS])
    parser.add_argument("--load", type=float, nargs="*", default=[], help="shares of the throughput of seed 0")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = load_model(args.model, dtype=args.dtype)
    bounds = args.requests, args.shortest, args.longest, model.vocab_size
    prompts, outputs = workload(*bounds, args.seeds[0])
    LLM(model, num_blocks=8, verbose=False).generate([[1, 2]], SamplingParams(max_tokens=2))  # the first pass is slower
    result: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if GPU else processor(),
        "threads": torch.get_num_threads(),
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in ("torch", "transformers", *(["triton"] if GPU else []))},
        "model": model.name,
        "dtype": str(model.module.dtype).removeprefix("torch."),
        "workload": {k: getattr(args, k) for k in ("requests", "shortest", "longest")} | {"seed": args.seeds[0]},
        "prompt tokens": sum(map(len, prompts)),
        "output tokens": sum(outputs),
        "rows": [],
    }

    def keep(kind: str, row: dict[str, Any]) -> None:
        result.setdefault(kind, []).append(row)
        result["rows"].sort(key=lambda row: args.rungs.index(row["rung"]))
        print(kind, json.dumps(row), flush=True)
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")

    for rung in args.rungs:
        if rung != "continuous" and (GPU or rung not in ON_GPU_ONLY):
            keep("rows", measure(model, rung, prompts, outputs))
            give_back()
    if GPU and (len(args.seeds) > 1 or args.load):
        by_itself(model, bounds, args.seeds, args.load, keep)
        give_back()
    if GPU and "continuous" in args.rungs:
        try:
            keep("rows", measure(model, "continuous", prompts, outputs))
        except Exception as error:  # transformers' own, whose interface moves
            print(f"continuous: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
