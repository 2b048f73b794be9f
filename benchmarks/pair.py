"""pagedlab and vLLM on the same requests, one engine a process, everything there at once.

python benchmarks/pair.py pagedlab --model FOLDER --json ours.json
python benchmarks/pair.py vllm --model FOLDER --json theirs.json        where vLLM is installed

  throughput   256 requests, prompts and answers of 100 to 1,024 tokens, temperature 0.6: output tokens/s, three seeds
  one          one text behind 128 tokens, greedy: ms a token
  batch B      B texts behind 512 tokens, 256 new ones each: output tokens/s
  prefill      64 prompts of 2,048 tokens, 1 new one each: prompt tokens/s
  prefix       128 prompts that share 1,024 tokens and have 64 of their own, 64 new ones, second round: output tokens/s
  short        2,048 requests of 16 to 64 tokens in and out: output tokens/s
  a step       with --profile: where a decode step of 256 texts spends its time, on the wall and on the device

Every workload runs once with other numbers before it is timed. vLLM has its defaults but for OPTIONS.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from machine import record

TEMPERATURE = 0.6
OPTIONS = {"max_model_len": 4096, "max_num_seqs": 256, "gpu_memory_utilization": 0.85, "seed": 0}
Work = tuple[list[list[int]], list[int]]  # prompts, and how many tokens each answer has
Run = Callable[[Work, float], list[int]]  # with a temperature: how many tokens each got


def ids(rng: random.Random, n: int) -> list[int]:
    """Random tokens."""
    return [rng.randrange(10_000) for _ in range(n)]


def nano(seed: int, requests: int = 256, shortest: int = 100, longest: int = 1024) -> Work:
    """The workload that nano-vllm made common: lengths of prompts and answers uniform between two bounds."""
    rng = random.Random(seed)
    prompts = [ids(rng, rng.randint(shortest, longest)) for _ in range(requests)]
    return prompts, [rng.randint(shortest, longest) for _ in range(requests)]


def pagedlab(model: str) -> Run:
    """Requests through our engine."""
    from pagedlab import LLM, SamplingParams

    llm = LLM(model)
    llm.warm_up()

    def run(work: Work, temperature: float) -> list[int]:
        params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=temperature) for n in work[1]]
        return [len(c.outputs[0].token_ids) for c in llm.generate(work[0], params)]

    return run


def vllm(model: str) -> Run:
    """Requests through vLLM."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(model, disable_log_stats=True, **OPTIONS)

    def run(work: Work, temperature: float) -> list[int]:
        params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=temperature) for n in work[1]]
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in work[0]], params, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in done]

    return run


def decode_step(run: Run, texts: int = 256, context: int = 512, few: int = 16, more: int = 64) -> dict[str, Any]:
    """A decode step's milliseconds, and of what it launches: what `more` steps add to a run of `few`.

    So prompts, start and end drop out, and it is the same for any engine that runs in this process.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    rng, wall = random.Random(6), []
    busy, launches = Counter[str](), Counter[str]()
    for sign, tokens in ((-1, few), (1, few + more)):
        times = []
        for _ in range(4):
            work = [ids(rng, context) for _ in range(texts)], [tokens] * texts
            began = time.perf_counter()
            run(work, TEMPERATURE)
            times.append(time.perf_counter() - began)
        wall.append(min(times[1:]))
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            run(([ids(rng, context) for _ in range(texts)], [tokens] * texts), TEMPERATURE)
            torch.cuda.synchronize()
        for event in recorded.key_averages():
            if event.self_device_time_total > 0 and not event.key.startswith("aten::"):
                busy[event.key] += sign * event.self_device_time_total
                launches[event.key] += sign * event.count
    return {
        "texts": texts,
        "context": f"{context + few} to {context + few + more}",
        "wall ms": round(1000 * (wall[1] - wall[0]) / more, 3),
        "device ms": round(sum(busy.values()) / more / 1000, 3),
        "launches": round(sum(launches.values()) / more),
        "largest, us and launches": [
            [name[:120], round(us / more, 1), round(launches[name] / more, 1)] for name, us in busy.most_common(16)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("pagedlab", "vllm"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.perf_counter()
    run = {"pagedlab": pagedlab, "vllm": vllm}[args.engine](args.model)
    figures: dict[str, Any] = {"engine": args.engine, "options": OPTIONS if args.engine == "vllm" else {}}
    figures["versions"] = {name: version(name) for name in ("torch", *(["vllm"] if args.engine == "vllm" else []))}

    def seconds(work: Work, temperature: float = TEMPERATURE) -> float:
        """The engine's answers have been tokens on the host, so the GPU is done."""
        began = time.perf_counter()
        assert run(work, temperature) == work[1], "a request did not get its tokens"
        return time.perf_counter() - began

    def keep(name: str, figure: float) -> None:
        figures[name] = round(figure, 3) if figure < 100 else round(figure)
        print(args.engine, name, figures[name], flush=True)

    keep("start-up s", time.perf_counter() - began)
    rng = random.Random(5)
    seconds(nano(9))
    for seed in args.seeds:
        work = nano(seed)
        keep(f"throughput seed {seed}", sum(work[1]) / seconds(work))
    alone = []
    for _ in range(3):
        first = seconds(([ids(rng, 128)], [1]), 0.0)
        alone.append((seconds(([ids(rng, 128)], [257]), 0.0) - first) / 256)
    keep("one: ms a token", 1000 * sorted(alone)[1])
    for texts in (8, 32, 128, 256):
        times = [seconds(([ids(rng, 512) for _ in range(texts)], [256] * texts)) for _ in range(2)]
        keep(f"batch {texts}", texts * 256 / min(times))
    times = [seconds(([ids(rng, 2048) for _ in range(64)], [1] * 64), 0.0) for _ in range(2)]
    keep("prefill tokens/s", 64 * 2048 / min(times))
    shared = ids(rng, 1024)
    times = [seconds(([shared + ids(rng, 64) for _ in range(128)], [64] * 128)) for _ in range(2)]
    keep("prefix tokens/s", 128 * 64 / times[1])
    seconds(nano(8, 2048, 16, 64))
    work = nano(7, 2048, 16, 64)
    keep("short tokens/s", sum(work[1]) / seconds(work))
    if args.profile:
        figures["a step"] = decode_step(run)
        print(args.engine, "a step", figures["a step"])
    if args.json:
        record(args.json, "everything there at once; see benchmarks/pair.py", **figures)


if __name__ == "__main__":
    main()
