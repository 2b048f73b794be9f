"""What share of the prompts' tokens the prefix cache finds, for prompts that arrive together and one at a time.

python benchmarks/bursts.py [--requests 2000] [--rounds 3] [--json FILE]

Three loads over pools that are too small for all they share, sixteen requests at once: "chat" (every second request
is the next turn of a chat; 700 blocks of 16), "system prompt" (one of twenty, and a question; 500) and "tree" (a path
of random length down a tree of segments; 400). Requests arrive one a step, or sixteen at once when the last sixteen
have ended. In the third row, blocks are found only after the step that computes them. Scheduler, pool and
cache are the engine's; no model runs, the answers are given. Rates are found tokens over prompt tokens, and depend on
no clock. Each round has another seed.
"""

from __future__ import annotations

import random

from common import Result, command_line
from pagedlab_lessons.traces import shared_prompts

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.prefix import PrefixCache
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Scheduler, Sequence

Load = list[tuple[list[int], list[int]]]  # prompt and answer
LIVE = 16


class FoundLater(PrefixCache):
    """Blocks are found once they are computed, not before."""

    def register(self, *_, **__):
        """The scheduler calls this before the step: too early."""


def tree(num_requests: int, seed: int) -> Load:
    """Paths from the root of a tree: 4 children a node, 5 levels deep, segments of 16 to 64 tokens, then a question."""
    chance = random.Random(seed)

    def some(fewest, most):
        return [chance.randrange(4096) for _ in range(chance.randint(fewest, most))]

    segments: dict[tuple[int, ...], list[int]] = {}
    requests = []
    for _ in range(num_requests):
        path = tuple(chance.choices(range(4), [8, 4, 2, 1], k=chance.randint(1, 5)))
        prompt: list[int] = []
        for depth in range(len(path)):
            prompt += segments.setdefault(path[: depth + 1], some(16, 64))
        requests.append((prompt + some(8, 40), some(8, 32)))
    return requests


def rate(load: Load, num_blocks: int, burst: int, cache_class: type = PrefixCache) -> float:
    """Share of the prompts' tokens that the cache finds, `burst` requests arriving at a time."""
    pool = BlockPool(num_blocks, 16)
    cache = cache_class(pool)
    scheduler = Scheduler(pool, 16_384, LIVE, cache)
    coming = list(enumerate(load))[::-1]
    live = 0
    computed = 0
    while coming or live:
        for _ in range(min(burst, len(coming)) if live <= LIVE - burst else 0):
            number, (prompt, answer) = coming.pop()
            scheduler.add(Sequence(number, BlockTable(pool), prompt[:], len(prompt), SamplingParams(), len(answer)))
            live += 1
        for sequence, start, stop, _ in scheduler.schedule().chunks:
            computed += max(0, min(stop, sequence.num_prompt_tokens) - start)
            PrefixCache.register(cache, sequence.table, sequence.token_ids[:stop])
            if stop == len(sequence.token_ids):
                answer = load[sequence.request_id][1]
                sequence.token_ids.append(answer[sequence.num_outputs])
                if sequence.num_outputs == len(answer):
                    sequence.finish_reason = "length"
                    scheduler.remove(sequence)
                    live -= 1
    return 1 - computed / sum(len(prompt) for prompt, _ in load)


def loads(num_requests: int, seed: int) -> dict[str, tuple[Load, int]]:
    """Of each kind of load, one of this seed, and the blocks of its pool."""
    return {
        "chat": (shared_prompts(num_requests, 20, 0.5, seed=seed), 700),
        "system prompt": (shared_prompts(num_requests, 20, 0.0, seed=seed), 500),
        "tree": (tree(num_requests, seed), 400),
    }


def main() -> None:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--requests", type=int, default=2000)
    args = parser.parse_args()
    result = Result("what the prefix cache finds, see benchmarks/bursts.py", args.json, requests=args.requests)
    unit = "of the prompt tokens"
    for seed in range(args.rounds):
        for name, (load, num_blocks) in loads(args.requests, seed).items():
            result.add(name, "one at a time", rate(load, num_blocks, 1), unit)
            result.add(name, "in sixteens", rate(load, num_blocks, LIVE), unit)
            result.add(name, "in sixteens, found later", rate(load, num_blocks, LIVE, FoundLater), unit)


if __name__ == "__main__":
    main()
