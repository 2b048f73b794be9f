"""pagedlab and vLLM on the same requests, one engine a process: output tokens a second, everything there at once.

python benchmarks/pair.py pagedlab --model FOLDER --json ours.json
python benchmarks/pair.py vllm --model FOLDER --json theirs.json        where vLLM is installed

The workload is that of serving.py: 256 requests, prompts and answers of 100 to 1,024 tokens, temperature 0.6. It runs
once with other lengths before it is timed. vLLM runs with its defaults but for what OPTIONS says.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from machine import record
from serving import TEMPERATURE, workload

VOCABULARY = 4096  # ids in the prompts, which even the tiny model has
OPTIONS = {"max_model_len": 4096, "max_num_seqs": 256, "gpu_memory_utilization": 0.85, "seed": 0}
Run = Callable[[list[list[int]], list[int]], list[int]]


def pagedlab(model: str) -> Run:
    """All requests through our engine; how many tokens each got."""
    from pagedlab import LLM, SamplingParams

    llm = LLM(model)
    llm.warm_up()

    def run(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=TEMPERATURE) for n in outputs]
        return [len(c.outputs[0].token_ids) for c in llm.generate(prompts, params)]

    return run


def vllm(model: str) -> Run:
    """All requests through vLLM, with its defaults and `OPTIONS`."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(model, disable_log_stats=True, **OPTIONS)

    def run(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=TEMPERATURE) for n in outputs]
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in done]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("pagedlab", "vllm"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--shortest", type=int, default=100)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bounds = args.requests, args.shortest, args.longest, VOCABULARY
    run = {"pagedlab": pagedlab, "vllm": vllm}[args.engine](args.model)
    run(*workload(*bounds, seed=9))
    figures: dict[str, Any] = {"engine": args.engine, "options": OPTIONS if args.engine == "vllm" else {}}
    figures["versions"] = {name: version(name) for name in ("torch", *(["vllm"] if args.engine == "vllm" else []))}
    for seed in args.seeds:
        prompts, outputs = workload(*bounds, seed=seed)
        began = time.perf_counter()
        got = run(prompts, outputs)
        figures[f"throughput seed {seed}"] = round(sum(outputs) / (time.perf_counter() - began))
        assert got == outputs, "a request did not get its tokens"
        print(args.engine, "seed", seed, figures[f"throughput seed {seed}"], "tokens/s", flush=True)
    if args.json:
        record(args.json, "everything there at once; see benchmarks/pair.py", **figures)


if __name__ == "__main__":
    main()
