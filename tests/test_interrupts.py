"""An interrupt at any line of the bookkeeping, any number of them: no leak, no dead engine, no foreign text.

A tracer raises SIGINT at a line: the first time it runs, the last, or one of three times between. The model is a toy
that sees only what the blocks hold: each slot stores its token, and the next token is a checksum of all that lie before
it, read through the block table. So whoever reads a block that is not its own, or was never computed, writes other
words.

PAGEDLAB_OPERATIONS=12000 tries that many interrupts, a tenth of it with more signals behind each, and 300 showers; -s
prints what was counted. `make test` has time for a few hundred.
"""

import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread

import pytest

from pagedlab import SamplingParams, interrupts
from pagedlab.interrupts import allowed_interrupts, deferred_interrupts
from support.engines import all_ids_of, exactly
from support.operations import LONG_RUN, OPERATIONS
from support.toy import at_each_line, at_no_line, some_moments, toy

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]
EACH = (OPERATIONS or 270) // 9  # interrupts a scenario

# Python itself swallows, and reports, what is raised while an object is dropped.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def heard():
    """A shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def generate(prompts, params):
    return lambda llm: all_ids_of(llm.generate(prompts, params))


def told(llm):
    """What is said of prompts and texts, with requests that give way in the middle of either."""
    params = exactly(8, n=2, temperature=0.9, seed=1, logprobs=1, prompt_logprobs=1)
    done = llm.generate([[*PROMPT, *PROMPT], PROMPT, [3, 4, 5]], params)
    return all_ids_of(done), [(c.prompt_logprobs, [o.logprobs for o in c.outputs]) for c in done]


def stream(llm):
    return "".join(llm.stream(PROMPT, exactly(9)))


def step_by_step(llm):
    """A loop of `add` and `step` that goes on after an interrupt, as a reader's would."""
    wanted, ids, done = [PROMPT, [*PROMPT[:4], 3], [20, 21]], {}, {}
    for _ in range(200):
        if len(done) == len(wanted):
            return all_ids_of([done[ids[i]] for i in range(len(wanted))])
        try:
            for i, prompt in enumerate(wanted):
                if i not in ids:
                    ids[i] = llm.add(prompt, SamplingParams(max_tokens=7, n=1 + i % 2, temperature=0.7, seed=i))
            touched = llm.step()
            with at_no_line():  # what the loop does with them is its own affair
                done |= {c.request_id: c for c in touched if c.finished and c.request_id in ids.values()}
        except KeyboardInterrupt:
            pass
    raise AssertionError(f"after 200 steps only {len(done)} of {len(wanted)} are done")


HOT = exactly(8, n=3, temperature=0.9, seed=1)
PLAIN = exactly(10)
BURST = [[*PROMPT, i] for i in range(4)]
SCENARIOS = {
    "burst": ({}, generate(BURST, PLAIN)),
    "no cache": ({"prefix_caching": False}, generate(BURST, PLAIN)),
    "samples": ({}, generate([PROMPT, [3, 4]], HOT)),
    "beams": ({}, generate([PROMPT, [3, 4]], exactly(6, beam_width=3))),
    "recompute": ({"num_blocks": 9}, generate([PROMPT, PROMPT[:5], [3, 4, 5]], HOT)),
    "swap": ({"num_blocks": 9, "preemption": "swap"}, generate([PROMPT, PROMPT[:5], [3, 4, 5]], HOT)),
    "told": ({"num_blocks": 15, "max_batch_tokens": 8}, told),
    "stream": ({}, stream),
    "step by step": ({"num_blocks": 12}, step_by_step),
}


def moments(llm, scenario, expected):
    """Lines of the bookkeeping that the scenario runs, with the times to interrupt them at."""
    runs = Counter()
    with at_each_line(lambda place: runs.update([place])):
        assert scenario(llm) == expected
    return some_moments(runs)


def interrupted(llm, scenario, expected, moment, then):
    """SIGINT at this moment, `then` at each line after it; whether it came out. Afterwards all must be as before."""
    (place, nth), seen = moment, 0

    def event(now):
        nonlocal seen
        if seen == nth:
            then(now)
        elif now == place:
            seen += 1
            if seen == nth:
                signal.raise_signal(signal.SIGINT)

    where, came_out = f"{Path(place[0]).name}:{place[1]}, time {nth}", False
    try:
        with at_each_line(event):
            assert scenario(llm) == expected, where
    except KeyboardInterrupt:
        came_out = True
    except AssertionError as error:
        raise AssertionError(f"after an interrupt at {where}") from error
    sys.settrace(None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, where
    assert scenario(llm) == expected, where  # nothing foreign is found, and nothing is missing
    while llm.num_unfinished:  # of `add`s whose number was lost
        llm.step()
    llm.pool.check([])
    assert llm.pool.num_used == 0, where
    return came_out


@LONG_RUN
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupt_at_any_line(tiny, name, seed):
    options, scenario = SCENARIOS[name]
    expected = scenario(toy(tiny, **options))
    some = moments(toy(tiny, **options), scenario, expected)
    chosen = random.Random(seed).sample(some, min(EACH, len(some)))
    came_out = [interrupted(toy(tiny, **options), scenario, expected, one, lambda _: None) for one in chosen]
    print(name, len(chosen))
    assert any(came_out) or name == "step by step"


@LONG_RUN
@pytest.mark.parametrize("name", SCENARIOS)
def test_more_signals_while_one_is_held_back(tiny, name, seed):
    """Up to five more after the first: before it is raised, in the lines that raise it, and in what it passes."""
    options, scenario = SCENARIOS[name]
    rng, counts = random.Random(seed), Counter()
    expected = scenario(toy(tiny, **options))
    some = moments(toy(tiny, **options), scenario, expected)
    while counts["interrupts"] < -(-EACH // 10):
        more, deliverer, chance = 0, rng.random() < 0.5, rng.choice([0.01, 0.3])

        def then(now, deliverer=deliverer, chance=chance):
            nonlocal more
            delivers = now[0] == interrupts.__file__
            if more < 5 and rng.random() < (0.3 * delivers if deliverer else chance):
                more += 1
                counts["raising it" if delivers else "held" if interrupts._main.pending else "passing"] += 1
                signal.raise_signal(signal.SIGINT)

        interrupted(toy(tiny, **options), scenario, expected, rng.choice(some), then)
        counts["interrupts"] += more > 0  # where it was raised at once the tracer is gone, and none came
    print(name, dict(counts))


@LONG_RUN
def test_many_signals_in_a_row(tiny, seed, monkeypatch):
    """A thread that sends SIGINT again and again, while the same texts are asked for until they come through."""
    rng, counts, note = random.Random(seed), Counter(), interrupts._note
    armed, here = False, sys._getframe().f_code

    def counted(number, frame):
        counts["while one was held"] += interrupts._main.pending
        note(number, frame)

    def handler(number, frame):
        if armed and (frame is None or frame.f_code is not here):
            counts["interrupts"] += 1
            raise KeyboardInterrupt

    monkeypatch.setattr(interrupts, "_note", counted)
    monkeypatch.setattr(sys, "unraisablehook", bool)  # pytest's own would be interrupted
    signal.signal(signal.SIGINT, handler)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # or the main thread would hear of three signals as one
    for _ in range((OPERATIONS or 200) // 40):
        options, scenario = SCENARIOS[rng.choice([name for name in SCENARIOS if name != "step by step"])]
        pause = rng.uniform(0.0001, 0.004)
        llm, expected, stop = toy(tiny, **options), scenario(toy(tiny, **options)), Event()

        def shower(stop=stop, pause=pause):
            while not stop.wait(pause):
                for _ in range(rng.choice([1, 1, 3])):
                    counts["signals"] += 1
                    signal.raise_signal(signal.SIGINT)  # Python hands it to the main thread
                    time.sleep(0)

        thread = Thread(target=shower, daemon=True)
        thread.start()
        for _ in range(20):
            said, armed = expected, True
            try:  # a call of `suppress` could be interrupted itself
                said = scenario(llm)
            except KeyboardInterrupt:
                armed = False
            armed = False
            assert said == expected
        stop.set()
        thread.join()
        assert scenario(llm) == expected
        while llm.num_unfinished:  # of a stream that was dropped while interrupts came
            llm.step()
        assert llm.pool.num_used == 0
    sys.setswitchinterval(before)
    print(dict(counts))


def test_holding_and_letting_through():
    done = []

    def noted():
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("after the first")
            with deferred_interrupts():
                done.append("inside another")
            with allowed_interrupts():
                done.append("never")

    def held_again():
        with deferred_interrupts(), allowed_interrupts():
            with deferred_interrupts():
                signal.raise_signal(signal.SIGINT)
                done.append("held again")
            done.append("never")

    for books in (noted, held_again):
        with pytest.raises(KeyboardInterrupt):
            books()
    assert done == ["after the first", "inside another", "held again"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_ignored_signals_are_left_alone():
    ran = []

    class Books:
        def change(self):
            with deferred_interrupts():
                ran.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=Books().change)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Books().change()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran == [signal.default_int_handler, signal.SIG_IGN]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an exception's frames cannot be dropped on its way")
def test_an_interrupt_names_the_line_that_was_stopped_and_none_below(tiny):
    llm = toy(tiny)

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it came through")

    llm.forward = interrupted
    for stopped in (lambda: llm.generate([PROMPT]), lambda: llm.add(PROMPT) + len(llm.step())):
        with pytest.raises(KeyboardInterrupt) as caught:
            stopped()
        assert {str(entry.path) for entry in caught.traceback} == {__file__}
