"""The recording loses nothing, and the stage shows what was recorded. test_browser.py looks at the page."""

import json
import re

import pytest
from pagedlab_lessons.checks.n09 import ToyEngine
from pagedlab_lessons.widgets import Stage
from pagedlab_lessons.widgets.picture import picture_of_stage, words_of

from pagedlab import LLM, SamplingParams
from pagedlab.recipes.trace import Recorder, Replay
from support.engines import exactly
from support.explorers import unpacked
from support.plain_pool import PlainPool

PROMPTS = ["The cat", "The old mill by the river had", "A bell rang", "The cat sat on the mat and the cat sat on"]


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
    full, rest = Replay(everything.recording), Replay(recorder.recording)
    assert len(rest) <= 20
    assert recorder.forgotten + len(rest) == len(full)
    for k in range(len(rest)):
        shown = full.seek(recorder.forgotten + k)
        assert rest.seek(k).counts == shown.counts
        assert rest.sequences.items() <= shown.sequences.items()


def test_a_recording_is_a_small_file_that_plays_again(tmp_path, tiny):
    llm = LLM(tiny, num_blocks=64, verbose=False)
    with Stage(llm) as stage:
        llm.generate(PROMPTS[:2], exactly(20))
    stage.save(path := tmp_path / "two.json")
    assert path.stat().st_size < 6_000
    again = Stage(path)
    assert again.recorded == json.loads(json.dumps(stage.recorded))
    assert not again.live
    assert Stage(stage.recorded).picture() == stage.picture()
    with pytest.raises(ValueError, match="step must be a whole number from 0 to 20, got 99"):
        again.replay(99)
    (tmp_path / "other.json").write_text('{"format": 7}')
    for wrong in (tmp_path / "other.json", {"steps": []}):
        with pytest.raises(ValueError, match="no recording of format 2"):
            Stage(wrong)


def words_in(drawing):
    return " ".join(re.findall(">([^<>]*)</text>", drawing))


def test_the_stored_picture_shows_the_step_that_says_most(tiny):
    """All of it, or of long texts the last blocks; names before the words."""
    name = "A very long name"
    llm = LLM(tiny, num_blocks=64, prefix_caching=False, verbose=False)
    with Stage(llm, names={name: "old mill"}) as stage:
        llm.generate(PROMPTS, exactly(20))
    data, _ = stage._repr_mimebundle_()
    assert "64 blocks of 16: 0 used" not in data["text/plain"], "not the last, which is empty"
    assert words_in(data["image/svg+xml"]).count("The old mill") == 1
    assert len(data["image/svg+xml"]) < 40_000
    with Stage(llm) as stage:
        llm.generate(["Once upon a time, there was a cat"] * 3, exactly(70))
    assert "Once upon a time , there was a cat" not in words_in(stage.picture())


def test_updates_are_throttled_and_the_end_sends_the_last_step():
    engine, sent = ToyEngine(num_blocks=200), []
    stage = Stage(engine)
    stage.observe(sent.append, "recorded")
    engine.add(1, 500)
    engine.run()
    stage.end()
    assert len(stage.recorded["steps"]) == 501
    assert len(sent) < 100


def test_a_large_pool_is_drawn_in_part_and_counted_in_full():
    engine = ToyEngine(num_blocks=5000, max_batch_tokens=4 * 2000)
    engine.add(4 * 2000, 2)
    engine.step()
    recording = Stage(engine).recorded
    assert (recording["drawn"], recording["num_blocks"], recording["steps"][0]["used"]) == (1024, 5000, 2000)
    assert max(map(int, recording["steps"][0]["counts"])) == 1023


def test_people_have_their_names_on_the_stage(tiny):
    llm = LLM(tiny, num_blocks=32, block_size=4, verbose=False)
    with Stage(llm, names={"Anna": "old mill", "Ben": "bell"}) as stage:
        llm.generate(PROMPTS[:3], exactly(3))
    assert [each.look for each in stage.replay(1).sequences.values()] == [2, 0, 1]
    assert "Anna" in stage.picture()
    assert unpacked(stage.opening() or {})["recorded"] == json.loads(json.dumps(stage.recorded))


def test_what_a_chat_template_adds_is_not_drawn(tiny):
    llm = LLM(tiny, num_blocks=32, verbose=False)
    with Stage(llm) as stage:
        llm.add([{"role": "user", "content": "Why is the user blue?"}], SamplingParams(max_tokens=3))
        llm.step()
    (sequence,) = stage.replay(1).sequences.values()
    assert "".join(words_of(sequence)[: sequence.prompt]) == "Why is the user blue?"


def test_a_still_says_that_an_aborted_request_has_freed_its_blocks(tiny):
    llm = LLM(tiny, num_blocks=32, verbose=False)
    with Stage(llm) as stage:
        request, _ = (llm.add(prompt, exactly(20)) for prompt in PROMPTS[:2])
        for _ in range(3):
            llm.step()
        assert "[aborted:" not in stage.picture()
        llm.abort(request)
        llm.step()
        llm.step()
    stopped = picture_of_stage(stage.replay(len(stage.recorded["steps"]) - 1))
    assert stopped.count("(aborted:") == 1
