"""An engine under random load for a while: no block lost, no wrong token, no memory that grows.

python benchmarks/soak.py [--minutes 10] [--model FOLDER] [--interrupts] [--seed 0] [--json FILE]

Requests arrive at random, greedy ones and samples, on a pool that is too small for them, so that some are
preempted; a tenth is aborted. In turns of one minute each, `pagedlab.LLM` preempts by recompute and by swap, and
`pagedlab_fast.LLM` by recompute. Every answer is compared with that of an engine with enough blocks, in float64, where
rounding is no excuse. In float32, which the Triton kernels take, one answer in a hundred may differ. Once a minute the
engine is drained: then every block must be free or cached.

With --interrupts a thread sends SIGINT at random times, on average once a step, and often several within a millisecond
or so, like a reader's Ctrl-C. The loop goes on after each interrupt.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from typing import Any

import psutil
import torch
from common import Result, command_line

import pagedlab_fast
from pagedlab import LLM, Completion, SamplingParams
from pagedlab.model import TINY_MODEL, Model, load_model
from pagedlab.recipes.swap import SwappingScheduler

BLOCK = 4
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
        alone = LLM(model, num_blocks=512, block_size=BLOCK, prefix_caching=False, verbose=False)
        (expected,) = alone.generate(prompt, params)
        kinds.append((prompt, params, token_ids(expected)))
    return kinds


def token_ids(completion: Completion) -> list[list[int]]:
    return [output.token_ids for output in completion.outputs]


def resident() -> int:
    """MiB of this process."""
    return psutil.Process().memory_info().rss // 2**20


def memory() -> dict[str, int]:
    """MiB of this process, now and at most, and the tensors alive."""
    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return {"MiB now": resident(), "MiB at most": peak, "tensors": tensors}


class Interrupter:
    """Sends SIGINT from a thread at random times, and raises KeyboardInterrupt in the engine.

    Args:
        rng: of the times.
    """

    def __init__(self, rng: random.Random) -> None:
        self.armed = False  # signals are sent, and raise, only while the loop allows it
        self._rng = rng

    def start(self, pause: float) -> None:
        """Begin. `pause` is the mean time between two showers of signals, in seconds."""
        signal.signal(signal.SIGINT, self._handle)
        threading.Thread(target=self._send, args=[pause], daemon=True).start()

    def _send(self, pause: float) -> None:
        while True:
            time.sleep(self._rng.expovariate(1 / pause))
            for _ in range(self._rng.choice([1, 1, 2, 3, 4]) if self.armed else 0):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(self._rng.expovariate(3000))

    def _handle(self, number: int, frame: Any) -> None:
        is_in_this_file = frame is not None and frame.f_code.co_filename == __file__
        if self.armed and not is_in_this_file:
            self.armed = False
            raise KeyboardInterrupt


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
        """A new request or none, an abort or none, and a step of the engine. An interrupt may end it anywhere."""
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
                is_right = token_ids(completion) == self.expected.pop(completion.request_id)
                assert is_right or self.llm.model.module.dtype != torch.float64, "a wrong token"
                self.counts["right" if is_right else "different"] += 1


def soak_minute(load: Load, interrupts: Interrupter, seconds: float) -> None:
    """Random load for some seconds, then none until all requests are finished."""
    llm, counts = load.llm, load.counts
    counts.clear()
    preemptions = llm.stats.preemptions
    until = time.monotonic() + seconds
    llm.cache.keys.fill_(torch.nan)
    llm.cache.values.fill_(torch.nan)
    llm.prefix_cache.clear()
    while load.expected or time.monotonic() < until:
        is_over = time.monotonic() >= until
        interrupts.armed = not is_over
        try:  # a call of `suppress` could be interrupted itself
            load.step(is_over)
        except KeyboardInterrupt:
            counts["interrupts"] += 1
            counts["dropped"] += len(load.expected)
            load.expected.clear()  # the next step drops these requests
        interrupts.armed = False
    while llm.num_unfinished:  # requests whose id an interrupt has lost
        llm.step()
    counts["preempted"] = llm.stats.preemptions - preemptions
    llm.pool.check([])
    assert llm.pool.num_used == 0
    assert counts["different"] <= counts["right"] / 100, "more answers differ than rounding explains"


def main() -> None:
    parser = command_line(__doc__, model=str(TINY_MODEL), dtype="float64", minutes=10.0, seed=0)
    parser.add_argument("--kinds", type=int, default=60, help="how many different requests there are")
    parser.add_argument("--interrupts", action="store_true", help="send SIGINT too")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    model = load_model(args.model, dtype=args.dtype)
    kinds = load_kinds(model, rng, args.kinds)
    options = {"num_blocks": 64, "block_size": BLOCK, "max_batch_tokens": 64, "verbose": False}
    engines = {
        "recompute": LLM(model, **options),
        "swap": LLM(model, scheduler=SwappingScheduler, **options),
        "fast": pagedlab_fast.LLM(model, **options),
    }
    loads = {how: Load(llm, kinds, rng) for how, llm in engines.items()}
    interrupts = Interrupter(rng)
    if args.interrupts:
        llm = engines["recompute"]
        llm.generate([prompt for prompt, _, _ in kinds], [params for _, params, _ in kinds])
        interrupts.start(llm.stats.seconds / llm.stats.steps)
    result = Result("an engine under random load, see benchmarks/soak.py", args.json, model=model.name)
    for minute in range(max(1, round(args.minutes))):
        how = list(loads)[minute % 3]
        load = loads[how]
        soak_minute(load, interrupts, 60 * min(1, args.minutes))
        result.add("requests", how, load.counts["requests"], "a minute", **load.counts, **memory())


if __name__ == "__main__":
    main()
