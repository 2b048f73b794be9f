"""Whatever a reader wrote raises at any call: the engine is idle and clean afterwards, and the next prompt is right.

A reader may pass a pool, a table, a prefix cache, a scheduler, a drafter, an attention function and callbacks. Each
method here raises once, at its n-th call: before its own work, after it, or (where it calls others of its kind) inside.
The model is the toy of toy.py: a wrong block gives wrong tokens.

PAGEDLAB_OPERATIONS=12000 tries that many calls; `make test` has time for a few hundred.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from conftest import LONG_RUN, OPERATIONS
from toy import checksum, texts, toy

from pagedlab import LLM, BlockPool, BlockTable, Completion, SamplingParams
from pagedlab.attention import get_backend
from pagedlab.prefix import PrefixCache
from pagedlab.scheduler import Scheduler
from pagedlab.speculative import PromptLookup

if TYPE_CHECKING:
    from pagedlab.model import Model

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]
REPEATING = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
PLAIN = SamplingParams(max_tokens=7, ignore_eos=True)
SAMPLES = SamplingParams(max_tokens=5, n=3, temperature=0.9, seed=1, ignore_eos=True)
BEAMS = SamplingParams(max_tokens=4, beam_width=3, ignore_eos=True)
WANTED = [(PROMPT, PLAIN), ([*PROMPT[:8], 3], SAMPLES), ([3, 4], PLAIN), (REPEATING, BEAMS)]
DRAFTED = [(PROMPT, PLAIN), ([*PROMPT[:8], 3], SAMPLES), (REPEATING, PLAIN)]


class ReadersError(RuntimeError):
    """What a reader's code raises."""


class Fault:
    """Counts the calls of some methods, and raises once: at the n-th call, before or after the method's own work."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = 0  # 0: never
        self.when = "before"
        self.raised = False

    def arm(self, at: int, when: str) -> None:
        self.calls, self.at, self.when, self.raised = 0, at, when, False

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*arguments: Any, **options: Any) -> Any:
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

    def subclass(self, base: type, methods: list[str]) -> type[Any]:
        return type(f"Readers{base.__name__}", (base,), {name: self.around(getattr(base, name)) for name in methods})


POOL = ["allocate", "share", "release", "refcount", "keep", "forget", "invalidate"]
TABLE = ["append", "fork", "truncate", "free", "slots", "__init__"]
CACHE = ["match", "insert", "register", "num_shared_blocks"]
SCHEDULER = ["add", "schedule", "rewind", "remove", "may_admit", "next_waiting", "victim"]
PARTS: dict[str, Callable[[Fault], dict[str, Any]]] = {
    **{f"pool.{m}": lambda fault, m=m: {"block_pool": fault.subclass(BlockPool, [m])} for m in POOL},  # type: ignore[misc]
    **{f"table.{m}": lambda fault, m=m: {"block_table": fault.subclass(BlockTable, [m])} for m in TABLE},  # type: ignore[misc]
    **{f"cache.{m}": lambda fault, m=m: {"prefix_caching": fault.subclass(PrefixCache, [m])} for m in CACHE},  # type: ignore[misc]
    **{f"scheduler.{m}": lambda fault, m=m: {"scheduler": fault.subclass(Scheduler, [m])} for m in SCHEDULER},  # type: ignore[misc]
    "drafter.propose": lambda fault: {"speculative": fault.subclass(PromptLookup, ["propose"])(k=3)},
    "model": lambda fault: {},
    "subscriber": lambda fault: {},
    "on_step": lambda fault: {},
}
AFTER_A_FAILURE = ("scheduler.rewind", "pool.forget")
EACH = (OPERATIONS or 700) // len(PARTS)


def make(tiny: Model, part: str, fault: Fault, **options: Any) -> LLM:
    llm = toy(tiny, **PARTS[part](fault), **options)
    if part == "model":
        llm.forward = fault.around(checksum)
    if part in AFTER_A_FAILURE:  # the model fails in the third step, and this part while the step is taken back
        steps = itertools.count(1)

        def failing(*arguments: Any) -> torch.Tensor:
            if next(steps) == 3:
                raise ReadersError("of the model")
            return checksum(*arguments)

        llm.forward = failing
    if part == "subscriber":
        assert isinstance(llm.pool, BlockPool)
        llm.pool.subscribe(fault.around(lambda event: None))
    if part == "on_step":
        llm.on_step(fault.around(lambda: None))
    return llm


def by_generate(llm: LLM, wanted: list[Any]) -> list[Any]:
    return texts(llm.generate([prompt for prompt, _ in wanted], [params for _, params in wanted]))


def by_steps(llm: LLM, wanted: list[Any]) -> list[Any]:
    """A loop that goes on after an error; what is aborted is None, and what `add` refuses too."""
    ids: list[int | None] = []
    done: dict[int, Completion] = {}
    for prompt, params in wanted:
        try:
            ids.append(llm.add(prompt, params))
        except ReadersError:
            ids.append(None)
    for _ in range(200):
        if not llm.num_unfinished:
            break
        with suppress(ReadersError):
            done |= {completion.request_id: completion for completion in llm.step() if completion.finished}
    done |= {completion.request_id: completion for completion in llm.step()}
    assert llm.num_unfinished == 0, "some requests never end"
    results: list[Any] = []
    for request_id in ids:
        completion = done.get(request_id) if request_id is not None else None
        aborted = completion is None or any(output.finish_reason == "abort" for output in completion.outputs)
        results.append(None if aborted or completion is None else texts([completion])[0])
    return results


def assert_clean(llm: LLM, where: str) -> None:
    assert llm.step() == [], where
    assert not llm.scheduler.running, where
    assert not llm.scheduler.waiting, where
    assert not llm.scheduler.swapped, where
    assert isinstance(llm.pool, BlockPool)
    llm.pool.check([])
    assert llm.pool.num_used == 0, where


OPTIONS: list[dict[str, Any]] = [{}, {"num_blocks": 10}, {"num_blocks": 10, "preemption": "swap"}]


@LONG_RUN
@pytest.mark.parametrize("part", PARTS)
def test_a_readers_class_raises_at_any_call(tiny: Model, part: str, seed: int) -> None:
    rng, counts = random.Random(seed), Counter[str]()
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
        assert_clean(llm, where)
        again = by_generate(llm, wanted)
        assert again == alone, where
        assert_clean(llm, where)
    print(f"{part}: {EACH} faults, {dict(counts)}")


def test_an_attention_function_that_raises(tiny: Model) -> None:
    """The real model, and a reader's attention at every one of its first calls."""
    real = get_backend("torch")
    prompts = [[555, 554, 20, 21, 22], [30, 31, 32]]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    expected = texts(LLM(tiny, num_blocks=32, block_size=4, verbose=False).generate(prompts, params))
    for at in (1, 2, 3, 4, 7, 9):
        for when in ("before", "after"):
            fault = Fault()
            attend = fault.around(real)
            llm = LLM(tiny, num_blocks=32, block_size=4, verbose=False, attention_backend=attend)
            llm.cache.keys.fill_(torch.nan)
            fault.arm(at, when)
            with pytest.raises(ReadersError):
                llm.generate(prompts, params)
            assert_clean(llm, f"{at}, {when}")
            assert texts(llm.generate(prompts, params)) == expected


def test_an_error_before_the_first_line_of_schedule_leaves_the_step_before_alone(tiny: Model) -> None:
    expected = texts(toy(tiny).generate([PROMPT], PLAIN))
    fault = Fault()
    llm = make(tiny, "scheduler.schedule", fault)
    request_id = llm.add(PROMPT, PLAIN)
    llm.step()
    computed = llm.sequences()[0].table.num_tokens
    fault.arm(1, "before")
    with pytest.raises(ReadersError):
        llm.step()
    assert llm.sequences()[0].table.num_tokens == computed
    done: list[Completion] = []
    while llm.num_unfinished:
        done = [completion for completion in llm.step() if completion.request_id == request_id]
    assert texts(done) == expected


def test_a_table_class_reaches_a_prefix_cache_class(tiny: Model) -> None:
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


def test_what_a_class_lacks_is_named(tiny: Model) -> None:
    class Table(BlockTable):
        pass

    class OwnCache:
        def __init__(self, pool: Any) -> None: ...
        def match(self, token_ids: Any, *, leave: int = 0, salt: Any = None) -> Any: ...
        def insert(self, table: Any, token_ids: Any, *, salt: Any = None) -> int:
            return 0

    class FourMethods:
        def __init__(self, *arguments: Any, **options: Any) -> None: ...
        def add(self, request: Any) -> None: ...
        def schedule(self) -> Any: ...
        def rewind(self, plan: Any) -> None: ...
        def remove(self, request: Any) -> None: ...

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
        with pytest.raises(ValueError, match=said) as error:
            toy(tiny, **options)
        assert "\n" not in str(error.value)


def test_a_scheduler_with_the_named_attributes_runs_everything(tiny: Model) -> None:
    """A class that is no subclass, and has just what the contract names."""

    class Own:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._inner = Scheduler(*arguments, **options)
            self.pool = self._inner.pool
            self.max_batch_tokens = self._inner.max_batch_tokens
            self.max_sequences = self._inner.max_sequences

        running = property(lambda self: self._inner.running)
        waiting = property(lambda self: self._inner.waiting)
        swapped = property(lambda self: self._inner.swapped)

        def add(self, request: Any) -> None:
            self._inner.add(request)

        def schedule(self) -> Any:
            return self._inner.schedule()

        def rewind(self, plan: Any) -> None:
            self._inner.rewind(plan)

        def remove(self, request: Any) -> None:
            self._inner.remove(request)

    from pagedlab.widgets.stage import Stage

    expected = by_generate(toy(tiny), DRAFTED)
    llm = toy(tiny, scheduler=Own, speculative=PromptLookup(k=3))
    assert by_generate(llm, DRAFTED) == expected
    assert llm.sequences() == []
    Stage(llm)
