"""A replay after step i is the engine as it was after step i."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagedlab_lessons.widgets.timeline import run_of

from pagedlab import LLM, SamplingParams
from pagedlab.recipes.speculative import PromptLookup, SpeculativeLLM
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.recipes.trace import Recorder, Replay, load_recording, moments, record
from pagedlab.scheduler import Scheduler
from support.engines import exactly
from support.faults import Fault, raising_at
from support.paths import ROOT
from support.refused import refused

PROMPTS = [
    "The cat",
    "The old mill by the river had",
    "A bell rang",
    "The cat sat on the mat and the cat sat on",
    "Zoë 你好 🎉",
]
SAMPLES = {"n": 3, "temperature": 1.0, "seed": 1}
PAGE = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
DOCUMENTED = {name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def state_of(llm):
    """What the engine itself says of its pool and of its sequences."""
    pool, blocks = llm.pool, range(llm.pool.num_blocks)
    sequences = {}
    for state, queue in llm.scheduler.queues().items():
        for each in queue:
            words = llm.decode(each.token_ids).rstrip("\ufffd")
            sequences[each.name] = state, each.table.num_tokens, [*each.table.block_ids], words, len(each.token_ids)
    counts = [pool.refcount(block) for block in blocks]
    return counts, {block for block in blocks if pool.keeps(block)}, pool.num_used, pool.num_cached, sequences


def replayed_state(replay):
    """The same of a replay."""
    sequences = {
        name: (each.state, each.tokens, each.blocks, "".join(each.words), len(each.words))
        for name, each in replay.sequences.items()
        if each.is_unfinished
    }
    return replay.counts, replay.kept, replay.now["used"], replay.now["cached"], sequences


def plan_of(llm):
    """What the engine's latest plan says, as a recording does."""
    plan = llm.plan
    return {
        "computed": {chunk.sequence.name: [chunk.start, chunk.stop] for chunk in plan.chunks},
        "admitted": {sequence.name for sequence in plan.admitted},
        "cached_tokens": sum(plan.admitted.values()),
        "preempted": {sequence.name: how for sequence, how in plan.preempted.items()},
        "drafts": [(c.stop - len(c.guesses), len(c.guesses)) for c in plan.chunks if c.guesses],
    }


def recorded_plan(step):
    admitted = step.get("admitted", {})
    return {
        "computed": step.get("computed", {}),
        "admitted": {*admitted, *step.get("resumed", [])},
        "cached_tokens": sum(admitted.values()),
        "preempted": step.get("preempted", {}),
        "drafts": [(draft["position"], draft["tokens"]) for draft in step.get("drafts", {}).values()],
    }


def fields_of(recording):
    texts = [text for step in recording["steps"] for text in step.get("texts", {}).values()]
    return {field for each in (recording, *recording["steps"], *texts) for field in each}


ADD = st.tuples(st.just("add"), st.sampled_from(PROMPTS), st.integers(1, 14), st.sampled_from([{}, SAMPLES]))
STEP = st.tuples(st.just("step"))
ABORT = st.tuples(st.just("abort"), st.integers(0, 9))


@settings(max_examples=25, deadline=None)
@given(
    scheduler=st.sampled_from([Scheduler, SwappingScheduler]),
    num_blocks=st.integers(16, 20),  # the largest request needs 16
    prefix_caching=st.booleans(),
    drafts=st.booleans(),
    actions=st.lists(st.one_of(ADD, STEP, STEP, STEP, ABORT), min_size=5, max_size=40),
)
def test_a_replay_after_any_step_is_the_engine_after_it(tiny, scheduler, num_blocks, prefix_caching, drafts, actions):
    """Samples, drafts, chunks, a cache, too few blocks, requests that are aborted."""
    llm = SpeculativeLLM(
        tiny,
        num_blocks=num_blocks,
        block_size=4,
        max_batch_tokens=16,
        scheduler=scheduler,
        prefix_caching=prefix_caching,
        drafter=PromptLookup(k=3) if drafts else None,
        verbose=False,
    )
    llm.generate(PROMPTS[:2], SamplingParams(max_tokens=3))  # what the cache holds is in step 0
    states, plans, live = [state_of(llm)], [{}], []
    readings = {"free": lambda: llm.pool.num_free}
    with Recorder(llm, readings=readings) as recorder:
        stop = llm.on_step(lambda: (states.append(state_of(llm)), plans.append(plan_of(llm))))
        for verb, *arguments in actions:
            if verb == "add":
                prompt, most, options = arguments
                live.append(llm.add(prompt, exactly(most, **options)))
            elif verb == "abort" and live:
                llm.abort(live.pop(arguments[0] % len(live)))
            else:
                llm.step()
        while llm.num_unfinished:
            llm.step()
        stop()
    recording = json.loads(json.dumps(recorder.recording))  # as a file has it
    replay = Replay(recording)
    assert len(replay) == len(states)
    for step, (state, plan) in enumerate(zip(states, plans, strict=True)):
        assert replayed_state(replay.seek(step)) == state, step
        assert not step or recorded_plan(replay.now) == plan, step
    assert replayed_state(replay.seek(0)) == states[0], "it can go back"
    assert [len(moment) for moment in moments(recording)] == [len(replay.seek(i).sequences) for i in range(len(replay))]
    run = run_of(recording)
    computed = sum(stop - start for plan in plans[1:] for start, stop in plan["computed"].values())
    assert (run.steps, sum(batch.total() for batch in run.batches)) == (len(plans) - 1, computed), (
        "the rows have all that plans computed"
    )
    looks = [text["look"] for step in recording["steps"] for text in step.get("texts", {}).values() if "look" in text]
    assert looks == list(range(len(looks))), "each sequence is new once"
    assert fields_of(recording) <= DOCUMENTED
    assert all(step["readings"]["free"] == num_blocks - step["used"] for step in recording["steps"][1:])


def test_the_table_during_a_step_is_noted_where_it_is_not_the_one_after(tiny):
    llm = LLM(tiny, num_blocks=16, block_size=4, prefix_caching=False, verbose=False)
    recording = record(llm, [PROMPTS[3]], [exactly(1)])
    (start, stop), (held,) = recording["steps"][1]["computed"]["r0"], recording["steps"][1]["held"].values()
    assert start == 0
    assert len(held) == -(-stop // 4), "it ended in this step, and its blocks are free again"
    assert Replay(recording).seek(1).sequences["r0"].blocks == []


def test_a_recorder_takes_an_engine():
    with refused("^llm must be an LLM, got None$"):
        Recorder(None)


def test_a_recording_goes_on_after_a_step_that_failed(tiny):
    """Its requests end with an error, their blocks are free, and nothing of the cache is left."""
    llm = LLM(tiny, num_blocks=32, block_size=4, verbose=False)
    with Recorder(llm) as recorder:
        llm.generate(PROMPTS[0], exactly(3))
        failed = llm.add(PROMPTS[0], exactly(3))
        llm.forward = raising_at(1, llm.forward)
        llm.step()
        with pytest.raises(Fault):
            llm.step()
        llm.generate(PROMPTS[1], exactly(3))
    replay = Replay(recorder.recording).seek(len(recorder.recording["steps"]) - 1)
    ended, later = (replay.sequences[f"r{request}"] for request in (failed, failed + 1))
    assert (ended.state, ended.blocks, later.state) == ("error", [], "length")
    assert not any(replay.counts), "blocks of the step that failed are free"
    assert {b for b in range(32) if llm.pool.keeps(b)} == set(replay.kept)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"null", b"{}", b'{"format": 2, "steps": []}'])
def test_a_file_that_is_no_recording_is_refused_in_one_line(content, tmp_path):
    (file := tmp_path / "recording.json").write_bytes(content)
    with refused("is no recording[^\n]+$"):
        Replay(load_recording(file))


def test_the_example_of_the_page_about_recordings_prints_what_the_page_says(capsys, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", str(ROOT / "data" / "tiny-qwen2"))
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    said = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
    exec(code, {})
    assert capsys.readouterr().out.endswith(said)
