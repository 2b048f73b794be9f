"""A stream that nobody holds is collected at any line of a step: no wrong token, no dead engine, no leaked block.

Python's garbage collector may run between any two lines. A tracer runs it at one line of the bookkeeping, while two
other requests are in the engine, and looks at what they write.

PAGEDLAB_OPERATIONS=24000 tries that many lines, which are all; `make test` tries 1,200 drawn at random. -s prints what
was counted.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LONG_RUN, OPERATIONS
from toy import Place, at_each_line, texts, toy, toy_ahead

from pagedlab import LLM, BlockPool, Completion, SamplingParams
from pagedlab.outputs import Stream
from pagedlab.speculative import PromptLookup

if TYPE_CHECKING:
    from pagedlab.model import Model

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]
PLAIN = SamplingParams(max_tokens=8, ignore_eos=True)
SAMPLES = SamplingParams(max_tokens=6, n=4, temperature=0.9, seed=1, ignore_eos=True)
BEAMS = SamplingParams(max_tokens=6, beam_width=3, ignore_eos=True)
REPEATING = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


Scenario = tuple[Callable[..., LLM], dict[str, Any], list[tuple[list[int], SamplingParams]]]
SCENARIOS: dict[str, Scenario] = {
    "plain": (toy, {}, [(PROMPT, PLAIN), ([3, 4], PLAIN)]),
    "no cache": (toy, {"prefix_caching": False}, [(PROMPT, PLAIN), ([3, 4], PLAIN)]),
    "shared prefix": (toy, {}, [([*PROMPT, 20], PLAIN), ([*PROMPT, 21], PLAIN)]),
    "samples": (toy, {}, [(PROMPT, SAMPLES), ([3, 4], PLAIN)]),
    "beams": (toy, {}, [(PROMPT, BEAMS), ([3, 4], PLAIN)]),
    "recompute": (toy, {"num_blocks": 9}, [(PROMPT, PLAIN), (PROMPT[:5], PLAIN)]),
    "swap": (toy, {"num_blocks": 9, "preemption": "swap"}, [(PROMPT, PLAIN), (PROMPT[:5], PLAIN)]),
    "swapped samples": (toy, {"num_blocks": 14, "preemption": "swap"}, [(PROMPT, SAMPLES), ([3, 4], PLAIN)]),
    "speculation": (toy, {"speculative": PromptLookup(k=3)}, [(REPEATING, PLAIN), (PROMPT, PLAIN)]),
    "run ahead": (toy_ahead, {}, [(PROMPT, PLAIN), ([3, 4], PLAIN)]),
    "run ahead, few blocks": (toy_ahead, {"num_blocks": 9}, [(PROMPT, PLAIN), (PROMPT[:5], PLAIN)]),
    "run ahead, samples": (toy_ahead, {}, [(PROMPT, SAMPLES), ([3, 4], PLAIN)]),
}
EACH = (OPERATIONS or 1_200) // len(SCENARIOS)


@pytest.fixture(autouse=True)
def collected_by_the_test_alone(tiny: Model) -> Iterator[None]:
    gc.disable()
    gc.freeze()  # a collection takes microseconds if it need not look through torch and transformers
    yield
    gc.enable()


class Cycle:
    """Holds a stream and itself, so that only the garbage collector can end the stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.own = self


def run(llm: LLM, wanted: list[tuple[list[int], SamplingParams]], event: Callable[[Place], None]) -> list[Completion]:
    """Start an abandoned stream and then the wanted requests; call `event` at each line of the steps."""
    Cycle(llm.stream([*PROMPT[:6], 30], PLAIN))
    ids = [llm.add(prompt, params) for prompt, params in wanted]
    done: dict[int, Completion] = {}
    with at_each_line(event):
        for _ in range(200):
            done |= {completion.request_id: completion for completion in llm.step() if completion.finished}
            if all(request_id in done for request_id in ids):
                break
    assert all(request_id in done for request_id in ids), "the engine does not finish these requests"
    return [done[request_id] for request_id in ids]


def moments(llm: LLM, wanted: list[tuple[list[int], SamplingParams]]) -> list[tuple[Place, int]]:
    """Lines of the bookkeeping, each with a few of the times that it runs."""
    counts: Counter[Place] = Counter()
    run(llm, wanted, lambda place: counts.update([place]))
    some = {place: {1, *(max(1, count * q // 4) for q in range(1, 5))} for place, count in counts.items()}
    return [(place, nth) for place, times in some.items() for nth in times]


@LONG_RUN
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stream_is_collected_at_any_line_of_a_step(tiny: Model, name: str, seed: int) -> None:
    make, options, wanted = SCENARIOS[name]
    alone = [texts(toy(tiny).generate([prompt], params))[0] for prompt, params in wanted]
    points = moments(make(tiny, **options), wanted)
    rng = random.Random(seed)
    chosen = rng.sample(points, min(EACH, len(points)))
    for (file, line), nth in chosen:
        llm = make(tiny, **options)
        seen = 0

        def event(place: Place, place_wanted: Place = (file, line), nth: int = nth) -> None:
            nonlocal seen
            seen += place == place_wanted
            if seen == nth and place == place_wanted:
                gc.collect()

        where = f"{file}:{line}, time {nth}"
        assert texts(run(llm, wanted, event)) == alone, where
        gc.collect()
        assert texts(llm.generate([wanted[0][0]], wanted[0][1])) == alone[:1], where
        assert llm.num_unfinished == 0, where
        assert isinstance(llm.pool, BlockPool)
        llm.pool.check([])
        assert llm.pool.num_used == 0, where
    print(f"{name}: {len(chosen)} of {len(points)} points")


def test_the_collector_ends_a_stream_inside_a_step(tiny: Model) -> None:
    """The sweep above would find nothing if no collection ever ended the stream: here one does."""
    llm = toy(tiny)
    cycle = Cycle(llm.stream(PROMPT, PLAIN))
    other = llm.add([3, 4], PLAIN)
    inside = llm.forward

    def collecting(*arguments: Any) -> Any:
        gc.collect()
        return inside(*arguments)

    llm.forward = collecting
    del cycle
    touched = llm.step()
    assert [len(completion.outputs[0].token_ids) for completion in touched] == [1, 1], "the step is whole"
    assert [completion.outputs[0].finish_reason for completion in touched] == ["abort", None]
    assert [completion.request_id for completion in llm.step()] == [other]
    assert llm.num_unfinished == 1


def test_a_stream_is_not_copied(tiny: Model) -> None:
    import copy

    stream = toy(tiny).stream(PROMPT, PLAIN)
    assert isinstance(stream, Stream)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(stream)


def test_an_abort_by_a_subscriber_waits_for_the_end_of_the_step(tiny: Model) -> None:
    llm = toy(tiny)
    expected = texts(toy(tiny).generate([[3, 4]], PLAIN))[0]
    first, second = llm.add(PROMPT, PLAIN), llm.add([3, 4], PLAIN)
    assert isinstance(llm.pool, BlockPool)
    llm.pool.subscribe(lambda event: llm.abort(first))
    done: dict[int, Completion] = {}
    while llm.num_unfinished:
        done |= {c.request_id: c for c in llm.step() if c.finished}
    assert texts([done[second]])[0] == expected
    assert done[first].outputs[0].finish_reason == "abort"
    assert llm.pool.num_used == 0
