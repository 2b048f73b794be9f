"""benchmarks/serving.py: its rungs are the ones that it names, and each gives its memory to the next."""

import re
import weakref

import pytest

import serving
from pagedlab_fast import LLM
from support.ahead import running_ahead


def test_every_rung_is_told_in_order():
    told = re.findall(r"^  (\w+(?: \w+)?)  +\S", serving.__doc__ or "", re.MULTILINE)
    assert told == [*serving.RUNGS]
    assert {*serving.ON_GPU_ONLY, *serving.PROFILED, *serving.FIRST_ONLY} <= {*told}


def test_a_rung_gives_its_blocks_back(tiny, monkeypatch):
    """`warm_up` freezes what is there, so that a collection alone does not find the engine's cycles any more."""
    caches = []

    def made(*args, **options):
        llm = LLM(*args, **options)
        caches.append(weakref.ref(llm.cache))
        return llm

    monkeypatch.setattr(serving.pagedlab_fast, "LLM", made)
    monkeypatch.setattr(serving, "GPU", False)
    row = serving.measure(tiny, "fused", *serving.requests(3, (4, 8), (4, 8), tiny.vocab_size, 0))
    assert row["tokens/s"] > 0
    serving.give_back()
    assert [cache() for cache in caches] == [None]


def test_graphs_alone_are_waited_for(tiny):
    """One step a window and one window at a time, whatever the balance says."""
    pytest.importorskip("triton")
    llm = LLM(tiny, num_blocks=64, verbose=False, **running_ahead())
    serving.one_by_one(llm.runner)
    runner, in_flight = llm.runner, []
    launch = runner.decoder.launch
    runner.decoder.launch = lambda *args: (in_flight.append(runner.in_flight), launch(*args))[1]
    completions = llm.generate([[1, 2, 3], [4, 5]], serving.sampled([6, 4]))
    assert [len(c.outputs[0].token_ids) for c in completions] == [6, 4]
    assert in_flight == [0] * 6
    assert llm.stats.steps == 6
