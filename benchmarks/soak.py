"""An engine under random load for a while: no block lost, no wrong token, no memory that grows.

python benchmarks/soak.py [--minutes 10] [--model FOLDER] [--seed 0] [--json FILE]

Requests arrive at random, greedy ones, samples and beams, on a pool that is too small for them, so that some are
preempted, by recompute and by swap in turns of one minute each; a tenth is aborted. Every answer is compared with that
of an engine with enough blocks, in float64, where rounding is no excuse. In float32, which the Triton kernels take, one
answer in a hundred may differ. Once a minute the engine is drained: then every block must be free or cached.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections import Counter
from typing import Any

import torch
from common import Result, command_line, read_or_nothing

from pagedlab import LLM, Completion, SamplingParams
from pagedlab.model import TINY_MODEL, Model, load_model

BLOCK = 4
NEW = 24


def load_kinds(model: Model, rng: random.Random, count: int) -> list[tuple[list[int], SamplingParams, Any]]:
    """Prompts and parameters with what they must give: some prompts begin alike, so that the cache has hits."""
    common = [rng.randrange(model.vocab_size) for _ in range(40)]
    kinds = []
    for i in range(count):
        prompt = common[: rng.randint(0, 40)] + [rng.randrange(model.vocab_size) for _ in range(rng.randint(1, 30))]
        params = rng.choice(
            [
                SamplingParams(max_tokens=rng.randint(1, 2 * NEW), ignore_eos=True),
                SamplingParams(max_tokens=NEW, temperature=0.8, n=rng.choice([1, 2, 4]), seed=i, ignore_eos=True),
                SamplingParams(max_tokens=NEW // 2, beam_width=rng.choice([2, 4])),
            ]
        )
        alone = LLM(model, num_blocks=512, block_size=BLOCK, prefix_caching=False, verbose=False)
        (expected,) = alone.generate(prompt, params)
        kinds.append((prompt, params, token_ids(expected)))
    return kinds


def token_ids(completion: Completion) -> list[list[int]]:
    return [output.token_ids for output in completion.outputs]


def memory() -> dict[str, int]:
    """MiB of this process, now and at most, and the tensors alive."""
    gc.collect()
    now = int(read_or_nothing("/proc/self/statm").split()[1]) * resource.getpagesize() // 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return {"MiB now": now, "MiB at most": peak, "tensors": tensors}


def soak_minute(llm: LLM, kinds: list[Any], rng: random.Random, seconds: float) -> Counter[str]:
    """Random load for some seconds, then none until all requests are finished: what happened, counted."""
    counts = Counter[str]()
    live: dict[int, list[list[int]]] = {}  # of each request, the answers that it must give
    until = time.monotonic() + seconds
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
                is_right = token_ids(completion) == live.pop(completion.request_id)
                assert is_right or llm.model.module.dtype != torch.float64, "a wrong token"
                counts["right" if is_right else "different"] += 1
        counts.update(how for _, how in llm.plan.preempted)
    llm.pool.check([])
    assert llm.pool.num_used == 0
    assert counts["different"] <= counts["right"] / 100, "more answers differ than rounding explains"
    return counts


def main() -> None:
    parser = command_line(__doc__, model=str(TINY_MODEL), dtype="float64", minutes=10.0, seed=0)
    parser.add_argument("--kinds", type=int, default=60, help="how many different requests there are")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    model = load_model(args.model, dtype=args.dtype)
    kinds = load_kinds(model, rng, args.kinds)
    options: dict[str, Any] = {"num_blocks": 64, "block_size": BLOCK, "max_batch_tokens": 64, "verbose": False}
    engines = {how: LLM(model, preemption=how, **options) for how in ("recompute", "swap")}
    result = Result("an engine under random load, see benchmarks/soak.py", args.json, model=model.name)
    for minute in range(max(1, round(args.minutes))):
        how = ("recompute", "swap")[minute % 2]
        counts = soak_minute(engines[how], kinds, rng, 60 * min(1, args.minutes))
        result.add("requests", how, counts["requests"], "a minute", **counts, **memory())


if __name__ == "__main__":
    main()
