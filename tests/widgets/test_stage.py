"""The recording loses nothing, and the stage shows what was recorded. test_browser.py looks at the page."""

import asyncio
import json
import time

import pytest
from pagedlab_lessons.checks.scheduling import ToyEngine
from pagedlab_lessons.widgets import Stage
from pagedlab_lessons.widgets import stage as module
from pagedlab_lessons.widgets.chat_template import is_template
from pagedlab_lessons.widgets.opening import unpacked
from pagedlab_lessons.widgets.picture import StagePicture
from pagedlab_lessons.widgets.replayed import answers_of, grid_of

from pagedlab import LLM, SamplingParams
from pagedlab.recipes.trace import Recorder, Replay, pieces
from support.engines import exactly
from support.fake_engine import FakeEngine, Text
from support.plain_pool import PlainPool

PROMPTS = [
    "The cat",
    "The old mill by the river had",
    "A bell rang",
    "The cat sat on the mat and the cat sat on",
]


def test_pieces_of_text_are_what_each_token_adds(tiny):
    text = "Zoë drank a café au lait: naïve, 你好 and 🎉, at 5 o'clock.\n\n  Indented."
    ids = tiny.tokenizer.encode(text)
    words = pieces(tiny.decode, ids)
    assert len(words) == len(ids)
    assert "".join(words) == tiny.decode(ids)
    for start in range(len(ids)):  # from wherever one goes on, if no character was cut there
        if not tiny.decode(ids[:start]).endswith("\ufffd"):
            assert pieces(tiny.decode, ids, start) == words[start:]


def test_samples_share_and_copy():
    engine = FakeEngine()
    with Stage(engine) as stage:
        engine.add("a", 6)
        first = engine.running[0]
        engine.running.append(Text("b", first.table.fork(), [*range(6)], 1))
        engine.step()
    assert stage.recorded["steps"][-1]["copies"] == [[1, 2]]
    grid = grid_of(stage.replay())
    assert (grid["shared"], grid["copied"]) == (1, 1)
    assert "1 copied" in stage.picture().headline()


def test_a_pool_without_events_is_read(tiny):
    """A reader's own, say: it has the verbs, and nothing more."""
    llm = LLM(tiny, num_blocks=16, block_size=4, block_pool=PlainPool, verbose=False)
    seen = []
    with Recorder(llm) as recorder:
        llm.on_step(lambda: seen.append([llm.pool.refcount(block_id) for block_id in range(16)]))
        llm.generate(PROMPTS[:2], SamplingParams(max_tokens=5))
    assert [Replay(recorder.recording).seek(k).counts for k in range(1, len(seen) + 1)] == seen


def test_older_steps_are_forgotten_and_the_rest_still_replays():
    engine = ToyEngine(num_blocks=200)
    with Recorder(engine) as everything, Recorder(engine, most=20) as recorder:
        for _ in range(6):
            engine.add(5, 30)
            for _ in range(9):
                engine.step()
        engine.run()
    assert len(recorder.recording["steps"]) <= 20
    assert recorder.forgotten + len(recorder.recording["steps"]) == len(everything.recording["steps"])
    full, rest = Replay(everything.recording), Replay(recorder.recording)
    for k in range(len(recorder.recording["steps"])):
        full.seek(recorder.forgotten + k), rest.seek(k)
        assert rest.counts == full.counts
        for name, text in rest.sequences.items():
            assert text == full.sequences[name]


def test_a_recording_is_a_small_file_that_plays_again(tmp_path, tiny):
    llm = LLM(tiny, num_blocks=64, verbose=False)
    with Stage(llm) as stage:
        llm.generate(PROMPTS[:2], exactly(20))
    stage.save(path := tmp_path / "two.json")
    assert path.stat().st_size < 6_000
    again = Stage(path)
    assert again.recorded == json.loads(json.dumps(stage.recorded))
    assert (again.live, again.step) == (False, -1)
    assert Stage(stage.recorded).picture().drawing() == stage.picture().drawing()
    again.seek(3)
    assert again.step == 3
    with pytest.raises(ValueError, match="step must be a whole number from 0 to 20, got 99"):
        again.seek(99)
    (tmp_path / "other.json").write_text('{"format": 7}')
    for wrong in (tmp_path / "other.json", {"steps": []}):
        with pytest.raises(ValueError, match="no recording of format 2"):
            Stage(wrong)


def test_the_stored_picture_shows_the_step_that_says_most(tiny):
    llm = LLM(tiny, num_blocks=64, prefix_caching=False, verbose=False)
    with Stage(llm) as stage:
        llm.generate(PROMPTS, exactly(20))
    data, _ = stage._repr_mimebundle_()
    assert "64 blocks of 16: 0 used" not in data["text/plain"], "not the last, which is empty"
    assert "The old mill" in data["image/svg+xml"].replace("</text>", "")
    assert len(data["image/svg+xml"]) < 30_000
    assert "…" not in data["image/svg+xml"], "all of it fits"


def test_a_stored_text_that_is_cut_at_its_front_begins_with_dots(tiny):
    llm = LLM(tiny, num_blocks=64, prefix_caching=False)
    for name in ("cat", "fox", "king"):
        llm.add(f"Once upon a time, there was a {name}", exactly(70))
    with Stage(llm) as stage:
        while llm.step():
            pass
    drawn = stage._repr_mimebundle_()[0]["image/svg+xml"]
    assert drawn.count("… ") == 3
    assert "Once" not in drawn


def test_updates_are_throttled_and_the_last_step_is_always_sent(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.05)

    async def generate():
        engine, sent = FakeEngine(num_blocks=200), []
        stage = Stage(engine)
        stage.observe(sent.append, "recorded")
        engine.add("a", 1)
        for _ in range(500):
            engine.step()
        engine.end()
        deadline = time.monotonic() + 20
        while len(stage.recorded["steps"]) < 502:
            assert time.monotonic() < deadline, "the last step was not sent"
            await asyncio.sleep(0.01)
        return len(sent), stage

    sent, stage = asyncio.run(generate())
    assert sent < 100
    assert len(stage.recorded["steps"]) == 502
    assert stage.recorded["steps"][-1]["used"] == 0


def test_what_the_engine_does_after_the_cell_leaves_its_stage_alone():
    engine = FakeEngine()
    with Stage(engine) as stage:
        engine.add("a", 5)
        engine.step()
    engine.end()
    assert stage.recorded["steps"][-1]["used"] == 2
    assert not stage.live
    assert not engine.callbacks
    assert not engine.pool.callbacks
    stage.close()


def test_a_large_pool_is_drawn_in_part_and_counted_in_full():
    engine = FakeEngine(num_blocks=5000)
    engine.add("a", 4 * 2000)
    stage = Stage(engine)
    recording = stage.recorded
    assert (recording["drawn"], recording["num_blocks"], recording["steps"][0]["used"]) == (1024, 5000, 2000)
    assert max(map(int, recording["steps"][0]["counts"])) == 1023
    assert "5000" not in stage.picture().headline() or stage.picture().drawing()


def test_people_have_their_names_on_the_stage(tiny):
    llm = LLM(tiny, num_blocks=32, block_size=4, verbose=False)
    with Stage(llm, names={"Anna": "old mill", "Ben": "bell"}) as stage:
        llm.generate(PROMPTS[:3], SamplingParams(max_tokens=3, n=2, temperature=1.0, seed=0))
    named = {name.split(".")[0] for step in stage.recorded["steps"] for name in step.get("texts", {})}
    assert named == {"r0", "Anna", "Ben"}
    for step in stage.recorded["steps"]:
        assert set(step.get("computed", {})) <= {"r0", "r0.1", "Anna", "Anna.1", "Ben", "Ben.1"}
    assert "Anna" in stage.picture().drawing()
    assert unpacked(stage.opening() or {})["recorded"] == json.loads(json.dumps(stage.recorded))
    assert "Anna" not in json.dumps(stage.recorder.recording if stage.recorder else "")


def test_what_a_chat_template_adds_is_not_drawn(tiny):
    llm = LLM(tiny, num_blocks=32, verbose=False)
    with Stage(llm) as stage:
        llm.add([{"role": "user", "content": "Why is the user blue?"}], SamplingParams(max_tokens=3))
        llm.step()
    (answer,) = answers_of(stage.replay(1))
    asked = "".join(words for _, words, is_prompt in answer["runs"] if is_prompt)
    assert asked == "Why is the user blue?"


def test_a_still_says_that_an_aborted_request_has_freed_its_blocks(tiny):
    llm = LLM(tiny, num_blocks=32, verbose=False)
    with Stage(llm, names={"A very long name": "old mill"}) as stage:
        request = llm.add(PROMPTS[0], SamplingParams(max_tokens=20, ignore_eos=True))
        llm.add(PROMPTS[1], SamplingParams(max_tokens=20, ignore_eos=True))
        for _ in range(3):
            llm.step()
        running = stage.picture().drawing()
        llm.abort(request)
        llm.step()
        llm.step()
    stopped = StagePicture(stage.replay(len(stage.recorded["steps"]) - 1)).drawing()
    assert "(aborted:" not in running
    assert stopped.count("(aborted:") == 1


def test_a_prompt_that_is_no_chat_has_no_template():
    assert is_template(["", "\n", "user"], 3) == [False] * 3
    assert is_template(["", "system", "\n", "You", "", "\n", "", "user", "\n", "Hi"], 10) == [True] * 9 + [False]
