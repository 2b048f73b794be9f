"""What kv_cache_dtype="fp8" costs in accuracy and gains in blocks and speed, beside a cache in the model's dtype.

python benchmarks/fp8.py [--model FOLDER] [--tiny] [--json FILE]

  quality      texts of this repository in one forward pass each: nats of KL divergence a token, share of tokens with
               the same likeliest next token, perplexity; "torch" is the model's dtype on another backend, a yardstick
  greedy       answers of both caches: share of tokens before the first that differs
  pass key     a number in a long text that the model is asked for: share of right answers
  kernel       microseconds of attention for one new token a sequence, one layer, head shapes of three models
  blocks       blocks that fit into the memory that is free
  long         output tokens a second, 32 prompts of 12,000
  small pool   the same in a pool whose bytes hold 5/8 of the prompts in the model's dtype

On an H200 it takes some minutes; with --tiny it runs in small on a CPU. Prompts of `long` are random tokens.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention import seconds
from attention_methods import HEADS, Case, Inputs, Run, decode_case
from common import Result, command_line, give_back, requests

from pagedlab import LLM, BlockPool, BlockTable, SamplingParams
from pagedlab.attention import get_backend, paged_attention
from pagedlab.batch import Batch, build_batch
from pagedlab.fp8 import FP8, quantise
from pagedlab.model import Model, load_model
from pagedlab.scheduler import Chunk, Request, Sequence

ROOT = Path(__file__).resolve().parents[1]
TEXTS = (
    "data/tiny-qwen2/heldout.txt",
    "docs/kernel.md",
    "docs/measured.md",
    "docs/architecture.md",
    "docs/teaching.md",
)
KINDS = ("auto", "fp8")
BLOCK = 16
QUESTIONS = [
    "Write a Python function that merges two sorted lists.",
    "Explain what a hash table is to a child.",
    "List the steps to bake bread.",
    "What is the difference between a process and a thread?",
    "Write a short story about a fox who learns to swim.",
    "Write a SQL query that counts the orders of each customer.",
    "Why is the sky blue?",
    "Translate into French: The library closes at six.",
]
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        text: tokens of each text, at most.
        answer: tokens of each greedy answer.
        fillers: times that the filler is repeated around a pass key.
        keys: pass keys.
        contexts: keys of a sequence in the kernel's part.
        batch: sequences there.
        prompts, prompt, new: of the long workload.
    """

    text: int = 4096
    answer: int = 256
    fillers: int = 200
    keys: int = 40
    contexts: tuple[int, ...] = (4096, 16384, 32768)
    batch: int = 32
    prompts: int = 32
    prompt: int = 12000
    new: int = 256


TINY = Sizes(48, 8, 2, 2, (32,), 2, 4, 40, 8)


# ---------------------------------------------------------------------- quality


def batch_of(model: Model, ids: list[int]) -> tuple[Batch, int]:
    """A step that computes the logits of all tokens of a text, and the blocks that it needs."""
    num_blocks = -(-len(ids) // BLOCK)
    sequence = Sequence("text", BlockTable(BlockPool(num_blocks, BLOCK)), ids, 0, len(ids), score_from=0)
    sequence.table.append(len(ids))
    chunk = Chunk(Request(0, [sequence], 1, 1), sequence, 0, len(ids))
    return build_batch([chunk], model.device), num_blocks


def logits_of(model: Model, ids: list[int], dtype: torch.dtype | None, backend: str) -> torch.Tensor:
    """Logits [T, V]. Every token attends through the cache, so it reads what was rounded."""
    batch, num_blocks = batch_of(model, ids)
    return model.forward(batch, model.kv_cache(num_blocks, BLOCK, dtype), get_backend(backend))


def compared(expected: torch.Tensor, found: torch.Tensor, ids: list[int]) -> tuple[torch.Tensor, ...]:
    """Of each token: the KL divergence, whether the likeliest token is the same, and the nats of the next token."""
    p, q = (logits.float().log_softmax(dim=1) for logits in (expected, found))
    kl = F.kl_div(q, p, reduction="none", log_target=True).sum(dim=1)
    same = (p.argmax(dim=1) == q.argmax(dim=1)).float()
    nats = F.nll_loss(q[:-1], torch.tensor(ids[1:], device=q.device), reduction="none")
    return kl, same, nats


def measure_quality(result: Result, model: Model, sizes: Sizes) -> None:
    variants: dict[str, tuple[torch.dtype | None, str]] = {"auto": (None, "auto"), "fp8": (FP8, "auto")}
    variants["torch"] = (None, "torch")
    figures: dict[str, list[tuple[torch.Tensor, ...]]] = {name: [] for name in variants}
    for path in TEXTS:
        ids = model.encode((ROOT / path).read_text(encoding="utf-8"))[: sizes.text]
        expected = logits_of(model, ids, *variants["auto"])
        for name, variant in variants.items():
            figures[name].append(compared(expected, logits_of(model, ids, *variant), ids))
    for name, of_texts in figures.items():
        kl, same, nats = map(torch.cat, zip(*of_texts, strict=True))
        tail = {"99th percentile": float(kl.quantile(0.99)), "tokens": len(kl)}
        result.add("KL divergence", name, max(0.0, float(kl.mean())), "nats a token", **tail)
        result.add("same likeliest token", name, 100 * float(same.mean()), "%")
        result.add("perplexity", name, float(nats.mean().exp()), "equally likely tokens")


# ---------------------------------------------------------------------- answers


def measure_greedy(result: Result, engines: dict[str, LLM], sizes: Sizes) -> None:
    chats: list[Any] = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = SamplingParams(max_tokens=sizes.answer, ignore_eos=True)
    answers = {
        kind: [completion.outputs[0].token_ids for completion in llm.generate(chats, params)]
        for kind, llm in engines.items()
    }
    equal = torch.tensor(answers["auto"]) == torch.tensor(answers["fp8"])  # [questions, tokens]
    shares = equal.cumprod(dim=1).double().mean(dim=1).tolist()
    result.add("greedy", "fp8", 100 * statistics.fmean(shares), "% before the first other token", each=shares)


def measure_pass_keys(result: Result, engines: dict[str, LLM], sizes: Sizes, rng: random.Random) -> None:
    keys = [str(rng.randrange(10_000, 100_000)) for _ in range(sizes.keys)]
    chats: list[Any] = []
    for key in keys:
        before = rng.randrange(sizes.fillers)
        hidden = f"The pass key is {key}. Remember it. {key} is the pass key. "
        text = FILLER * before + hidden + FILLER * (sizes.fillers - before)
        chats.append([{"role": "user", "content": f"{text}\nWhat is the pass key? Answer with the number alone."}])
    for kind, llm in engines.items():
        texts = [c.outputs[0].text for c in llm.generate(chats, SamplingParams(max_tokens=16))]
        right = [key in text for key, text in zip(keys, texts, strict=True)]
        tokens = len(llm.model.encode(chats[0]))
        result.add("pass key", kind, 100 * statistics.fmean(right), "% right", prompts=len(keys), tokens=tokens)


# ---------------------------------------------------------------------- the kernel


def decode_runs(case: Case, device: str) -> dict[str, list[Run]]:
    """One new token a sequence, with each kind of cache, whose keys and values are the same. The seed is fixed.

    On a GPU there are several sets of tensors, together larger than its L2 cache, even in FP8.
    """
    inputs = Inputs(case, seed=0, rotate_bytes=1 << 29 if device == "cuda" else 0, device=device)
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    for q, k, v, *rest in map(inputs.paged, range(inputs.sets)):
        runs["auto"].append(partial(paged_attention, q, k, v, *rest))
        runs["fp8"].append(partial(paged_attention, q, in_fp8(k), in_fp8(v), *rest))
    return runs


def in_fp8(cache: torch.Tensor) -> Any:
    """The same cache in FP8, rounded in parts: a part in fp32 takes little memory."""
    parts = [quantise(part) for part in cache.split(4096)]
    values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(FP8)
    return type(parts[0])(values, torch.cat([part.scales for part in parts]))


def measure_kernel(result: Result, sizes: Sizes, device: str) -> None:
    for model, context in itertools.product(HEADS, sizes.contexts):
        runs = decode_runs(decode_case(model, sizes.batch, context), device)
        exact, rounded = (of_kind[0]().double() for of_kind in runs.values())
        error = float((rounded - exact).norm() / exact.norm())
        for kind, of_kind in runs.items():
            more = {"error": error} if kind == "fp8" else {}
            result.add(f"{model} {sizes.batch} x {context}", kind, 1e6 * seconds_of(of_kind, device), "us", **more)
        runs.clear()
        give_back()


def seconds_of(runs: list[Run], device: str) -> float:
    """Seconds of a call, on a GPU in a CUDA graph."""
    if device == "cuda":
        return seconds(runs)
    return timeit.timeit(lambda: [run() for run in runs], number=1) / len(runs)


# ---------------------------------------------------------------------- the engine


def measure_long(result: Result, workload: str, engines: Iterator[tuple[str, LLM]], sizes: Sizes, seed: int) -> None:
    """The second of two runs counts: kernels and graphs are there by then. The runs have different prompts."""
    for kind, llm in engines:
        shape = (sizes.prompt, sizes.prompt), (sizes.new, sizes.new)
        params = SamplingParams(max_tokens=sizes.new, ignore_eos=True)
        for is_counted in (False, True):
            llm.prefix_cache.clear()
            before = llm.stats.preemptions
            prompts, _ = requests(sizes.prompts, *shape, llm.model.vocab_size, seed + is_counted)
            began = time.perf_counter()
            llm.generate(prompts, params)
            seconds = time.perf_counter() - began
            if is_counted:
                more = {"preemptions": llm.stats.preemptions - before, "blocks": llm.pool.num_blocks}
                result.add(workload, kind, sizes.prompts * sizes.new / seconds, "output tokens/s", **more)
        del llm
        give_back()


def small_engines(model: Model, sizes: Sizes) -> Iterator[tuple[str, LLM]]:
    """Engines whose pools have the same bytes, too few for all prompts in the model's dtype."""
    of_prompt = -(-(sizes.prompt + sizes.new) // BLOCK)
    plain, packed = (model.kv_cache(1, BLOCK, dtype).bytes_per_block for dtype in (None, FP8))
    num_bytes = sizes.prompts * of_prompt * 5 // 8 * plain
    for kind, bytes_per_block in zip(KINDS, (plain, packed), strict=True):
        yield kind, LLM(model, kv_cache_dtype=kind, num_blocks=num_bytes // bytes_per_block, verbose=False)


def main() -> None:
    parser = command_line(__doc__, model=None, device="auto", dtype="auto", seed=0)
    parser.add_argument("--tiny", action="store_true", help="run in small, on a CPU")
    args = parser.parse_args()
    sizes = TINY if args.tiny else Sizes()
    model = load_model(args.model, "cpu" if args.tiny else args.device, args.dtype)
    dtype = str(model.module.dtype).removeprefix("torch.")
    about = "a KV cache in FP8 beside one in the model's dtype, see benchmarks/fp8.py"
    result = Result(about, args.json, model=model.name, dtype=dtype, seed=args.seed)
    measure_quality(result, model, sizes)
    give_back()
    measure_kernel(result, sizes, model.device.type)
    for kind in KINDS:
        smallest = model.kv_cache(1, BLOCK, FP8 if kind == "fp8" else None)
        fit = smallest.free_bytes() // smallest.bytes_per_block
        result.add("blocks", kind, fit, f"blocks of {smallest.bytes_per_block / 2**10:g} KiB")
    # Twice the blocks that the long prompts need: both engines are in memory at once.
    num_blocks = 2 * sizes.prompts * -(-(sizes.prompt + sizes.new) // BLOCK)
    engines = {kind: LLM(model, kv_cache_dtype=kind, num_blocks=num_blocks, verbose=False) for kind in KINDS}
    measure_greedy(result, engines, sizes)
    measure_pass_keys(result, engines, sizes, random.Random(args.seed))
    measure_long(result, "long", iter(engines.items()), sizes, args.seed)
    engines.clear()
    give_back()
    measure_long(result, "small pool", small_engines(model, sizes), sizes, args.seed)


if __name__ == "__main__":
    main()
