"""Tokens a second of one card and of several, each step a CUDA graph.

python benchmarks/parallel.py [--shapes Qwen2.5-0.5B] [--ranks 1 2] [--json FILE]

Workloads of random token ids. Weights are random too: each shape's are drawn once and written into a temporary folder,
29 GB for the largest. Each is measured after a warm-up, and again with the prompts' blocks cached; then a single
sequence writes 256 tokens:

  Qwen2.5-0.5B's shape    256 requests sent at once, prompts and answers of 100 to 1,024 tokens
  Qwen2.5-7B's shape      the same requests
  Qwen2.5-14B's shape     64 requests with prompts of 1,024 tokens and 64 new tokens

With several ranks, the engine starts a process for each further card.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from common import Result, command_line, give_back, requests

from pagedlab import SamplingParams
from pagedlab.model import TINY_MODEL
from pagedlab_fast import LLM


@dataclass
class Shape:
    """A model's sizes, and the requests that it gets.

    Args:
        config: of the model.
        requests: how many.
        prompt: tokens of a prompt, from and to.
        answer: tokens of an answer, from and to.
    """

    config: transformers.Qwen2Config
    requests: int
    prompt: tuple[int, int]
    answer: tuple[int, int]


def config(
    vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, tied: bool
) -> transformers.Qwen2Config:
    return transformers.Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
    )


SHAPES = {
    "tiny": Shape(config(4096, 64, 128, 2, 4, 2, False), 4, (10, 20), (5, 9)),
    "Qwen2.5-0.5B": Shape(config(151936, 896, 4864, 24, 14, 2, True), 256, (100, 1024), (100, 1024)),
    "Qwen2.5-7B": Shape(config(152064, 3584, 18944, 28, 28, 4, False), 256, (100, 1024), (100, 1024)),
    "Qwen2.5-14B": Shape(config(152064, 5120, 13824, 48, 40, 8, False), 64, (1024, 1024), (64, 64)),
}


def write_random_weights(folder: str, shape: transformers.Qwen2Config, device: str, dtype: str) -> None:
    """Write a model with weights that are drawn on the device, and the tiny model's tokenizer."""
    torch.manual_seed(0)
    with torch.device(device):
        module = transformers.AutoModelForCausalLM.from_config(shape, dtype=getattr(torch, dtype))
    module.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(TINY_MODEL, trust_remote_code=False).save_pretrained(folder)


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


def measure(llm: LLM, shape: Shape, ranks: int) -> dict[str, Any]:
    """Run the workload once, again with its prompts cached, and a single sequence."""
    prompts, lengths = requests(shape.requests, shape.prompt, shape.answer, llm.model.vocab_size, 0)
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    llm.warm_up()
    llm.generate([prompt[::-1] for prompt in prompts], SamplingParams(max_tokens=8, ignore_eos=True))
    return {
        "ranks": ranks,
        "prompt_tokens": sum(map(len, prompts)),
        "output_tokens": sum(lengths),
        **timed(llm, prompts, params),
        "with_prompts_cached": timed(llm, prompts, params),
        "one_sequence": timed(llm, [prompts[0][:128]], [SamplingParams(max_tokens=256, ignore_eos=True)]),
    }


def main() -> None:
    parser = command_line(__doc__, device="cuda", dtype="bfloat16")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--shapes", nargs="+", default=["Qwen2.5-0.5B", "Qwen2.5-7B", "Qwen2.5-14B"], choices=SHAPES)
    args = parser.parse_args()
    result = Result("one card and several, see benchmarks/parallel.py", args.json, results=[])
    for name in args.shapes:
        with tempfile.TemporaryDirectory() as folder:
            write_random_weights(folder, SHAPES[name].config, args.device, args.dtype)
            for ranks in args.ranks:
                give_back()
                with LLM(folder, device=args.device, dtype=args.dtype, ranks=ranks, verbose=False) as llm:
                    row = {"shape": name, **measure(llm, SHAPES[name], ranks)}
                del llm  # its memory is given back before the next engine starts
                result.content["results"].append(row)  # notebook 11 reads these
                result.add(name, f"{ranks} cards", row["output_tokens_per_s"], "output tokens/s")
                cached = row["with_prompts_cached"]
                result.add(f"{name}, cached", f"{ranks} cards", cached["output_tokens_per_s"], "output tokens/s")


if __name__ == "__main__":
    main()
