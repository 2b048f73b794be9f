"""What the prefix cache saves: hit rate, prefill and time to first token, with and without, and against the optimum.

python benchmarks/prefix.py [--requests 1000] [--json data/results/prefix_cpu.json]

Two loads of `pagedlab.lessons.traces.shared_prompts` over 20 system prompts, random token ids: "one question each",
where no prompt comes back, and "chats", where every second request is the next turn of a chat. The shipped model serves
the prompts one after another, one token each, since the cache changes the prefill alone. Time to first token is the CPU
time from the call to that token, on one thread: what a clock on the wall shows on an idle core, and nobody waits in a
queue. Each pool size also runs without a model through `pagedlab.lessons.replay`, for every eviction order and for
Belady's optimum on the same prompts; the engine's hits must equal it. Times depend on the machine, hit rates do not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from machine import record

from pagedlab import LLM, SamplingParams
from pagedlab.lessons.replay import replay
from pagedlab.lessons.traces import shared_prompts
from pagedlab.model import TINY_MODEL, Model, load_model
from pagedlab.prefix import PrefixCache

POOLS = (256, 512, 768)
LOADS = {"one question each": 0.0, "chats": 0.5}
ORDERS = ("lru", "slru", "lfu", "fifo", "belady")


def serve(model: Model, prompts: list[list[int]], num_blocks: int, prefix_caching: Any) -> tuple[dict[str, Any], int]:
    """Serve the prompts one by one: what was computed and how long it took, and the tokens found in the cache."""
    llm = LLM(model, num_blocks=num_blocks, prefix_caching=prefix_caching)
    one_token = SamplingParams(max_tokens=1, ignore_eos=True)
    llm.generate(prompts[0][:8], one_token)  # the first forward pass of a process is slower; too short to be cached
    times, computed, found = [], 0, 0
    for prompt in prompts:
        began = time.process_time()
        llm.generate(prompt, one_token)
        times.append(1000 * (time.process_time() - began))
        computed += llm.stats.prompt_tokens
        found += llm.stats.cached_tokens
    figures = {"prompt tokens computed": computed, "time to first token ms, mean": round(statistics.mean(times), 2)}
    figures |= {
        "median": round(statistics.median(times), 2),
        "95th percentile": round(statistics.quantiles(times, n=20)[-1], 2),
    }
    return figures, found


def measure(model: Model, num_requests: int, chats: float) -> dict[str, Any]:
    """One load without a cache and at every pool size."""
    prompts = [prompt for prompt, _ in shared_prompts(num_requests, 20, chats, model.vocab_size)]
    asked = sum(map(len, prompts))
    without, _ = serve(model, prompts, max(POOLS), False)
    result: dict[str, Any] = {"requests": num_requests, "prompt tokens": asked, "without": without, "pools": {}}
    for num_blocks in POOLS:
        orders = {}
        for order in ORDERS:
            stats = replay([(prompt, []) for prompt in prompts], num_blocks, eviction=order)  # type: ignore[arg-type]
            orders[order] = stats.hit_tokens
        served = {}
        for order in ("lru", "slru"):
            cache = partial(PrefixCache, eviction=order)  # type: ignore[arg-type]
            served[order], found = serve(model, prompts, num_blocks, cache)
            assert found == orders[order], "the engine finds what the cache alone finds"
        rates = {order: round(100 * found / asked, 1) for order, found in orders.items()}
        result["pools"][str(num_blocks)] = {"hit rate %": rates, **served}
    return result


def show(results: dict[str, Any]) -> None:
    for load, result in results.items():
        times = "time to first token ms, mean"
        print(f"{load}: {result['requests']:,} requests, {result['prompt tokens']:,} prompt tokens")
        print(f"  without cache: {result['without'][times]:.1f} ms to the first token")
        print("  blocks" + "".join(f"{order:>9}" for order in ORDERS) + "   hit rate %; computed and ms with lru, slru")
        for num_blocks, pool in result["pools"].items():
            rates = "".join(f"{pool['hit rate %'][order]:9.1f}" for order in ORDERS)
            served = (f"{pool[o]['prompt tokens computed']:,} in {pool[o][times]:.1f}" for o in ("lru", "slru"))
            print(f"  {num_blocks:>6}{rates}   {', '.join(served)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    model = load_model(TINY_MODEL, device="cpu", dtype="float32", verbose=False)
    results = {load: measure(model, arguments.requests, chats) for load, chats in LOADS.items()}
    show(results)
    if arguments.json:
        about = "hit rates, prefill and time to first token; see benchmarks/prefix.py"
        record(arguments.json, about, model=f"{model.name}, float32, block size 16", results=results)


if __name__ == "__main__":
    main()
