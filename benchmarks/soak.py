"""An engine under random load for a while: no block lost, no wrong token, no memory that grows.

python benchmarks/soak.py --minutes 10 [--model FOLDER] [--seed 0]

Requests arrive at random, greedy ones, samples and beams, on a pool that is too small for them, so that they give way
by recompute and by swap in turns of one minute each; a tenth is aborted somewhere on the way. Every text is compared
with the one that an engine with room for everybody gives for the same prompt, in float64, where rounding is no excuse;
in float32, which the Triton kernels take, one text in a hundred may part from it. Once a minute the engine is drained:
then every block must be free or cached, and the process's memory and the tensors alive are printed.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections import Counter
from typing import Any

import torch

from pagedlab import LLM, Completion, SamplingParams
from pagedlab.model import TINY_MODEL, Model, load_model

BLOCK = 4
NEW = 24


def load_kinds(model: Model, rng: random.Random) -> list[tuple[list[int], SamplingParams, Any]]:
    """Prompts and parameters with what they must give: some prompts begin alike, so that the cache has hits."""
    common = [rng.randrange(model.vocab_size) for _ in range(40)]
    kinds = []
    for i in range(60):
        prompt = common[: rng.randint(0, 40)] + [rng.randrange(model.vocab_size) for _ in range(rng.randint(1, 30))]
        params = rng.choice(
            [
                SamplingParams(max_tokens=rng.randint(1, 2 * NEW), ignore_eos=True),
                SamplingParams(max_tokens=NEW, temperature=0.8, n=rng.choice([1, 2, 4]), seed=i, ignore_eos=True),
                SamplingParams(max_tokens=NEW // 2, beam_width=rng.choice([2, 4])),
            ]
        )
        (expected,) = LLM(model, num_blocks=512, block_size=BLOCK, prefix_caching=False, verbose=False).generate(
            prompt, params
        )
        kinds.append((prompt, params, texts(expected)))
    return kinds


def texts(completion: Completion) -> list[list[int]]:
    return [output.token_ids for output in completion.outputs]


def memory() -> str:
    gc.collect()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[1]) * resource.getpagesize() / 2**20
    return f"{now:,.0f} MiB now, {peak:,.0f} MiB at most, {tensors} tensors"


def soak_minute(llm: LLM, kinds: list[Any], rng: random.Random, seconds: float) -> Counter[str]:
    """Random load for so long, then nothing until all is done; what happened, counted."""
    counts, live, until = Counter[str](), {}, time.monotonic() + seconds
    llm.cache.keys.fill_(torch.nan)
    llm.cache.values.fill_(torch.nan)
    if llm.prefix_cache is not None:
        llm.prefix_cache.clear()
    while live or time.monotonic() < until:
        if time.monotonic() < until and len(live) < 24 and rng.random() < 0.7:
            prompt, params, expected = rng.choice(kinds)
            live[llm.add(prompt, params)] = expected
            counts["requests"] += 1
        if live and rng.random() < 0.01:
            victim = rng.choice(list(live))
            llm.abort(victim)
            del live[victim]
            counts["aborted"] += 1
        for completion in llm.step():
            if completion.finished and completion.request_id in live:
                right = texts(completion) == live.pop(completion.request_id)
                assert right or llm.model.module.dtype != torch.float64, "a wrong token"
                counts["right" if right else "parted"] += 1
        counts.update(how for _, how in llm.plan.preempted)
    llm.pool.check([])
    assert llm.pool.num_used == 0
    assert counts["parted"] <= counts["right"] / 100, "more texts parted than rounding explains"
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--model", default=str(TINY_MODEL))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float64")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    model = load_model(args.model, dtype=args.dtype)
    kinds = load_kinds(model, rng)
    options: dict[str, Any] = {"num_blocks": 64, "block_size": BLOCK, "max_batch_tokens": 64, "verbose": False}
    engines = [LLM(model, preemption=how, **options) for how in ("recompute", "swap")]
    total = Counter[str]()
    for minute in range(max(1, round(args.minutes))):
        total += soak_minute(engines[minute % 2], kinds, rng, 60 * min(1, args.minutes))
        print(f"minute {minute + 1}: {dict(total)}; {memory()}", flush=True)


if __name__ == "__main__":
    main()
