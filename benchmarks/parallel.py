"""Tokens a second of one card and of several, with steps as CUDA graphs and launched kernel by kernel.

    python benchmarks/parallel.py [--shapes Qwen2.5-0.5B] [--ranks 1 2] [--modes graphs] [--json out.json]

Two workloads of random token ids, weights random too (drawn on each card, so that nothing is read or written), end of
text ignored, each measured once after a warm-up:

  Qwen2.5-0.5B's shape    256 requests that are there at once, prompts and answers of 100 to 1,024 tokens
  Qwen2.5-14B's shape     64 texts with prompts of 1,024 tokens and 64 new ones; and again, the prompts' blocks cached

Every measurement has processes of its own: torchrun starts one a card, and this file again in each of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import pagedlab.distributed
from pagedlab import LLM, SamplingParams
from pagedlab.distributed.shards import all_reduce_bytes, ring_bytes
from pagedlab.model import TINY_MODEL, Model, paged_hook

COMMON = {"rope_theta": 1e6, "bos_token_id": None, "eos_token_id": None}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    },
    "Qwen2.5-0.5B": {
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    },
    "Qwen2.5-14B": {
        "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
        "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 32768,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip
ASKED: dict[
    str, tuple[int, tuple[int, int], tuple[int, int]]
] = {  # requests; tokens of prompts and of answers, from, to
    "tiny": (4, (10, 20), (5, 9)),
    "Qwen2.5-0.5B": (256, (100, 1024), (100, 1024)),
    "Qwen2.5-14B": (64, (1024, 1024), (64, 64)),
}
MODES: dict[str, dict[str, Any]] = {"graphs": {}, "kernel by kernel": {"cuda_graphs": False, "fused": False}}


def random_model(
    folder: str, device: str, dtype: str, verbose: bool = False, prepare: Callable[[Any], None] | None = None
) -> Model:
    """As `pagedlab.model.load_model`, with weights that are drawn on the device, the same ones on all."""
    transformers.AttentionInterface.register("pagedlab", paged_hook)
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.device(device):
        kind = {"dtype": getattr(torch, dtype), "attn_implementation": "pagedlab"}
        module = transformers.AutoModelForCausalLM.from_config(config, **kind).eval()
    if prepare:
        prepare(module)
    return Model(module, transformers.AutoTokenizer.from_pretrained(folder), Path(folder).name, "random weights")


def engine(one: argparse.Namespace) -> LLM:
    """Rank 0's engine on `one.cards`; on the other ranks this serves rank 0, and then ends the process."""
    if one.cards > 1:
        pagedlab.distributed.load_model = random_model  # type: ignore[assignment]
        if rank := int(os.environ["RANK"]):
            pagedlab.distributed.serve_rank(rank, one.cards, pagedlab.distributed.torchrun_store(one.cards))
            sys.exit()
    model = random_model(one.folder, one.device, one.dtype) if one.cards == 1 else one.folder
    how = {"device": one.device, "dtype": one.dtype, "tensor_parallel": one.cards, "verbose": False}
    return LLM(model, **how, **MODES[one.mode])


def requests(shape: str, vocabulary: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of random ids, and what is asked of each."""
    rng, (count, prompt, answer) = random.Random(0), ASKED[shape]
    sizes = [(rng.randint(*prompt), rng.randint(*answer)) for _ in range(count)]
    prompts = [[rng.randrange(vocabulary) for _ in range(n)] for n, _ in sizes]
    return prompts, [SamplingParams(max_tokens=n, ignore_eos=True) for _, n in sizes]


def measure(one: argparse.Namespace) -> dict[str, Any]:
    """The workload once, and again with its prompts cached, in the processes that torchrun started."""
    began = time.perf_counter()
    with engine(one) as llm:
        started = time.perf_counter()
        prompts, params = requests(one.shape, llm.model.vocab_size)
        llm.warm_up()
        llm.generate([p[::-1] for p in prompts], SamplingParams(max_tokens=8, ignore_eos=True))
        warm, runs = time.perf_counter(), []
        new = sum(p.max_tokens for p in params)
        for _ in range(2):
            at = time.perf_counter()
            llm.generate(prompts, params)
            seconds, steps = time.perf_counter() - at, llm.stats.steps
            runs.append(
                {
                    "seconds": round(seconds, 3),
                    "output_tokens_per_s": round(new / seconds, 1),
                    "steps": steps,
                    "ms_a_step": round(1e3 * seconds / steps, 3),
                }
            )
        vector_bytes = all_reduce_bytes(llm.model.module.config, llm.cache.keys.element_size())
        return {
            "shape": one.shape,
            "ranks": one.cards,
            "mode": one.mode,
            "start_s": round(started - began, 2),
            "warm_up_s": round(warm - started, 2),
            "prompt_tokens": sum(map(len, prompts)),
            "output_tokens": new,
            **runs[0],
            "with_prompts_cached": runs[1],
            "num_blocks": llm.pool.num_blocks,
            "kv_bytes_per_block_and_rank": llm.cache.bytes_per_block,
            "sent_bytes_per_token_and_rank": ring_bytes(vector_bytes, one.cards),
        }


def in_processes(shape: str, cards: int, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """`measure` in one process a card."""
    with tempfile.TemporaryDirectory() as folder:
        transformers.Qwen2Config(**SHAPES[shape], **COMMON).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(folder)
        Path(folder, "model.safetensors").touch()  # where there should be weights
        one = {"folder": folder, "shape": shape, "cards": cards, "mode": mode}
        one |= {"device": options.device, "dtype": options.dtype}
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cards), __file__]
        done = subprocess.run([*run, "--one", json.dumps(one)], stdout=subprocess.PIPE, check=True)
    print(line := done.stdout.splitlines()[-1].decode(), flush=True)
    return json.loads(line)


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if device != "cpu" else []
    return {
        "gpus": gpus,
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens a second of one card and of several.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--shapes", nargs="+", default=["Qwen2.5-0.5B", "Qwen2.5-14B"], choices=SHAPES)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # what a process is to measure
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(argparse.Namespace(**json.loads(options.one)))))
        return
    report: dict[str, Any] = {"machine": machine(options.device), "requests": ASKED, "results": []}
    for shape, cards, mode in itertools.product(options.shapes, options.ranks, options.modes):
        report["results"].append(in_processes(shape, cards, mode, options))
        if options.json:
            Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
