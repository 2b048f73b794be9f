"""SIGINT by timer into a loop of `add` and `step`, like a reader's Ctrl-C: nothing leaks, no answer is wrong.

python benchmarks/interrupts.py [--model FOLDER] [--interrupts 3000] [--minutes 60] [--preemption swap] [--json FILE]

A thread sends SIGINT at random times, on average once a step of the model, and often several within a millisecond or
so. The loop goes on after each. Answers are compared with those of runs without interrupts. After every 250 interrupts
the engine is drained, and no block may be held.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

from common import Result, command_line

from pagedlab import LLM, SamplingParams

PROMPTS = ["The capital of France is", "The capital of France is not", "One, two, three", "Water boils at", "Blue and"]
PARAMS = [
    SamplingParams(max_tokens=6, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=0.8, n=2, seed=5, ignore_eos=True),
    SamplingParams(max_tokens=4, beam_width=2),
]
KINDS = [(prompt, params) for prompt in PROMPTS for params in PARAMS]


def token_ids(completion: Any) -> list[list[int]]:
    return [output.token_ids for output in completion.outputs]


def check_idle(llm: LLM) -> None:
    llm.pool.check([])  # type: ignore[attr-defined]
    assert llm.pool.num_free == llm.pool.num_blocks


class Interrupter:
    """A thread that sends SIGINT at random times, and the handler that raises KeyboardInterrupt.

    Args:
        rng: of the times.
        pause: the mean time between two showers of signals, in seconds.
    """

    def __init__(self, rng: random.Random, pause: float) -> None:
        self.sent = 0
        self.repeated = 0
        self.raised = 0
        self.armed = False  # the handler raises only while the loop allows it
        self._rng = rng
        self._pause = pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        signal.signal(signal.SIGINT, self._handle)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._stop.wait(self._rng.expovariate(1 / self._pause)):
            for repeat in range(self._rng.choice([1, 1, 2, 3, 4])):
                self.sent += 1
                self.repeated += repeat > 0
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(self._rng.expovariate(3000))

    def _handle(self, number: int, frame: Any) -> None:
        is_in_this_file = frame is not None and frame.f_code.co_filename == __file__
        if self.armed and not is_in_this_file:
            self.raised += 1
            raise KeyboardInterrupt


def main() -> None:
    parser = command_line(__doc__, model=None, minutes=60.0, seed=0)
    parser.add_argument("--interrupts", type=int, default=3000, help="it ends when so many were raised")
    parser.add_argument("--preemption", default="recompute", choices=["recompute", "swap"])
    args = parser.parse_args()
    rng = random.Random(args.seed)
    llm = LLM(args.model, dtype="float32", num_blocks=9, block_size=4, preemption=args.preemption)
    began = time.perf_counter()
    expected = [token_ids(llm.generate(*kind)[0]) for kind in KINDS]
    steps = sum(params.max_tokens for _, params in KINDS)
    interrupts = Interrupter(rng, (time.perf_counter() - began) / steps)
    live: dict[int, int] = {}  # of each request, the number of its kind
    drained = checked = preempted = 0
    while interrupts.raised < args.interrupts and time.perf_counter() - began < 60 * args.minutes:
        is_draining = interrupts.raised // 250 > drained
        if is_draining and not llm.num_unfinished:
            check_idle(llm)
            drained = interrupts.raised // 250
            print(f"{interrupts.raised} interrupts, {checked} answers right", flush=True)
        interrupts.armed = True
        try:  # a call of `suppress` could be interrupted itself
            while len(live) < 4 and not is_draining:
                number = rng.randrange(len(KINDS))
                live[llm.add(*KINDS[number])] = number
            for completion in llm.step():
                if completion.finished and completion.request_id in live:
                    number = live.pop(completion.request_id)
                    assert token_ids(completion) == expected[number], (KINDS[number], completion)
                    checked += 1
            preempted += len(llm.plan.preempted)
        except KeyboardInterrupt:
            pass
        interrupts.armed = False
    interrupts.stop()
    while llm.num_unfinished:  # also requests whose id an interrupt has lost
        llm.step()
    check_idle(llm)
    assert [token_ids(llm.generate(*kind)[0]) for kind in KINDS] == expected
    result = Result("interrupts by timer, see benchmarks/interrupts.py", args.json, model=llm.model.name)
    counts = {"signals": interrupts.sent, "right after another": interrupts.repeated}
    counts |= {"answers right": checked, "answers wrong": 0, "preemptions": preempted}
    result.add("interrupts", args.preemption, interrupts.raised, "raised", **counts)
    print(counts, "no block is held, and the engine writes what it wrote at first")


if __name__ == "__main__":
    main()
