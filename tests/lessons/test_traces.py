"""Request-length traces: the generator and the shipped files."""

from collections import Counter

import numpy as np
import pytest
from pagedlab_lessons.traces import PERCENTILES, SHAPES, load, shared_prompts, synthetic


@pytest.mark.parametrize(("name", "means"), [("conversation", [1149.5, 215.6]), ("code", [2034.5, 30.3])])
def test_a_trace_is_the_one_that_its_page_describes(name, means):
    trace = load(name)
    assert trace.rows[:, 1:].mean(0).round(1).tolist() == means
    assert trace.requests() == synthetic(name, 2000).requests()
    assert trace.source.startswith("synthetic, shaped by the Azure LLM inference trace 2023")


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_percentiles_and_rate_are_those_asked_for(name, seed):
    n = 20_000
    trace, shape = synthetic(name, n, seed), SHAPES[name]
    assert (np.diff(trace.seconds) >= 0).all()
    for lengths, values in zip(trace.rows.T[1:], (shape.prompt, shape.output), strict=True):
        assert round(values[0]) <= lengths.min() <= lengths.max() <= round(values[-1])
        for p, value in zip(PERCENTILES[2:9], values[2:9], strict=True):
            # The share of lengths below a percentile's value is binomial: six standard deviations either way, and
            # half a token, since lengths are whole. Many requests may share the value itself.
            margin = 6 * (p / 100 * (1 - p / 100) / n) ** 0.5
            assert (lengths < value - 0.5).mean() <= p / 100 + margin, (name, p)
            assert (lengths <= value + 0.5).mean() >= p / 100 - margin, (name, p)
    assert len(trace.rows) / trace.seconds[-1] == pytest.approx(shape.rate, rel=6 / n**0.5)


def test_first_and_at_most_keep_the_order():
    requests = load("conversation").requests()
    short = load("conversation").at_most(500).first(7)
    assert short.requests() == [r for r in requests if sum(r) <= 500][:7]


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"name must be one of 'conversation', 'code'.*, got 'mails'"):
        load("mails")


def test_prompts_that_begin_alike(seed):
    single = shared_prompts(200, num_systems=3, chats=0, vocabulary=50_000, seed=seed)
    openings = Counter(tuple(prompt[:64]) for prompt, _ in single)
    assert len(openings) == 3
    assert max(openings.values()) > 200 / 3  # Zipf: the first of three gets six of eleven
    assert len({tuple(prompt) for prompt, _ in single}) == 200
    chats = shared_prompts(200, num_systems=3, vocabulary=50_000, seed=seed)
    past = {tuple(prompt + answer) for prompt, answer in chats}
    turns = sum(any(tuple(prompt[:n]) in past for n in range(len(prompt))) for prompt, _ in chats)
    assert 60 < turns < 140
