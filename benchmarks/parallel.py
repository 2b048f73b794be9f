"""Tokens a second of one card and of several, each step a CUDA graph.

python benchmarks/parallel.py [--shapes Qwen2.5-0.5B] [--ranks 1 2] [--json FILE]

Workloads of random token ids. Weights are random too, drawn on each card, so that nothing is read or written. Each is
measured after a warm-up, and again with the prompts' blocks cached; then a single sequence writes 256 tokens:

  Qwen2.5-0.5B's shape    256 requests sent at once, prompts and answers of 100 to 1,024 tokens
  Qwen2.5-7B's shape      the same requests
  Qwen2.5-14B's shape     64 requests with prompts of 1,024 tokens and 64 new tokens

Every measurement has processes of its own: torchrun starts one a card, and each of them runs this file again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from common import Result, command_line, requests

import pagedlab.distributed
from pagedlab import LLM, SamplingParams
from pagedlab.distributed.shards import all_reduce_bytes, ring_bytes
from pagedlab.model import TINY_MODEL, Model, paged_hook


@dataclass
class Shape:
    """A model's sizes, and the requests that it gets.

    Args:
        config: of `transformers.Qwen2Config`.
        requests: how many.
        prompt: tokens of a prompt, from and to.
        answer: tokens of an answer, from and to.
    """

    config: dict[str, Any]
    requests: int
    prompt: tuple[int, int]
    answer: tuple[int, int]


def config(vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, tied: bool) -> Any:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
        "rope_theta": 1e6,
        "bos_token_id": None,
        "eos_token_id": None,
    }


SHAPES = {
    "tiny": Shape(config(4096, 64, 128, 2, 4, 2, False), 4, (10, 20), (5, 9)),
    "Qwen2.5-0.5B": Shape(config(151936, 896, 4864, 24, 14, 2, True), 256, (100, 1024), (100, 1024)),
    "Qwen2.5-7B": Shape(config(152064, 3584, 18944, 28, 28, 4, False), 256, (100, 1024), (100, 1024)),
    "Qwen2.5-14B": Shape(config(152064, 5120, 13824, 48, 40, 8, False), 64, (1024, 1024), (64, 64)),
}


def random_model(
    folder: str, device: str, dtype: str, verbose: bool = False, prepare: Callable[[Any], None] | None = None
) -> Model:
    """As `pagedlab.model.load_model`, with weights that are drawn on the device, the same ones on all."""
    transformers.AttentionInterface.register("pagedlab", paged_hook)
    model_config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.device(device):
        kind = {"dtype": getattr(torch, dtype), "attn_implementation": "pagedlab"}
        module = transformers.AutoModelForCausalLM.from_config(model_config, **kind).eval()
    if prepare:
        prepare(module)
    return Model(module, transformers.AutoTokenizer.from_pretrained(folder), Path(folder).name, "random weights")


def engine(one: argparse.Namespace) -> LLM:
    """Rank 0's engine on `one.cards`. The other ranks serve rank 0 here, and then end their process."""
    model: Any = one.folder
    if one.cards == 1:
        model = random_model(one.folder, one.device, one.dtype)
    else:
        pagedlab.distributed.load_model = random_model  # type: ignore[assignment]
        rank = int(os.environ["RANK"])
        if rank:
            pagedlab.distributed.serve_rank(rank, one.cards, pagedlab.distributed.torchrun_store(one.cards))
            sys.exit()
    options = {"device": one.device, "dtype": one.dtype, "tensor_parallel": one.cards, "verbose": False}
    return LLM(model, **options)


def timed(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> dict[str, float]:
    began = time.perf_counter()
    llm.generate(prompts, params)
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 3),
        "output_tokens_per_s": round(sum(each.max_tokens for each in params) / seconds, 1),
        "steps": llm.stats.steps,
        "ms_a_step": round(1e3 * seconds / llm.stats.steps, 3),
    }


def measure(one: argparse.Namespace) -> dict[str, Any]:
    """Run the workload once, and again with its prompts cached, in the processes that torchrun started."""
    with engine(one) as llm:
        shape = SHAPES[one.shape]
        prompts, lengths = requests(shape.requests, shape.prompt, shape.answer, llm.model.vocab_size, 0)
        params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
        llm.warm_up()
        llm.generate([prompt[::-1] for prompt in prompts], SamplingParams(max_tokens=8, ignore_eos=True))
        vector_bytes = all_reduce_bytes(llm.model.module.config, llm.cache.keys.element_size())
        return {
            "shape": one.shape,
            "ranks": one.cards,
            "prompt_tokens": sum(map(len, prompts)),
            "output_tokens": sum(lengths),
            **timed(llm, prompts, params),
            "with_prompts_cached": timed(llm, prompts, params),
            "one_sequence": timed(llm, [prompts[0][:128]], [SamplingParams(max_tokens=256, ignore_eos=True)]),
            "sent_bytes_per_token_and_rank": ring_bytes(vector_bytes, one.cards),
        }


def in_processes(shape: str, cards: int, options: argparse.Namespace) -> dict[str, Any]:
    """Call `measure` in one process a card."""
    with tempfile.TemporaryDirectory() as folder:
        transformers.Qwen2Config(**SHAPES[shape].config).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(folder)
        Path(folder, "model.safetensors").touch()  # the loader wants a file of weights
        one = {"folder": folder, "shape": shape, "cards": cards, "device": options.device, "dtype": options.dtype}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cards)]
        command = [*torchrun, __file__, "--one", json.dumps(one)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = command_line(__doc__, device="cuda", dtype="bfloat16")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--shapes", nargs="+", default=["Qwen2.5-0.5B", "Qwen2.5-7B", "Qwen2.5-14B"], choices=SHAPES)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # what a process is to measure
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(argparse.Namespace(**json.loads(options.one)))))
        return
    result = Result("one card and several, see benchmarks/parallel.py", options.json, results=[])
    for shape, cards in itertools.product(options.shapes, options.ranks):
        row = in_processes(shape, cards, options)
        result.content["results"].append(row)  # notebook 11 reads these
        result.add(shape, f"{cards} cards", row["output_tokens_per_s"], "output tokens/s")
        cached = row["with_prompts_cached"]["output_tokens_per_s"]
        result.add(f"{shape}, cached", f"{cards} cards", cached, "output tokens/s")


if __name__ == "__main__":
    main()
