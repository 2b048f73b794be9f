"""Whatever a reader wrote raises at any call: the engine is idle and clean afterwards, and the next prompt is right.

A reader may pass a pool, a table, a prefix cache, a scheduler, a drafter, an attention function and callbacks. Each
method here raises once, at its n-th call: before its own work, after it, or (where it calls others of its kind) inside.
The model is the toy of toy.py: a wrong block gives wrong tokens.

PAGEDLAB_OPERATIONS=12000 tries that many calls; `make test` has time for a few hundred.
"""

import itertools
import random
import warnings
from collections import Counter
from contextlib import suppress

import pytest

from pagedlab import LLM, BlockPool, BlockTable
from pagedlab.prefix import PrefixCache
from pagedlab.scheduler import Scheduler
from pagedlab.speculative import PromptLookup
from support.engines import all_ids_of, exactly, finished
from support.operations import LONG_RUN, OPERATIONS
from support.refused import refused
from support.toy import checksum, toy

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]
REPEATING = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
PLAIN = exactly(7)
SAMPLES = exactly(5, n=3, temperature=0.9, seed=1)
BEAMS = exactly(4, beam_width=3)
WANTED = [(PROMPT, PLAIN), ([*PROMPT[:8], 3], SAMPLES), ([3, 4], PLAIN), (REPEATING, BEAMS)]
DRAFTED = [(PROMPT, PLAIN), ([*PROMPT[:8], 3], SAMPLES), (REPEATING, PLAIN)]


class ReadersError(RuntimeError):
    """What a reader's code raises."""


class Fault:
    """Counts the calls of some methods, and raises once: at the n-th call, before or after the method's own work."""

    def __init__(self):
        self.calls = 0
        self.at = 0  # 0: never
        self.when = "before"
        self.raised = False

    def arm(self, at, when):
        self.calls, self.at, self.when, self.raised = 0, at, when, False

    def around(self, method):
        def faulty(*arguments, **options):
            self.calls += 1
            raises = self.calls == self.at and not self.raised
            if raises and self.when == "before":
                self.raised = True
                raise ReadersError("before its own work")
            result = method(*arguments, **options)
            if raises and not self.raised:
                self.raised = True
                raise ReadersError("after its own work")
            return result

        return faulty

    def subclass(self, base, methods):
        return type(f"Readers{base.__name__}", (base,), {name: self.around(getattr(base, name)) for name in methods})


CLASSES = {  # the option that takes it, the class, and methods that the engine calls
    "pool": ("block_pool", BlockPool, "allocate share release refcount keep forget invalidate"),
    "table": ("block_table", BlockTable, "append fork truncate free slots __init__"),
    "cache": ("prefix_caching", PrefixCache, "match insert register num_shared_blocks"),
    "scheduler": ("scheduler", Scheduler, "add schedule rewind remove order may_admit next_waiting victim"),
}


def with_fault_in(option, kind, method):
    return lambda fault: {option: fault.subclass(kind, [method])}


PARTS = {
    **{
        f"{part}.{method}": with_fault_in(option, kind, method)
        for part, (option, kind, methods) in CLASSES.items()
        for method in methods.split()
    },
    "drafter.propose": lambda fault: {"speculative": fault.subclass(PromptLookup, ["propose"])(k=3)},
    "model": lambda fault: {},
    "subscriber": lambda fault: {},
    "on_step": lambda fault: {},
}
AFTER_A_FAILURE = ("scheduler.rewind", "pool.forget")
EACH = (OPERATIONS or 420) // len(PARTS)


def make(tiny, part, fault, **options):
    llm = toy(tiny, **PARTS[part](fault), **options)
    if part == "model":
        llm.forward = fault.around(checksum)
    if part in AFTER_A_FAILURE:  # the model fails in the third step, and this part while the step is taken back
        steps = itertools.count(1)

        def failing(*arguments):
            if next(steps) == 3:
                raise ReadersError("of the model")
            return checksum(*arguments)

        llm.forward = failing
    if part == "subscriber":
        llm.pool.subscribe(fault.around(lambda event: None))
    if part == "on_step":
        llm.on_step(fault.around(lambda: None))
    return llm


def by_generate(llm, wanted):
    return all_ids_of(llm.generate([prompt for prompt, _ in wanted], [params for _, params in wanted]))


def by_steps(llm, wanted):
    """A loop that goes on after an error; what is aborted is None, and what `add` refuses too."""
    ids = []
    done = {}
    for prompt, params in wanted:
        try:
            ids.append(llm.add(prompt, params))
        except ReadersError:
            ids.append(None)
    for _ in range(200):
        if not llm.num_unfinished:
            break
        with suppress(ReadersError):
            done |= finished(llm.step())
    done |= {completion.request_id: completion for completion in llm.step()}
    assert llm.num_unfinished == 0, "some requests never end"
    results = []
    for request_id in ids:
        completion = done.get(request_id) if request_id is not None else None
        aborted = completion is None or any(output.finish_reason == "abort" for output in completion.outputs)
        results.append(None if aborted or completion is None else all_ids_of([completion])[0])
    return results


def assert_clean(llm):
    """Idle, though the statistics of a step that failed may be those of the step before."""
    assert llm.step() == []
    assert not [*llm.scheduler.running, *llm.scheduler.waiting, *llm.scheduler.swapped]
    llm.pool.check([])
    assert llm.pool.num_used == 0


OPTIONS = [{}, {"num_blocks": 10}, {"num_blocks": 10, "preemption": "swap"}]


@LONG_RUN
@pytest.mark.parametrize("part", PARTS)
def test_a_readers_class_raises_at_any_call(tiny, part, seed):
    rng, counts = random.Random(seed), Counter()
    wanted = DRAFTED if part.startswith("drafter") else WANTED
    alone = [by_generate(toy(tiny), [one])[0] for one in wanted]
    totals = []
    for options in OPTIONS:
        fault = Fault()
        llm = make(tiny, part, fault, **options)
        fault.arm(0, "before")
        if part in AFTER_A_FAILURE:
            with pytest.raises(ReadersError):
                by_generate(llm, wanted)
        else:
            assert by_generate(llm, wanted) == alone
        totals.append(fault.calls)
    assert any(totals), "nothing calls it"
    for _ in range(EACH):
        kind = rng.choice([i for i, total in enumerate(totals) if total])
        at, when, how = (
            rng.randint(1, totals[kind]),
            rng.choice(["before", "after"]),
            rng.choice([by_generate, by_steps]),
        )
        where = f"{part}, {OPTIONS[kind]}, call {at} of {totals[kind]}, {when} its work, {how.__name__}"
        print(where)
        fault = Fault()
        llm = make(tiny, part, fault, **OPTIONS[kind])
        outside = [llm.pool.allocate()] if rng.random() < 0.3 and kind == 0 else []
        fault.arm(at, when)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # who watches is reported by a warning
            try:
                results = how(llm, wanted)
                for result, expected in zip(results, alone, strict=True):
                    assert result in (None, expected), where
                counts["aborted"] += results.count(None)
            except ReadersError:
                counts["raised"] += 1
        fault.arm(0, "before")
        for block_id in outside:
            assert llm.pool.refcount(block_id) == 1, where
            llm.pool.release(block_id)
        assert_clean(llm)
        again = by_generate(llm, wanted)
        assert again == alone, where
        assert_clean(llm)
    print(f"{part}: {EACH} faults, {dict(counts)}")


def test_an_error_before_the_first_line_of_schedule_leaves_the_step_before_alone(tiny):
    expected = all_ids_of(toy(tiny).generate([PROMPT], PLAIN))
    fault = Fault()
    llm = make(tiny, "scheduler.schedule", fault)
    request_id = llm.add(PROMPT, PLAIN)
    llm.step()
    computed = llm.sequences()[0].table.num_tokens
    fault.arm(1, "before")
    with pytest.raises(ReadersError):
        llm.step()
    assert llm.sequences()[0].table.num_tokens == computed
    done = []
    while llm.num_unfinished:
        done = [completion for completion in llm.step() if completion.request_id == request_id]
    assert all_ids_of(done) == expected


def test_a_table_class_reaches_a_prefix_cache_class(tiny):
    class Mine(BlockTable):
        pass

    class Cache(PrefixCache):
        pass

    seen = set()
    llm = toy(tiny, block_table=Mine, prefix_caching=Cache)
    llm.on_step(lambda: seen.update(type(sequence.table) for sequence in llm.sequences()))
    for _ in range(2):
        llm.generate([PROMPT], PLAIN)
    assert llm.scheduler.cached_tokens > 0
    assert seen == {Mine}


def test_what_a_class_lacks_is_named(tiny):
    class Table(BlockTable):
        pass

    class OwnCache:
        def __init__(self, pool): ...
        def match(self, token_ids, *, leave=0, salt=None): ...
        def insert(self, table, token_ids, *, salt=None):
            return 0

    class FourMethods:
        def __init__(self, *arguments, **options): ...
        def add(self, request): ...
        def schedule(self): ...
        def rewind(self, plan): ...
        def remove(self, request): ...

    class Empty:
        pass

    for options, said in (
        ({"scheduler": FourMethods}, "scheduler must have the methods .*lacks pool, max_batch_tokens"),
        ({"scheduler": Empty}, "lacks add, schedule, rewind, remove"),
        ({"block_table": Table, "prefix_caching": OwnCache}, "prefix_caching=OwnCache takes no block_table="),
        ({"block_pool": Empty}, "lacks allocate, share, release, refcount"),
        ({"block_table": Empty}, "lacks append, fork, truncate, free, slots"),
        ({"prefix_caching": Empty}, "lacks match, insert"),
        ({"speculative": Empty()}, "speculative"),
    ):
        with refused(said):
            toy(tiny, **options)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "block_pool",
            BlockPool(3),
            r"block_pool must be a class like BlockPool, got BlockPool.*: pass the class",
        ),
        ("block_table", 3, "block_table must be a class like BlockTable, got 3: pass the class"),
        ("scheduler", 3, "scheduler must be a class like Scheduler, got 3: pass the class"),
    ],
)
def test_an_object_in_place_of_a_class_is_refused_before_the_model_is_looked_for(name, value, said):
    with refused(said):
        LLM("no-such-model", **{name: value})


def test_a_scheduler_with_the_named_attributes_runs_everything(tiny):
    """A class that is no subclass, and has just what the contract names."""

    class Own:
        def __init__(self, *arguments, **options):
            self._inner = Scheduler(*arguments, **options)
            self.pool = self._inner.pool
            self.max_batch_tokens = self._inner.max_batch_tokens
            self.max_sequences = self._inner.max_sequences

        running = property(lambda self: self._inner.running)
        waiting = property(lambda self: self._inner.waiting)
        swapped = property(lambda self: self._inner.swapped)

        def add(self, request):
            self._inner.add(request)

        def schedule(self):
            return self._inner.schedule()

        def rewind(self, plan):
            self._inner.rewind(plan)

        def remove(self, request):
            self._inner.remove(request)

    from pagedlab.widgets.stage import Stage

    expected = by_generate(toy(tiny), DRAFTED)
    llm = toy(tiny, scheduler=Own, speculative=PromptLookup(k=3))
    assert by_generate(llm, DRAFTED) == expected
    assert llm.sequences() == []
    Stage(llm)
