"""A stream that nobody holds is collected at any line of a step: no wrong token, no dead engine, no leaked block.

Python's garbage collector may run between any two lines. A tracer runs it at one line of the bookkeeping, while two
other requests are in the engine, and looks at what they write.

PAGEDLAB_OPERATIONS=24000 tries that many lines, which are all; `make test` tries 240 drawn at random. -s prints what
was counted.
"""

import gc
from collections import Counter

import pytest

from pagedlab.outputs import Stream
from pagedlab.speculative import PromptLookup
from support.engines import all_ids_of, exactly, finished
from support.operations import LONG_RUN, OPERATIONS
from support.toy import at_each_line, some_moments, toy, toy_ahead

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]
PLAIN = exactly(8)
SAMPLES = exactly(6, n=4, temperature=0.9, seed=1)
BEAMS = exactly(6, beam_width=3)
REPEATING = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
TWO = [(PROMPT, PLAIN), ([3, 4], PLAIN)]
ALIKE = [(PROMPT, PLAIN), (PROMPT[:5], PLAIN)]
SAMPLED = [(PROMPT, SAMPLES), ([3, 4], PLAIN)]

SCENARIOS = {
    "plain": (toy, {}, TWO),
    "no cache": (toy, {"prefix_caching": False}, TWO),
    "shared prefix": (toy, {}, [([*PROMPT, 20], PLAIN), ([*PROMPT, 21], PLAIN)]),
    "samples": (toy, {}, SAMPLED),
    "beams": (toy, {}, [(PROMPT, BEAMS), ([3, 4], PLAIN)]),
    "recompute": (toy, {"num_blocks": 9}, ALIKE),
    "swap": (toy, {"num_blocks": 9, "preemption": "swap"}, ALIKE),
    "swapped samples": (toy, {"num_blocks": 14, "preemption": "swap"}, SAMPLED),
    "speculation": (toy, {"speculative": PromptLookup(k=3)}, [(REPEATING, PLAIN), (PROMPT, PLAIN)]),
    "run ahead": (toy_ahead, {}, TWO),
    "run ahead, few blocks": (toy_ahead, {"num_blocks": 9}, ALIKE),
    "run ahead, samples": (toy_ahead, {}, SAMPLED),
}
EACH = (OPERATIONS or 240) // len(SCENARIOS)


@pytest.fixture(autouse=True)
def collected_by_the_test_alone(tiny):
    gc.disable()
    gc.freeze()  # a collection takes microseconds if it need not look through torch and transformers
    yield
    gc.enable()


class Cycle:
    """Holds a stream and itself, so that only the garbage collector can end the stream."""

    def __init__(self, stream):
        self.stream = stream
        self.own = self


def run(llm, wanted, event):
    """Start an abandoned stream and then the wanted requests; call `event` at each line of the steps."""
    Cycle(llm.stream([*PROMPT[:6], 30], PLAIN))
    ids = [llm.add(prompt, params) for prompt, params in wanted]
    done = {}
    with at_each_line(event):
        for _ in range(200):
            done |= finished(llm.step())
            if all(request_id in done for request_id in ids):
                break
    assert all(request_id in done for request_id in ids), "the engine does not finish these requests"
    return [done[request_id] for request_id in ids]


def moments(llm, wanted):
    """Lines of the bookkeeping, each with a few of the times that it runs."""
    counts = Counter()
    run(llm, wanted, lambda place: counts.update([place]))
    return some_moments(counts)


@LONG_RUN
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stream_is_collected_at_any_line_of_a_step(tiny, name, rng):
    make, options, wanted = SCENARIOS[name]
    alone = [all_ids_of(toy(tiny).generate([prompt], params))[0] for prompt, params in wanted]
    points = moments(make(tiny, **options), wanted)
    chosen = rng.sample(points, min(EACH, len(points)))
    for (file, line), nth in chosen:
        llm = make(tiny, **options)
        seen = 0

        def event(place, place_wanted=(file, line), nth=nth):
            nonlocal seen
            seen += place == place_wanted
            if seen == nth and place == place_wanted:
                gc.collect()

        where = f"{file}:{line}, time {nth}"
        assert all_ids_of(run(llm, wanted, event)) == alone, where
        gc.collect()
        assert all_ids_of(llm.generate([wanted[0][0]], wanted[0][1])) == alone[:1], where
        assert llm.num_unfinished == 0, where
        llm.pool.check([])
        assert llm.pool.num_used == 0, where
    print(f"{name}: {len(chosen)} of {len(points)} points")


def test_the_collector_ends_a_stream_inside_a_step(tiny):
    """The sweep above would find nothing if no collection ever ended the stream: here one does."""
    llm = toy(tiny)
    cycle = Cycle(llm.stream(PROMPT, PLAIN))
    other = llm.add([3, 4], PLAIN)
    inside = llm.forward

    def collecting(*arguments):
        gc.collect()
        return inside(*arguments)

    llm.forward = collecting
    del cycle
    touched = llm.step()
    assert [len(completion.outputs[0].token_ids) for completion in touched] == [1, 1], "the step is whole"
    assert [completion.outputs[0].finish_reason for completion in touched] == ["abort", None]
    assert [completion.request_id for completion in llm.step()] == [other]
    assert llm.num_unfinished == 1


def test_a_stream_is_not_copied(tiny):
    import copy

    stream = toy(tiny).stream(PROMPT, PLAIN)
    assert isinstance(stream, Stream)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(stream)


def test_an_abort_by_a_subscriber_waits_for_the_end_of_the_step(tiny):
    llm = toy(tiny)
    expected = all_ids_of(toy(tiny).generate([[3, 4]], PLAIN))[0]
    first, second = llm.add(PROMPT, PLAIN), llm.add([3, 4], PLAIN)
    llm.pool.subscribe(lambda event: llm.abort(first))
    done = {}
    while llm.num_unfinished:
        done |= finished(llm.step())
    assert all_ids_of([done[second]])[0] == expected
    assert done[first].outputs[0].finish_reason == "abort"
    assert llm.pool.num_used == 0
