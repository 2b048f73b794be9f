"""The recording says what the scheduler did, and the timeline shows what was recorded. test_browser.py looks at it."""

import gc
import sys
from functools import partial
from itertools import groupby
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagedlab_lessons.checks.scheduling import Cheapest, FirstThatFits, Patient, ToyEngine
from pagedlab_lessons.drawing import fill
from pagedlab_lessons.timeline import KINDS, Cell, Row, run_of
from pagedlab_lessons.widgets import BlockPoolWidget, Stage
from pagedlab_lessons.widgets import timeline as module
from pagedlab_lessons.widgets.explore import Explorer
from pagedlab_lessons.widgets.guess import Guess
from pagedlab_lessons.widgets.timeline import LOOKS, Timeline, told
from traitlets import TraitError

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
    assert (figures.steps, figures.written, figures.written_a_step) == (8, 10, 1.25)
    assert (figures.waited_mean, figures.waited_p99, figures.largest) == (5 / 3, 5, 8)
    assert (figures.computed, figures.recomputed, figures.preempted) == (3 * 4 + 10 - 3, 0, {})
    for scheduler, how in ((Scheduler, "recompute"), (SwappingScheduler, "swap")):
        figures = run_after(ToyEngine(scheduler, num_blocks=6), (6, 10), (6, 10)).summary()
        assert figures.preempted == {how: 1}
        assert figures.computed - figures.recomputed == 2 * (6 + 10 - 1)
        assert (figures.recomputed > 0) == (how == "recompute")


def test_chunks_arrivals_and_the_end_of_a_recording():
    engine = ToyEngine(max_batch_tokens=8)
    recorder = Recorder(engine)
    engine.add(20, 2)
    engine.step()
    engine.add(4, 2)
    engine.run()
    recorder.close()
    recorder.close()
    engine.add(4, 2)
    engine.run()
    run = run_of(recorder.recording)
    assert letters(run) == ["PPPD", " WPD"]
    assert run.batches() == [{"P": 8}, {"P": 8}, {"P": 8}, {"D": 2}]
    cells = run.rows[0].cells
    assert [(c.start, c.tokens, c.wrote, c.writes) for c in cells] == [
        *((0, 8, 0, ""), (8, 8, 0, ""), (16, 4, 1, " 20"), (20, 1, 1, " 21")),
    ]
    assert cells[0].reads == " 0 1 2 3 4 5 6 7"


def test_an_aborted_request_ends_and_one_that_ends_at_once_is_seen():
    engine = ToyEngine(max_sequences=1)
    with Recorder(engine) as recorder:
        request = engine.add(4, 9)
        engine.add(4, 1)
        engine.step()
        request.finish_reason = "abort"
        engine.scheduler.remove(request)
        engine.run()
    run = run_of(recorder.recording)
    assert letters(run) == ["P", "WP"]
    assert [row.end for row in run.rows] == ["abort", "length"]


requests = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 20), st.integers(0, 15)), min_size=1, max_size=7)


@settings(max_examples=60)
@given(
    requests=requests,
    num_blocks=st.integers(8, 20),
    budget=st.integers(4, 40),
    policy=st.sampled_from([Scheduler, OneBatch, FirstThatFits, Patient, Cheapest]),
    kind=st.sampled_from([Scheduler, SwappingScheduler]),
)
def test_every_token_is_in_one_cell(requests, num_blocks, budget, policy, kind):
    """Whatever gives way and comes back: rows without holes, no batch above its budget, every token counted once."""
    if kind is SwappingScheduler:
        policy = kind if policy is Scheduler else type("Mixed", (policy, kind), {})
    engine = ToyEngine(policy, num_blocks=num_blocks, max_batch_tokens=budget)
    with Recorder(engine) as recorder:
        for step in range(2000):
            for prompt, new, arrives in requests:
                if arrives == step:
                    engine.add(prompt, new)
            if not engine.step().chunks and step >= 15:
                break
    run = run_of(recorder.recording)
    assert engine.pool.num_free == num_blocks
    assert len(run.rows) == len(requests)
    for row, (prompt, new, _) in zip(run.rows, sorted(requests, key=lambda request: request[2]), strict=True):
        assert set(row.kinds) <= set(KINDS)
        assert row.kinds.lstrip("W")[0] == "P"
        assert row.end == "length"
        assert row.cells[-1].tokens, "it ends in a step that computed it"
        assert sum(cell.wrote for cell in row.cells) == new
        assert sum(cell.tokens - cell.again for cell in row.cells) == prompt + new - 1
        assert kind is Scheduler or not sum(cell.again for cell in row.cells)
        assert ("S" in row.kinds) <= (kind is SwappingScheduler)
    totals = [sum(batch.values()) for batch in run.batches()]
    assert all(0 < total <= budget for total in totals)
    assert sum(totals) == run.summary().computed


def test_samples_of_the_real_engine(tiny):
    from pagedlab import LLM

    llm = LLM(tiny, num_blocks=64, verbose=False)
    plain = exactly(6)
    samples = exactly(6, n=3, temperature=1.0, seed=1)
    with Timeline(llm) as timeline:
        llm.generate(["The cat", "The old mill"], [plain, samples])
    run = timeline.run
    assert letters(run) == 2 * ["PDDDDD"]
    assert [[cell.wrote for cell in row.cells] for row in run.rows] == [6 * [1], 6 * [3]]
    assert [row.cells[1].tokens for row in run.rows] == [1, 3]
    assert run.rows[0].cells[0].reads == "The cat"
    assert run.rows[1].cells[0].writes.count(" | ") == 2
    assert run.summary().written == llm.stats.output_tokens


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
    drawn = ElementTree.fromstring(timeline.drawn["html"]).iter("g")  # noqa: S314
    return [(part.get("data-link", ""), part.get("data-say", ""), part.get("data-set", "")) for part in drawn]


def test_the_drawing_says_what_was_recorded():
    engine, timeline = watched()
    rows, drawn = timeline.run.rows, parts(timeline)
    for row in rows:
        kinds, step = [], row.first
        for kind, cells in groupby(row.kinds):
            last = step + len(list(cells)) - 1
            when = f"steps {step} to {last}" if last > step else f"step {step}"
            kinds.append((row.name, f"{row.name}, {KINDS[kind]}, {when}", f"step={step}"))
            step = last + 1
        assert [part for part in drawn if part[0] == row.name and part[2]] == kinds
    bars = [say for link, say, _ in drawn if link.startswith("step-")]
    assert bars[0] == "step 1, tokens computed: 24 prefill"
    assert len(bars) == timeline.run.steps
    assert set(LOOKS) == set(KINDS)
    assert len({fill(look) for look in LOOKS.values()}) == len(KINDS)
    assert engine._callbacks == [], "nobody watches after the end"


def test_the_slider_moves_the_words_and_the_blocks():
    _, timeline = watched(num_blocks=12)
    steps = timeline.recorder.recording["steps"]
    assert [step["step"] for step in steps] == list(range(timeline.run.steps + 1))
    assert steps[timeline.values["step"]]["used"] == max(step["used"] for step in steps), "it ends at the fullest step"
    for step in (1, 3, timeline.run.steps - 3):
        timeline.set(step=step)
        sequences, drawn = Replay(timeline.recorder.recording).seek(step).sequences, parts(timeline)
        blocks = {block: name for name, sequence in sequences.items() for block in sequence.blocks}
        assert {
            say.split(":")[0]: link for link, say, _ in drawn if say.startswith("block ") and "free" not in say
        } == {f"block {block}, {name}": name for block, name in blocks.items()}
        assert sum(say.startswith("block ") for _, say, _ in drawn) == 12
        for row in timeline.run.rows:
            assert (row.name, f"{row.name}, step {step}, {told(row, step) or 'not there'}", "") in drawn
    timeline.seek(10**6)
    assert timeline.values["step"] == timeline.run.steps
    timeline.close()


def test_a_cell_is_told_in_words():
    (row,) = run_after(ToyEngine(max_batch_tokens=8), (10, 2)).rows
    assert told(row, 1) == "prefill: tokens 0–7 “ 0 1 2 3 4 5 6 7”"
    assert told(row, 2) == "prefill: tokens 8–9 “ 8 9”; writes “ 10”"
    assert told(row, 3) == "decode: token 10; writes “ 11”; it has all its tokens"
    assert told(row, 4) == told(row, 0) == ""
    found = Row("r0", 1, [Cell("P", 4, 2, wrote=2, reads="a", writes="b | c")])
    assert told(found, 1) == "prefill: tokens 4–5 “a”; the 4 before were cached; writes 2 tokens, “b | c”"


def test_it_grows_while_the_engine_runs(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    engine = ToyEngine()
    timeline = Timeline(engine)
    assert timeline.controls[0]["options"] == [0]
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
    assert len(timeline.controls[0]["options"]) == 5
    assert "5 steps, 5 tokens written" in timeline.drawn["html"]


def test_a_long_run_is_drawn_in_part_and_says_so(monkeypatch):
    monkeypatch.setattr(module, "MAX_STEPS", 10)
    engine = ToyEngine()
    with Timeline(engine) as timeline:
        engine.add(8, 20)
        for _ in range(7):
            engine.step()
        engine.add(8, 20)
        for _ in range(5):
            engine.step()
        engine.add(8, 20)
        engine.run()
    assert f"Not drawn: {timeline.run.steps - 10} steps and 1 requests" in timeline.drawn["html"]
    said = [say for _, say, go in parts(timeline) if go and say.startswith("r")]
    assert said == [
        "r0, prefill, step 1",
        "r0, decode, steps 2 to 10",
        "r1, prefill, step 8",
        "r1, decode, steps 9 to 10",
    ]
    assert len(timeline.controls[0]["options"]) == 10
    assert timeline.run.rows[0].end == "length"
    monkeypatch.setattr(module, "MAX_ROWS", 1)
    timeline.seek(3)
    assert "steps and 2 requests" in timeline.drawn["html"]
    assert {link for link, say, _ in parts(timeline) if say.startswith("r")} == {"r0"}


def test_every_click_goes_to_a_step_of_the_slider_from_step_1000_on_too():
    engine = ToyEngine(num_blocks=256)
    with Timeline(engine, blocks=False) as timeline:
        engine.add(4, 1010)
        engine.run()
    goes = {go for _, _, go in parts(timeline) if go}
    assert goes == {f"step={option}" for option in timeline.controls[0]["options"]}
    assert "step=1010" in goes


@pytest.mark.parametrize(
    ("widget", "arguments"),
    [
        (Timeline, [5]),
        (Stage, [5]),
        (Stage, [{}]),
        (partial(BlockPoolWidget, num_blocks=0), []),
        (Explorer, [lambda: 5]),
        (Explorer, [5, 5]),
        (Guess, [5]),
    ],
)
def test_a_widget_that_is_refused_ends_in_silence(widget, arguments, monkeypatch):
    """A widget closes itself when it ends, a half-made one too."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    try:
        widget(*arguments)
    except (ValueError, TypeError, TraitError) as error:
        error.__traceback__ = None
    else:
        pytest.fail("it was not refused")
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


def test_a_toy_engine_refuses_what_cannot_fit():
    with pytest.raises(ValueError, match="needs 10 blocks"):
        ToyEngine(num_blocks=4).add(30, 10)
