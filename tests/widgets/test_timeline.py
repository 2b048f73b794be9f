"""The recording says what the scheduler did, and the timeline shows what was recorded. test_browser.py looks at it."""

import gc
import sys
from functools import partial
from itertools import groupby
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagedlab_lessons.checks.n09 import Cheapest, FirstThatFits, Patient, ToyEngine
from pagedlab_lessons.drawing import fill
from pagedlab_lessons.widgets import BlockPoolWidget, Stage
from pagedlab_lessons.widgets import timeline as module
from pagedlab_lessons.widgets.explore import Explorer
from pagedlab_lessons.widgets.guess import Guess
from pagedlab_lessons.widgets.timeline import KINDS, LOOKS, Cell, Row, Timeline, run_of, told
from traitlets import TraitError

from pagedlab import LLM
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.recipes.trace import Recorder, Replay
from pagedlab.scheduler import Scheduler
from support.engines import exactly


def letters(run):
    return [" " * (row.first - 1) + row.kinds for row in run.rows]


def run_after(engine, *requests):
    """The recorded run of an engine to which these requests are added, each with its prompt's and answer's lengths."""
    with Recorder(engine) as recorder:
        for prompt, new in requests:
            engine.add(prompt, new)
        engine.run()
    return run_of(recorder.recording)


# The recording ---------------------------------------------------------------------------------------------------


class OneBatch(Scheduler):
    def may_admit(self, request):
        return len(self.plan.admitted) == len(self.running) and super().may_admit(request)


class Newest(Scheduler):
    def next_waiting(self):
        return self.waiting[-1]


@pytest.mark.parametrize(
    ("scheduler", "options", "requests", "expected"),
    [
        (OneBatch, {"max_sequences": 2}, [(4, 5), (4, 2), (4, 3)], ["PDDDD", "PD", "WWWWWPDD"]),
        (Newest, {"max_batch_tokens": 8}, [(20, 3), (4, 3)], ["PPPDD", "P--DD"]),
        (Scheduler, {"num_blocks": 6}, 2 * [(6, 10)], ["P" + 9 * "D", "PDDDDDDWWWRDD"]),
        (SwappingScheduler, {"num_blocks": 6}, 2 * [(6, 10)], ["P" + 9 * "D", "PDDDDDDSSSDDD"]),
    ],
)
def test_each_step_of_a_request_is_a_letter(scheduler, options, requests, expected):
    run = run_after(ToyEngine(scheduler, **options), *requests)
    assert letters(run) == expected
    assert [row.waited for row in run.rows] == [sum(row.kinds.count(kind) for kind in "WS-") for row in run.rows]


def test_a_run_is_told_in_figures():
    run = run_after(ToyEngine(OneBatch, max_sequences=2), (4, 5), (4, 2), (4, 3))
    assert [row.to_first_token for row in run.rows] == [1, 1, 6]
    figures = run.summary()
    assert (figures.steps, figures.written) == (8, 10)
    assert (figures.waited_mean, figures.waited_longest, figures.largest) == (5 / 3, 5, 8)
    for scheduler, how in ((Scheduler, "recompute"), (SwappingScheduler, "swap")):
        run = run_after(ToyEngine(scheduler, num_blocks=6), (6, 10), (6, 10))
        assert (run.preempted, run.summary().recomputed > 0) == ({how: 1}, how == "recompute")


def test_chunks_arrivals_aborts_and_the_end_of_a_recording():
    engine = ToyEngine(max_batch_tokens=8)
    recorder = Recorder(engine)
    engine.add(20, 2)
    engine.step()
    engine.add(4, 2)
    request = engine.add(4, 9)
    for _ in range(3):
        engine.step()
    request.finish_reason = "abort"
    engine.scheduler.remove(request)
    engine.add(4, 1)
    engine.run()
    recorder.close()
    recorder.close()
    engine.add(4, 2)
    engine.run()
    run = run_of(recorder.recording)
    assert letters(run) == ["PPPD", " WPD", " WWP", "    P"]
    assert [row.end for row in run.rows] == ["length", "length", "abort", "length"]
    assert run.batches == [{"P": 8}, {"P": 8}, {"P": 8}, {"D": 2, "P": 4}, {"P": 4}]
    assert [told(run.rows[0], step) for step in (1, 3, 4, 5)] == [
        "prefill: tokens 0–7 “ 0 1 2 3 4 5 6 7”",
        "prefill: tokens 16–19 “ 16 17 18 19”; writes “ 20”",
        "decode: token 20; writes “ 21”; it has all its tokens",
        "",
    ]
    found = Row("r0", 1, [Cell("P", 4, 2, wrote=2, reads="a", writes="b | c")])
    assert told(found, 1) == "prefill: tokens 4–5 “a”; the 4 before were cached; writes 2 tokens, “b | c”"


requests = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 20), st.integers(0, 15)), min_size=1, max_size=7)


@settings(max_examples=60)
@given(
    requests=requests,
    num_blocks=st.integers(8, 20),
    budget=st.integers(4, 40),
    policy=st.sampled_from([Scheduler, SwappingScheduler, OneBatch, FirstThatFits, Patient, Cheapest]),
)
def test_every_token_is_in_one_cell(requests, num_blocks, budget, policy):
    """Whatever gives way and comes back: rows without holes, no batch above its budget, every token counted once."""
    engine = ToyEngine(policy, num_blocks=num_blocks, max_batch_tokens=budget)
    requests.sort(key=lambda request: request[2])
    with Recorder(engine) as recorder:
        for step in range(16):
            for prompt, new, arrives in requests:
                if arrives == step:
                    engine.add(prompt, new)
            engine.step()
        engine.run()
    run = run_of(recorder.recording)
    assert engine.pool.num_free == num_blocks
    for row, (prompt, new, _) in zip(run.rows, requests, strict=True):
        assert set(row.kinds) <= set(KINDS)
        assert row.kinds.lstrip("W")[0] == "P"
        assert row.end == "length"
        assert row.cells[-1].tokens, "it ends in a step that computed it"
        assert sum(cell.wrote for cell in row.cells) == new
        assert sum(cell.tokens - cell.again for cell in row.cells) == prompt + new - 1
        assert policy is not SwappingScheduler or not sum(cell.again for cell in row.cells)
    totals = [sum(batch.values()) for batch in run.batches]
    assert all(0 < total <= budget for total in totals)


def test_samples_of_the_real_engine(tiny):
    llm = LLM(tiny, num_blocks=64, verbose=False)
    with Timeline(llm) as timeline:
        llm.generate(["The cat", "The old mill"], [exactly(6), exactly(6, n=3, temperature=1.0, seed=1)])
    run = timeline.run
    assert letters(run) == 2 * ["PDDDDD"]
    assert [[(cell.wrote, cell.tokens) for cell in row.cells[1:]] for row in run.rows] == [5 * [(1, 1)], 5 * [(3, 3)]]
    assert run.rows[0].cells[0].reads == "The cat"
    assert run.rows[1].cells[0].writes.count(" | ") == 2


# The widget ------------------------------------------------------------------------------------------------------


def watched(num_blocks=16, requests=3, new=20, **options):
    engine = ToyEngine(SwappingScheduler, num_blocks=num_blocks)
    with Timeline(engine, **options) as timeline:
        for _ in range(requests):
            engine.add(8, new)
        engine.run()
    return engine, timeline


def parts(timeline):
    """Of each part of the drawing: what lights with it, what it says, what a click sets."""
    wide, _, _ = timeline.drawn["html"].partition('<svg class="px-narrow"')
    drawn = ElementTree.fromstring(wide).iter("g")  # noqa: S314
    return [(part.get("data-link", ""), part.get("data-say", ""), part.get("data-set", "")) for part in drawn]


def test_the_drawing_says_what_was_recorded():
    _, timeline = watched()
    rows, drawn = timeline.run.rows, parts(timeline)
    for row in rows:
        says, step, pointed = [], row.first, timeline.values["step"]
        for kind, cells in groupby(row.kinds):
            last = step + len(list(cells)) - 1
            when = f"steps {step} to {last}" if last > step else f"step {step}"
            says.append(f"{row.name}, {KINDS[kind]}, {when}")
            step = last + 1
        now = f"{row.name}, step {pointed}, {told(row, pointed) or 'not there'} · "
        says[0] = says[0].replace(f"{row.name}, ", now, 1)
        assert [say for _, say, _ in drawn if say.startswith(f"{row.name}, ")] == says
    bars = [say for link, say, _ in drawn if link.startswith("step-")]
    assert bars[0] == "step 1, tokens computed: 24 prefill"
    assert len(bars) == timeline.run.steps
    assert set(LOOKS) == set(KINDS)
    assert len({fill(look) for look in LOOKS.values()}) == len(KINDS)


def test_the_slider_moves_the_words_and_the_blocks():
    _, timeline = watched(num_blocks=12)
    steps = timeline.recorder.recording["steps"]
    assert steps[timeline.values["step"]]["used"] == max(step["used"] for step in steps), "it ends at the fullest step"
    for step in (1, timeline.run.steps - 3):
        timeline.set(step=step)
        sequences, drawn = Replay(timeline.recorder.recording).seek(step).sequences, parts(timeline)
        held = {(f"block {block}, {name}", name) for name, each in sequences.items() for block in each.blocks}
        blocks = [(say.split(":")[0], link) for link, say, _ in drawn if say.startswith("block ")]
        assert {(block, link) for block, link in blocks if link in sequences} == held
        assert len(blocks) == 12
        for row in timeline.run.rows:
            said = f"{row.name}, step {step}, {told(row, step) or 'not there'} · "
            assert any(say.startswith(said) for _, say, _ in drawn)
    timeline.seek(10**6)
    assert timeline.values["step"] == timeline.run.steps


def test_it_grows_while_the_engine_runs(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    engine = ToyEngine()
    timeline = Timeline(engine)
    assert "Nothing has run yet." in timeline.drawn["html"]
    engine.add(4, 5)
    for step in (1, 2, 3):
        engine.step()
        assert timeline.values == {"step": step}
        assert timeline.controls[0]["options"] == list(range(1, step + 1))
    monkeypatch.setattr(module, "INTERVAL", 1000.0)
    engine.step()  # shown, since the last interval is over; from now on nothing is for a long time
    engine.step()
    assert timeline.values == {"step": 4}
    timeline.end()
    assert "5 steps, 5 tokens written" in timeline.drawn["html"]
    engine.add(4, 5)
    engine.run()
    assert timeline.run.steps == 5, "nobody watches after the end"


def test_a_long_run_is_drawn_in_part_and_says_so(monkeypatch):
    monkeypatch.setattr(module, "MAX_STEPS", 10)
    monkeypatch.setattr(module, "MAX_ROWS", 1)
    _, timeline = watched(requests=2, blocks=False)
    assert "Drawn: the first 1 requests in the first 10 steps" in timeline.drawn["html"]
    assert {go for _, _, go in parts(timeline) if go} == {f"step={step}" for step in range(1, 11)}
    assert {link for link, say, _ in parts(timeline) if say.startswith("r")} == {"r0"}


@pytest.mark.parametrize("widget", [Timeline, Stage, partial(BlockPoolWidget, num_blocks=0), Explorer, Guess])
def test_a_widget_that_is_refused_ends_in_silence(widget, monkeypatch):
    """A widget closes itself when it ends, a half-made one too."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    try:
        widget(5)
    except (ValueError, TypeError, TraitError) as error:
        error.__traceback__ = None
    gc.collect()
    assert not printed, [problem.exc_value for problem in printed]


def test_what_is_stored_shows_every_kind_by_name():
    _, timeline = watched(blocks=False, num_blocks=12)
    data, _ = timeline._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "preemptions: " in data["text/plain"]
    svg = data["image/svg+xml"]
    for kind in "PDS":
        assert f">{KINDS[kind]}</text>" in svg
        assert f'fill="{fill(LOOKS[kind])}"' in svg
    assert "blocks" not in svg
    assert "blocks" in watched()[1].still()[0]["image/svg+xml"]
