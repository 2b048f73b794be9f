"""Tokens a second of one card and of several, with steps as CUDA graphs and launched kernel by kernel.

    python benchmarks/parallel.py [--ranks 1 2] [--json out.json]

Two workloads of random token ids, weights random too (drawn on each card, so that nothing is read or written), end of
text ignored, each measured once after a warm-up:

  Qwen2.5-0.5B's shape    256 requests that are there at once, prompts and answers of 100 to 1,024 tokens
  Qwen2.5-14B's shape     64 texts with prompts of 1,024 tokens and 64 new ones; and again, the prompts' blocks cached

Every measurement has processes of its own: torchrun starts one a card, and this file again in each of them.
"""

from __future__ import annotations

import argparse
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
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
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


def engine(options: argparse.Namespace, size: int) -> LLM:
    """Rank 0's engine on `size` cards; on the other ranks this serves rank 0, and then ends the process."""
    if size > 1:
        pagedlab.distributed.load_model = random_model  # type: ignore[assignment]
        if rank := int(os.environ["RANK"]):
            pagedlab.distributed.serve_rank(rank, size, pagedlab.distributed.torchrun_store(size))
            sys.exit()
    model = random_model(options.folder, options.device, options.dtype) if size == 1 else options.folder
    how = {"device": options.device, "dtype": options.dtype, "tensor_parallel": size, "verbose": False}
    return LLM(model, **how, **MODES[options.mode])


def requests(options: argparse.Namespace, vocabulary: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of random ids, and what is asked of each."""
    rng = random.Random(0)
    sizes = [(rng.randint(*options.prompt), rng.randint(*options.answer)) for _ in range(options.requests)]
    prompts = [[rng.randrange(vocabulary) for _ in range(n)] for n, _ in sizes]
    return prompts, [SamplingParams(max_tokens=n, ignore_eos=True) for _, n in sizes]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the workload once, and again with its prompts cached."""
    size, began = options.cards, time.perf_counter()
    with engine(options, size) as llm:
        started = time.perf_counter()
        prompts, params = requests(options, llm.model.vocab_size)
        llm.warm_up()
        llm.generate([p[::-1] for p in prompts], SamplingParams(max_tokens=8, ignore_eos=True))
        warm, times = time.perf_counter(), []
        for _ in range(2):
            again = time.perf_counter()
            llm.generate(prompts, params)
            times.append(time.perf_counter() - again)
            stats = llm.stats
            times.append(stats.steps)
        seconds, steps, cached_seconds, cached_steps = times
        new, config = sum(p.max_tokens for p in params), llm.model.module.config
        return {
            "ranks": size,
            "mode": options.mode,
            "start_s": round(started - began, 2),
            "warm_up_s": round(warm - started, 2),
            "seconds": round(seconds, 3),
            "prompt_tokens": sum(map(len, prompts)),
            "output_tokens": new,
            "output_tokens_per_s": round(new / seconds, 1),
            "steps": steps,
            "ms_a_step": round(1e3 * seconds / steps, 3),
            "with_prompts_cached": {
                "seconds": round(cached_seconds, 3),
                "output_tokens_per_s": round(new / cached_seconds, 1),
                "ms_a_step": round(1e3 * cached_seconds / cached_steps, 3),
            },
            "num_blocks": llm.pool.num_blocks,
            "kv_bytes_per_block_and_rank": llm.cache.bytes_per_block,
            "sent_bytes_per_token_and_rank": ring_bytes(all_reduce_bytes(config, llm.cache.keys.element_size()), size),
            "told_bytes": llm.model.ranks.plan_bytes if size > 1 else 0,
        }


def in_processes(shape: str, cards: int, mode: str, options: argparse.Namespace, asked: list[str]) -> dict[str, Any]:
    """`measure` in one process a card."""
    with tempfile.TemporaryDirectory() as folder:
        transformers.Qwen2Config(**SHAPES[shape], **COMMON).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(folder)
        Path(folder, "model.safetensors").touch()  # where there should be weights
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cards), __file__]
        how = ["--folder", folder, "--cards", str(cards), "--mode", mode, "--device", options.device]
        done = subprocess.run([*run, *how, "--dtype", options.dtype, *asked], stdout=subprocess.PIPE, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    print(shape, json.dumps(row), flush=True)
    return row


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
    # What a process of a measurement is told:
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--cards", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt", type=int, nargs=2, default=(100, 1024), metavar=("FROM", "TO"))
    parser.add_argument("--answer", type=int, nargs=2, default=(100, 1024), metavar=("FROM", "TO"))
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(measure(options)))
        return
    report: dict[str, Any] = {"machine": machine(options.device)}
    for shape in options.shapes:
        large = shape == "Qwen2.5-14B"
        asked = {"requests": (64,), "prompt": (1024, 1024), "answer": (64, 64)} if large else {}
        for name in ("requests", "prompt", "answer"):
            given = getattr(options, name)
            asked.setdefault(name, given if isinstance(given, (tuple, list)) else (given,))
        words = [word for name, values in asked.items() for word in (f"--{name}", *map(str, values))]
        rows = [
            in_processes(shape, cards, mode, options, words)
            for cards in options.ranks
            for mode in options.modes
            if mode == "graphs" or not large
        ]
        report[shape] = {"requests": asked, "results": rows}
        if options.json:
            Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
