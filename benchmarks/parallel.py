"""Tokens a second of one rank and of several, on the CPU or on GPUs.

    python benchmarks/parallel.py [--model M] [--ranks 1 2] [--device cuda] [--requests 256] [--json out.json]

The workload: requests with prompts and answers of random token ids and lengths, each uniform in the ranges given, EOS
ignored. Every count of ranks runs it once to warm up (a few requests) and once measured, on the same requests. Texts
are compared with the first count's: in fp32 all should be equal, in bf16 a sum of parts rounds in other places.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from typing import Any

import torch
import transformers

from pagedlab import LLM, SamplingParams
from pagedlab.distributed.shards import all_reduce_bytes, ring_bytes


def measure(options: argparse.Namespace, size: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Run the workload on `size` ranks: the figures, and the token ids of the texts."""
    began = time.perf_counter()
    with LLM(
        options.model, device=options.device, dtype=options.dtype, tensor_parallel=size, prefix_caching=False
    ) as llm:
        started = time.perf_counter() - began
        rng = random.Random(options.seed)
        prompts, params = [], []
        for _ in range(options.requests):
            length = rng.randint(*options.prompt_tokens)
            prompts.append([rng.randrange(llm.model.vocab_size) for _ in range(length)])
            params.append(SamplingParams(max_tokens=rng.randint(*options.output_tokens), ignore_eos=True))
        llm.generate(prompts[:4], SamplingParams(max_tokens=8, ignore_eos=True))
        began = time.perf_counter()
        completions = llm.generate(prompts, params)
        seconds = time.perf_counter() - began
        stats, config = llm.stats, llm.model.module.config
        vector_bytes = all_reduce_bytes(config, llm.cache.keys.element_size())
        figures = {
            "ranks": size,
            "start_s": round(started, 2),
            "seconds": round(seconds, 3),
            "output_tokens": stats.output_tokens,
            "output_tokens_per_s": round(stats.output_tokens / seconds, 1),
            "steps": stats.steps,
            "ms_a_step": round(1e3 * seconds / stats.steps, 3),
            "num_blocks": llm.pool.num_blocks,
            "kv_bytes_per_block_and_rank": llm.cache.bytes_per_block,
            "sent_bytes_per_token_and_rank": ring_bytes(vector_bytes, size),
        }
    return figures, [completion.outputs[0].token_ids for completion in completions]


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if device != "cpu" else []
    return {
        "gpus": gpus,
        "cpu_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens a second of one rank and of several.")
    parser.add_argument("--model", help="hub id or folder; default as for pagedlab.LLM")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(100, 1024), metavar=("FROM", "TO"))
    parser.add_argument("--output-tokens", type=int, nargs=2, default=(100, 1024), metavar=("FROM", "TO"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    first: list[list[int]] = []
    for size in options.ranks:
        figures, texts = measure(options, size)
        first = first or texts
        figures["texts_equal_to_the_first"] = sum(a == b for a, b in zip(texts, first, strict=True))
        results.append(figures)
        print(json.dumps(figures))
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "model")}
    report = {"machine": machine(options.device), "settings": settings, "results": results}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    else:
        print(json.dumps(report["machine"]))


if __name__ == "__main__":
    main()
