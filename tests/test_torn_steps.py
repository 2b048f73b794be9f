"""A step that fails or is interrupted drops every request, and the next call starts clean.

The model is the toy of toy.py, which sees only what the blocks hold: a wrong block gives wrong tokens. Faults are
planted at each line that callers reach. After each of them the next `generate` is right, no block is used, and no
request is left.

PAGEDLAB_OPERATIONS=20000 tries that many faults; `make test` tries a few hundred drawn at random. -s prints the counts.
"""

import gc
import sys
import warnings
from collections import Counter
from contextlib import suppress

import pytest
import torch

from pagedlab.recipes.beam import beams
from pagedlab.recipes.logprobs import score
from pagedlab.recipes.speculative import PromptLookup, SpeculativeLLM
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.scheduler import Plan, Scheduler
from support.engines import all_ids_of, drain, exactly
from support.faults import Fault, raising_at
from support.operations import LONG_RUN, OPERATIONS
from support.toy import at_each_line, checksum, some_moments, toy, toy_ahead

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]
REPEATING = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
PLAIN = exactly(7)
SAMPLES = exactly(5, n=2, temperature=0.9, seed=1)
WANTED = [(PROMPT, PLAIN), ([*PROMPT[:8], 3], SAMPLES), ([3, 4], PLAIN), (REPEATING, PLAIN)]
ENGINES = {
    "plain": (toy, {}),
    "few blocks": (toy, {"num_blocks": 9}),
    "swap": (toy, {"num_blocks": 9, "scheduler": SwappingScheduler}),
    "no cache": (toy, {"prefix_caching": False}),
    "drafts": (toy, {"kind": SpeculativeLLM, "drafter": PromptLookup(k=3)}),
    "ahead": (toy_ahead, {"num_blocks": 12}),
}


class Cycle:
    """Holds a generator and itself, so that only the garbage collector can end the generator."""

    def __init__(self, generator):
        self.generator = generator
        self.own = self


def answers(llm):
    return all_ids_of(llm.generate([prompt for prompt, _ in WANTED], [params for _, params in WANTED]))


def use(llm):
    """Call everything: requests come, are aborted, share prompts, preempt each other, and streams are dropped."""
    first = llm.add(PROMPT, PLAIN)
    llm.add([*PROMPT[:8], 3], SAMPLES)
    llm.step()
    stream = llm.stream([*PROMPT, 4], PLAIN)
    next(stream)
    Cycle(stream)
    del stream
    for _ in llm.stream([3, 4], PLAIN):
        break
    llm.abort(first)
    found = answers(llm)
    assert "".join(llm.stream(REPEATING, PLAIN))
    assert len(score(llm, [5] * 30)) == 30  # it needs all of a small pool
    search = beams(llm, [3, 4], width=2, max_tokens=4)
    next(search)
    Cycle(search)
    return found


def assert_starts_clean(llm, expected, where):
    while llm.num_unfinished:  # an `add` may have been interrupted after it had queued the request
        llm.step()
    assert answers(llm) == expected, where
    assert llm.num_unfinished == 0, where
    assert not any(llm.scheduler.queues().values()), where
    assert llm.pool.num_used == 0, where
    llm.pool.check([])


@pytest.fixture(autouse=True)
def collected_by_the_test_alone(tiny, monkeypatch):
    # What is raised while an object is dropped is reported here; pytest would keep it, and all that its frames hold.
    monkeypatch.setattr(sys, "unraisablehook", lambda report: None)
    gc.disable()
    gc.freeze()  # a collection takes microseconds if it need not look through torch and transformers
    yield
    gc.enable()


def stop_short():
    raise KeyboardInterrupt


def fail():
    raise Fault


EVENTS = {"interrupt": stop_short, "error": fail, "collection": gc.collect}


@LONG_RUN
@pytest.mark.parametrize("name", ENGINES)
def test_a_fault_at_any_line(tiny, name, rng):
    make, options = ENGINES[name]
    expected = answers(toy(tiny))
    runs = Counter()
    with at_each_line(lambda place: runs.update([place])):
        assert use(make(tiny, **options)) == expected
    points = [(moment, event) for moment in some_moments(runs) for event in EVENTS]
    chosen = rng.sample(points, min((OPERATIONS or 240) // len(ENGINES), len(points)))
    ended = Counter()
    for (place, nth), event in chosen:
        llm = make(tiny, **options)
        where = f"{event} at {place[0]}:{place[1]}, time {nth}"
        times = iter(range(1, nth + 1))

        def at(now, place=place, nth=nth, event=event, times=times):
            if now == place and next(times, None) == nth:
                EVENTS[event]()

        try:
            with at_each_line(at, [place[0]]):
                assert use(llm) == expected, where
            ended["whole"] += 1
        except (KeyboardInterrupt, Fault):
            ended["cut short"] += 1
        gc.collect()
        assert_starts_clean(llm, expected, where)
    print(f"{name}: {len(runs)} lines, {len(chosen)} of {len(points)} faults, {dict(ended)}")
    assert len(runs) > 300
    assert ended["cut short"] > len(chosen) / 3


@pytest.mark.parametrize("name", ["subscribe", "on_step", "on_forward"])
def test_a_callback_that_fails_is_named_and_breaks_nothing(tiny, name):
    expected = answers(toy(tiny))
    llm = toy(tiny)
    listen = getattr(llm.pool if name == "subscribe" else llm, name)
    listen(raising_at(2, lambda *_: None, Fault))
    with pytest.warns(UserWarning, match="a callback raised Fault"):
        assert answers(llm) == expected
    assert_starts_clean(llm, expected, name)


def test_a_failed_step_ends_all_requests(tiny):
    llm = toy(tiny, prefix_caching=False)  # so that no hit gives a request its table
    first = llm.add(PROMPT, PLAIN)
    stream, search = llm.stream([3, 4], PLAIN), beams(llm, [5, 6], width=2)
    next(stream), next(search)
    llm.forward = raising_at(0, checksum, Fault)
    with pytest.raises(Fault):
        llm.step()
    later = llm.stream([3, 4], PLAIN)
    next(later)
    assert llm.pool.num_used, "of the new pool"
    dropped, *_ = llm.step()
    assert (dropped.request_id, dropped.outputs[0].finish_reason) == (first, "error"), "though others ran since"
    for reader in (stream, search):
        with pytest.raises(RuntimeError, match="was reset"):
            next(reader)
    assert_starts_clean(llm, answers(toy(tiny)), "reset")


def test_a_step_inside_a_step_is_an_error_and_the_next_call_starts_clean(tiny):
    expected = answers(toy(tiny))
    for call in (lambda llm: llm.generate([[8, 9]], PLAIN), lambda llm: llm.step(), lambda llm: score(llm, [8, 9])):
        llm = toy(tiny)
        once = [1]
        llm.pool.subscribe(lambda event, llm=llm, once=once, call=call: once and once.pop() and call(llm))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with pytest.raises(RuntimeError, match="a step is running"):
                answers(llm)
        assert not once
        assert_starts_clean(llm, expected, "nested")


def test_subscribers_hear_the_new_pool_wherever_a_reset_is_interrupted(tiny):
    for lines in range(1, 60):
        llm = toy(tiny)
        events = []
        llm.pool.subscribe(events.append)
        before = iter(range(lines))
        with suppress(Fault), at_each_line(lambda _, before=before: next(before, None) is None and fail()):
            llm.reset()
        llm.generate([PROMPT], PLAIN)
        assert events, lines


def test_a_row_that_is_not_finite_is_an_error_even_if_a_stop_string_appears(tiny):
    """The text ends within a character, which shows as the stop string."""
    llm = toy(tiny)
    half = llm.model.tokenizer.encode("好", add_special_tokens=False)[0]
    logits = torch.zeros(1, 256)
    logits[0, half] = 9
    rows = iter([logits, torch.full((1, 256), torch.nan)])
    llm.forward = lambda *_: next(rows)
    [completion] = llm.generate(PROMPT, exactly(7, stop="\ufffd"))
    [output] = completion.outputs
    assert (output.finish_reason, output.error is not None) == ("error", True)
    assert llm.pool.num_cached == 0, "nobody shares its blocks"


def test_a_scheduler_that_plans_nothing_is_named(tiny):
    class Idle(Scheduler):
        def schedule(self):
            return Plan()

    llm = toy(tiny, scheduler=Idle)
    with pytest.raises(RuntimeError, match="no request can go on"):
        llm.generate([PROMPT], PLAIN)
    assert llm.num_unfinished == 0


def test_an_abort_inside_a_step_waits_for_its_end(tiny):
    llm = toy(tiny)
    expected = all_ids_of(toy(tiny).generate([[3, 4]], PLAIN))
    first, second = llm.add(PROMPT, PLAIN), llm.add([3, 4], PLAIN)
    llm.pool.subscribe(lambda event: llm.abort(first))
    seen = llm.step()
    assert seen[0].outputs[0].finish_reason == "abort"
    assert all_ids_of([drain(llm)[second]]) == expected
    assert llm.pool.num_used == 0
