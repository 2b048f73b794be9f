"""SIGINT by timer into a loop of `add` and `step`, as a reader's Ctrl-C would come: nothing leaks, no text is wrong.

python benchmarks/interrupts.py [--model FOLDER] [--interrupts 3000] [--minutes 60] [--seed 0] [--preemption recompute]

A thread sends SIGINT at random times, on average once a step of the model, every third time again and again within a
millisecond or so; the loop goes on with whatever it has. Texts are compared with those of runs that nobody interrupted.
Every 250 interrupts the engine is drained, no block may be held, and a line says what was counted so far.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from typing import Any

from pagedlab import LLM, SamplingParams

PROMPTS = ["The capital of France is", "The capital of France is not", "One, two, three", "Water boils at", "Blue and"]
PARAMS = [
    SamplingParams(max_tokens=6, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=0.8, n=2, seed=5, ignore_eos=True),
    SamplingParams(max_tokens=4, beam_width=2),
]
KINDS = [(prompt, params) for prompt in PROMPTS for params in PARAMS]


def texts(completion: Any) -> list[list[int]]:
    return [output.token_ids for output in completion.outputs]


def check_idle(llm: LLM) -> None:
    llm.pool.check([])  # type: ignore[attr-defined]
    assert llm.pool.num_free == llm.pool.num_blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--interrupts", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=60, help="stop then, whatever was reached")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preemption", default="recompute", choices=["recompute", "swap"])
    args = parser.parse_args()
    rng = random.Random(args.seed)
    llm = LLM(args.model, dtype="float32", num_blocks=9, block_size=4, preemption=args.preemption)
    began = time.perf_counter()
    expected = [texts(llm.generate(*kind)[0]) for kind in KINDS]
    pause = (time.perf_counter() - began) / sum(params.max_tokens for _, params in KINDS)  # of a step, about
    sent, again, came, live, checked, told, gave_way = 0, 0, 0, dict[int, int](), 0, 0, 0
    armed, stop = False, threading.Event()

    def shower() -> None:
        nonlocal sent, again
        while not stop.wait(rng.expovariate(1 / pause)):  # long ones too, or no step might ever come to its end
            for repeat in range(rng.choice([1, 1, 2, 3, 4])):
                sent += 1
                again += repeat > 0
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(rng.expovariate(3000))

    def handler(number: int, frame: Any) -> None:
        nonlocal came
        if armed and (frame is None or frame.f_code.co_filename != __file__):  # the loop's own lines are its own affair
            came += 1
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=shower, daemon=True)
    thread.start()
    while came < args.interrupts and time.perf_counter() - began < 60 * args.minutes:
        if came // 250 > told and not llm.num_unfinished:
            check_idle(llm)
            told = came // 250
            print(f"{came} interrupts, {checked} texts right, {time.perf_counter() - began:.0f} s", flush=True)
        armed = True
        try:  # a call of `suppress` could be interrupted itself
            while len(live) < 4 and came // 250 == told:
                kind = rng.randrange(len(KINDS))
                live[llm.add(*KINDS[kind])] = kind
            for completion in llm.step():
                if completion.finished and completion.request_id in live:
                    kind = live.pop(completion.request_id)
                    assert texts(completion) == expected[kind], (KINDS[kind], texts(completion), expected[kind])
                    checked += 1
            gave_way += len(llm.plan.preempted)
        except KeyboardInterrupt:
            pass
        armed = False
    stop.set()
    thread.join()
    while llm.num_unfinished:  # of `add`s whose number was lost too
        llm.step()
    check_idle(llm)
    assert [texts(llm.generate(*kind)[0]) for kind in KINDS] == expected
    print(
        f"{came} interrupts of {sent} signals, {again} of them right after another; {checked} texts right, 0 wrong; "
        f"{gave_way} times a request gave way; no block held, and the engine writes what it did at first"
    )


if __name__ == "__main__":
    main()
