"""Prompts that arrive together: what share of their tokens the prefix cache finds, against one arrival at a time.

python benchmarks/bursts.py [--requests 2000] [--seeds 3] [--json FILE]

Three loads over pools that are too small for all they share, sixteen texts live at once: "chat" (every second request
is the next turn of a chat; 700 blocks of 16), "system prompt" (one of twenty, and a question; 500) and "tree" (a path
of random length down a tree of segments; 400). Requests arrive one a step, or sixteen at once when the last sixteen
have ended. Without `register`, blocks are found only after the step that computes them. Scheduler, pool and
cache are the engine's; no model runs, the answers are given. Rates are found tokens over prompt tokens, and depend on
no clock.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import mean

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.lessons.traces import shared_prompts
from pagedlab.prefix import PrefixCache
from pagedlab.scheduler import Scheduler
from pagedlab.sequence import Request, Sequence

Load = list[tuple[list[int], list[int]]]  # prompt and answer
LIVE = 16


class Later(PrefixCache):
    """Blocks are found once they are computed, not before."""

    register = None  # type: ignore[assignment]


def tree(num_requests: int, seed: int) -> Load:
    """Paths from the root of a tree: 4 children a node, 5 levels deep, segments of 16 to 64 tokens, then a question."""
    chance = random.Random(seed)

    def some(fewest: int, most: int) -> list[int]:
        return [chance.randrange(4096) for _ in range(chance.randint(fewest, most))]

    segments: dict[tuple[int, ...], list[int]] = {}
    requests = []
    for _ in range(num_requests):
        path, prompt = tuple(chance.choices(range(4), [8, 4, 2, 1], k=chance.randint(1, 5))), list[int]()
        for depth in range(len(path)):
            prompt += segments.setdefault(path[: depth + 1], some(16, 64))
        requests.append((prompt + some(8, 40), some(8, 32)))
    return requests


def rate(load: Load, num_blocks: int, burst: int, cache_class: type[PrefixCache] = PrefixCache) -> float:
    """Share of the prompts' tokens that the cache finds, `burst` requests arriving at a time."""
    pool = BlockPool(num_blocks, 16)
    cache = cache_class(pool)
    scheduler = Scheduler(pool, 16_384, LIVE, cache)
    coming, live, computed = list(enumerate(load))[::-1], 0, 0
    while coming or live:
        for _ in range(min(burst, len(coming)) if live <= LIVE - burst else 0):
            number, (prompt, answer) = coming.pop()
            first = Sequence(f"r{number}", BlockTable(pool), prompt[:], 0, len(prompt))
            scheduler.add(Request(number, [first], 1, len(answer)))
            live += 1
        plan = scheduler.schedule()
        for request, text, start, stop in plan.chunks:
            computed += max(0, min(stop, text.num_prompt_tokens) - start)
            cache.insert(text.table, text.token_ids[:stop])
            if stop == len(text.token_ids):
                answer = load[request.request_id][1]
                text.token_ids.append(answer[text.num_outputs])
                if text.num_outputs == len(answer):
                    text.finish_reason = "length"
                    scheduler.remove(request)
                    live -= 1
    return 1 - computed / sum(len(prompt) for prompt, _ in load)


def measure(num_requests: int, seeds: int) -> dict[str, dict[str, float]]:
    """Mean rates over so many loads of each kind."""
    rows = {}
    for name, num_blocks in {"chat": 700, "system prompt": 500, "tree": 400}.items():
        columns: dict[str, list[float]] = {"one at a time": [], "in sixteens": [], "in sixteens, found later": []}
        for seed in range(seeds):
            chats = 0.5 if name == "chat" else 0.0
            load = tree(num_requests, seed) if name == "tree" else shared_prompts(num_requests, 20, chats, seed=seed)
            rates = rate(load, num_blocks, 1), rate(load, num_blocks, LIVE), rate(load, num_blocks, LIVE, Later)
            for column, value in zip(columns.values(), rates, strict=True):
                column.append(value)
        rows[name] = {column: round(mean(values), 4) for column, values in columns.items()}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = measure(args.requests, args.seeds)
    for name, row in rows.items():
        print(f"{name:14}" + "   ".join(f"{column} {value:.4f}" for column, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
