"""An engine under random load for a while: no block lost, no wrong token, no memory that grows.

python benchmarks/soak.py [--minutes 10] [--model FOLDER] [--seed 0] [--json FILE]

Requests arrive at random, greedy ones and samples, on a pool that is too small for them, so that some are
preempted; a tenth is aborted. In turns of one minute each, `pagedlab.LLM` preempts by recompute and by swap, and
`pagedlab_fast.LLM` by recompute. Every answer is compared with that of an engine with enough blocks, in float64, where
rounding is no excuse. Once a minute the engine is drained: then every block must be free or cached.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter

import psutil
import torch
from common import Result, command_line

import pagedlab_fast
from pagedlab import LLM, Completion, SamplingParams
from pagedlab.model import TINY_MODEL, Model, load_model
from pagedlab.recipes.swap import SwappingScheduler

BLOCK = 4
# The Triton kernels do not compute in float64.
COMMON = {"block_size": BLOCK, "verbose": False, "attention_backend": "torch"}
NEW = 24
Kind = tuple[list[int], SamplingParams, list[list[int]]]  # prompt, parameters, and the answers that they must give


def load_kinds(model: Model, rng: random.Random, count: int) -> list[Kind]:
    """Kinds of requests: some prompts begin alike, so that the cache has hits."""
    common = [rng.randrange(model.vocab_size) for _ in range(40)]
    kinds = []
    for i in range(count):
        prompt = common[: rng.randint(0, 40)] + [rng.randrange(model.vocab_size) for _ in range(rng.randint(1, 30))]
        params = rng.choice(
            [
                SamplingParams(max_tokens=rng.randint(1, 2 * NEW), ignore_eos=True),
                SamplingParams(max_tokens=NEW, temperature=0.8, n=rng.choice([1, 2, 4]), seed=i, ignore_eos=True),
            ]
        )
        alone = LLM(model, num_blocks=512, prefix_caching=False, **COMMON)
        (expected,) = alone.generate(prompt, params)
        kinds.append((prompt, params, token_ids(expected)))
    return kinds


def token_ids(completion: Completion) -> list[list[int]]:
    return [output.token_ids for output in completion.outputs]


def memory() -> dict[str, int]:
    """MiB of this process, and the tensors alive."""
    gc.collect()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return {"MiB": psutil.Process().memory_info().rss // 2**20, "tensors": tensors}


class Load:
    """Random requests to one engine.

    Args:
        llm: the engine.
        kinds: of requests.
        rng: of the requests and of the moments at which they arrive.
    """

    def __init__(self, llm: LLM, kinds: list[Kind], rng: random.Random) -> None:
        self.llm = llm
        self.kinds = kinds
        self.rng = rng
        self.counts = Counter[str]()
        self.expected: dict[int, list[list[int]]] = {}  # of each live request, the answers that it must give

    def step(self, is_over: bool) -> None:
        """A new request or none, an abort or none, and a step of the engine."""
        if not is_over and len(self.expected) < 24 and self.rng.random() < 0.7:
            prompt, params, expected = self.rng.choice(self.kinds)
            self.counts["requests"] += 1
            self.expected[self.llm.add(prompt, params)] = expected
        if self.expected and self.rng.random() < 0.01:
            victim = self.rng.choice(list(self.expected))
            del self.expected[victim]
            self.counts["aborted"] += 1
            self.llm.abort(victim)
        for completion in self.llm.step():
            if completion.finished and completion.request_id in self.expected:
                assert token_ids(completion) == self.expected.pop(completion.request_id), "a wrong token"
                self.counts["right"] += 1


def soak_minute(load: Load, seconds: float) -> None:
    """Random load for some seconds, then none until all requests are finished."""
    llm, counts = load.llm, load.counts
    counts.clear()
    preemptions = llm.stats.preemptions
    until = time.monotonic() + seconds
    llm.cache.keys.fill_(torch.nan)
    llm.cache.values.fill_(torch.nan)
    llm.prefix_cache.clear()
    while load.expected or time.monotonic() < until:
        load.step(is_over=time.monotonic() >= until)
    counts["preempted"] = llm.stats.preemptions - preemptions
    llm.pool.check([])
    assert llm.pool.num_used == 0


def main() -> None:
    parser = command_line(__doc__, model=str(TINY_MODEL), minutes=10.0, seed=0)
    parser.add_argument("--kinds", type=int, default=60, help="how many different requests there are")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    model = load_model(args.model, dtype="float64")
    kinds = load_kinds(model, rng, args.kinds)
    options = {"num_blocks": 64, "max_batch_tokens": 64} | COMMON
    engines = {
        "recompute": LLM(model, **options),
        "swap": LLM(model, scheduler=SwappingScheduler, **options),
        "fast": pagedlab_fast.LLM(model, **options),
    }
    loads = {how: Load(llm, kinds, rng) for how, llm in engines.items()}
    result = Result("an engine under random load, see benchmarks/soak.py", args.json, model=model.name)
    for minute in range(max(1, round(args.minutes))):
        how = list(loads)[minute % 3]
        load = loads[how]
        soak_minute(load, 60 * min(1, args.minutes))
        result.add("requests", how, load.counts["requests"], "a minute", **load.counts, **memory())


if __name__ == "__main__":
    main()
