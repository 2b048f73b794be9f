"""The recording loses nothing, and the stage shows what was recorded. test_browser.py looks at the page."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagedlab import LLM, BlockPool, BlockTable, SamplingParams
from pagedlab.checks.scheduling import ToyEngine
from pagedlab.trace import Recorder, Replay, pieces
from pagedlab.widgets import Stage
from pagedlab.widgets import stage as module
from pagedlab.widgets.replayed import grid_of

PROMPTS: list[Any] = [
    "The cat",
    "The old mill by the river had",
    "A bell rang",
    "The cat sat on the mat and the cat sat on",
]


class FakeEngine:
    """The least that a stage asks of an engine. Token i decodes to "i "."""

    def __init__(self, num_blocks: int = 32, block_size: int = 4) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.running: list[Any] = []
        self.callbacks: list[Any] = []

    def on_step(self, callback: Any) -> Any:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def sequences(self) -> list[Any]:
        return self.running

    def decode(self, ids: list[int]) -> str:
        return "".join(f"{i} " for i in ids)

    def add(self, name: str, tokens: int) -> None:
        table = BlockTable(self.pool)
        table.append(tokens)
        self.running.append(SimpleNamespace(name=name, table=table, token_ids=list(range(tokens))))

    def step(self) -> None:
        for sequence in self.running:
            sequence.table.append(1)
            sequence.token_ids.append(len(sequence.token_ids))
        for callback in list(self.callbacks):
            callback()

    def end(self) -> None:
        for sequence in self.running:
            sequence.table.free()
        self.running = []
        for callback in list(self.callbacks):
            callback()


def truth(llm: Any, drawn: int) -> dict[str, Any]:
    """What the engine itself says of its present."""
    pool, s = llm.pool, llm.scheduler
    texts = {
        text.name: (where, text.table.num_tokens, list(text.table.block_ids), list(text.token_ids))
        for where, queue in (("waiting", s.waiting), ("running", s.running), ("swapped", s.swapped))
        for request in queue
        for text in request.unfinished
    }
    return {
        "counts": [pool.refcount(b) for b in range(drawn)],
        "kept": {b for b in range(drawn) if pool.keeps(b)},
        "used": pool.num_used,
        "cached": pool.num_cached,
        "texts": texts,
    }


def check(replay: Replay, expected: dict[str, Any], decode: Any) -> None:
    assert replay.counts == expected["counts"]
    assert replay.kept == expected["kept"]
    assert (replay.now["used"], replay.now.get("cached")) == (expected["used"], expected["cached"])
    alive = {n: s for n, s in replay.sequences.items() if s.is_unfinished}
    assert alive.keys() == expected["texts"].keys()
    for name, (where, tokens, blocks, ids) in expected["texts"].items():
        text = alive[name]
        assert (text.state, text.tokens, text.blocks) == (where, tokens, blocks), name
        assert len(text.words) == text.length == len(ids)
        assert "".join(text.words) == decode(ids).rstrip("\ufffd")


@pytest.mark.parametrize("how", ["recompute", "swap"])
def test_every_step_replayed_is_the_pool_as_it_was(tiny: Any, how: Any) -> None:
    """Samples, beams, chunks, a cache, too few blocks, and requests that are aborted."""
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    llm = LLM(tiny, num_blocks=rng.randint(14, 20), block_size=4, max_batch_tokens=16, preemption=how, verbose=False)
    llm.generate(PROMPTS[:2], SamplingParams(max_tokens=3))  # what the cache holds before is in the first step
    drawn, seen, live = llm.pool.num_blocks, list[dict[str, Any]](), list[int]()
    with Recorder(llm) as recorder:
        seen.append(truth(llm, drawn))
        stop = llm.on_step(lambda: seen.append(truth(llm, drawn)))
        for _ in range(60):
            match rng.choice(["add", "step", "step", "step", "abort"]):
                case "add":
                    kinds: list[dict[str, Any]] = [{}, {"n": 2, "temperature": 1.0, "seed": 1}, {"beam_width": 2}]
                    params = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True, **rng.choice(kinds))
                    live.append(llm.add(rng.choice(PROMPTS), params))
                case "abort" if live and rng.random() < 0.5:
                    llm.abort(live.pop(rng.randrange(len(live))))
                case _:
                    llm.step()
        llm.add(PROMPTS[0], SamplingParams(max_tokens=1))  # steps tell: there is one after the last that is aborted
        while llm.num_unfinished:
            llm.step()
        stop()
    recording = json.loads(json.dumps(recorder.recording))  # as a page or a file gets it
    assert len(recording["steps"]) == len(seen), seed
    replay = Replay(recording)
    for k, expected in enumerate(seen):
        try:
            check(replay.seek(k), expected, llm.decode)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {k}: {error}") from error
    states = Counter(text.state for text in replay.sequences.values())
    assert states.keys() <= {"stop", "length", "abort", "dropped"}, seed


def test_pieces_of_text_are_what_each_token_adds(tiny: Any) -> None:
    text = "Zoë drank a café au lait: naïve, 你好 and 🎉, at 5 o'clock.\n\n  Indented."
    ids = tiny.tokenizer.encode(text)
    words = pieces(tiny.decode, ids)
    assert len(words) == len(ids)
    assert "".join(words) == tiny.decode(ids)
    for start in range(len(ids)):  # from wherever one goes on, if no character was cut there
        if not tiny.decode(ids[:start]).endswith("\ufffd"):
            assert pieces(tiny.decode, ids, start) == words[start:]


def test_a_beam_search_writes_its_texts_anew_and_frees_them(tiny: Any) -> None:
    llm = LLM(tiny, num_blocks=64, block_size=4, verbose=False)
    with Stage(llm) as stage:
        (done,) = llm.generate("The old mill", SamplingParams(max_tokens=8, beam_width=3))
    last = stage.replay(len(stage.recorded["steps"]) - 1)
    assert last.counts == [0] * 64
    written = {"".join(s.new_words) for s in last.sequences.values() if s.state in ("stop", "length")}
    assert {output.text for output in done.outputs} == written
    with Stage(llm) as short:  # ended in their first step
        llm.generate("The old mill", SamplingParams(max_tokens=1, beam_width=3))
    assert [s.state for s in short.replay(1).sequences.values()] == ["length"] * 3
    assert any("copies" in step for step in stage.recorded["steps"])
    assert "copies" in stage.replay().now, "the picture is of a step with a copy"


def test_samples_share_and_copy() -> None:
    engine = FakeEngine()
    with Stage(engine) as stage:
        engine.add("a", 6)
        first = engine.running[0]
        engine.running.append(SimpleNamespace(name="b", table=first.table.fork(), token_ids=[*range(6)]))
        engine.step()
    assert stage.recorded["steps"][-1]["copies"] == [[1, 2]]
    grid = grid_of(stage.replay())
    assert (grid["shared"], grid["copied"]) == (1, 1)
    assert "1 copied" in stage.picture().headline()


def test_a_pool_without_events_is_read(tiny: Any) -> None:
    """A reader's own, say: it has the verbs, and nothing more."""

    class Plain:
        def __init__(self, num_blocks: int, block_size: int) -> None:
            self.num_blocks, self.block_size, self.counts = num_blocks, block_size, [0] * num_blocks

        @property
        def num_free(self) -> int:
            return self.counts.count(0)

        def allocate(self) -> int:
            self.counts[block_id := self.counts.index(0)] = 1
            return block_id

        def share(self, block_id: int) -> int:
            self.counts[block_id] += 1
            return block_id

        def release(self, block_id: int) -> None:
            self.counts[block_id] -= 1

        def refcount(self, block_id: int) -> int:
            return self.counts[block_id]

    llm = LLM(tiny, num_blocks=16, block_size=4, block_pool=Plain, verbose=False)
    seen = []
    with Recorder(llm) as recorder:
        llm.on_step(lambda: seen.append(list(llm.pool.counts)))  # type: ignore[attr-defined]
        llm.generate(PROMPTS[:2], SamplingParams(max_tokens=5))
    assert [Replay(recorder.recording).seek(k).counts for k in range(1, len(seen) + 1)] == seen


def test_older_steps_are_forgotten_and_the_rest_still_replays() -> None:
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


def test_a_recording_is_a_small_file_that_plays_again(tmp_path: Path, tiny: Any) -> None:
    llm = LLM(tiny, num_blocks=64, verbose=False)
    with Stage(llm) as stage:
        llm.generate(PROMPTS[:2], SamplingParams(max_tokens=20, ignore_eos=True))
    stage.save(path := tmp_path / "two.json")
    assert path.stat().st_size < 6_000
    again = Stage(path)
    assert again.recorded == json.loads(json.dumps(stage.recorded))
    assert (again.live, again.step) == (False, -1)
    assert Stage(stage.recorded).picture().text() == stage.picture().text()
    again.seek(3)
    assert again.step == 3
    with pytest.raises(ValueError, match="step must be a whole number from 0 to 20, got 99"):
        again.seek(99)
    (tmp_path / "other.json").write_text('{"format": 7}')
    wrong: Any
    for wrong in (tmp_path / "other.json", {"steps": []}):
        with pytest.raises(ValueError, match="no recording of format 1 or 2"):
            Stage(wrong)


def test_the_stored_picture_shows_the_step_that_says_most(tiny: Any) -> None:
    llm = LLM(tiny, num_blocks=64, prefix_caching=False, verbose=False)
    with Stage(llm) as stage:
        llm.generate(PROMPTS, SamplingParams(max_tokens=20, ignore_eos=True))
    data, _ = stage._repr_mimebundle_()
    assert "64 blocks of 16: 0 used" not in data["text/plain"], "not the last, which is empty"
    assert "The old mill" in data["text/plain"]
    assert "The old mill" in data["image/svg+xml"].replace("</text>", "")
    assert len(data["image/svg+xml"]) < 30_000
    assert "…" not in data["image/svg+xml"], "all of it fits"


def test_a_stored_text_that_is_cut_at_its_front_begins_with_dots(tiny: Any) -> None:
    llm = LLM(tiny, num_blocks=64, prefix_caching=False)
    for name in ("cat", "fox", "king"):
        llm.add(f"Once upon a time, there was a {name}", SamplingParams(max_tokens=70, ignore_eos=True))
    with Stage(llm) as stage:
        while llm.step():
            pass
    drawn = stage._repr_mimebundle_()[0]["image/svg+xml"]
    assert drawn.count("… ") == 3
    assert "Once" not in drawn


def test_updates_are_throttled_and_the_last_step_is_always_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.05)

    async def generate() -> tuple[int, Stage]:
        engine, sent = FakeEngine(num_blocks=200), list[Any]()
        stage = Stage(engine)
        stage.observe(sent.append, "recorded")
        engine.add("a", 1)
        for _ in range(500):
            engine.step()
        engine.end()
        await asyncio.sleep(0.15)
        return len(sent), stage

    sent, stage = asyncio.run(generate())
    assert sent < 100
    assert len(stage.recorded["steps"]) == 502
    assert stage.recorded["steps"][-1]["used"] == 0


def test_what_the_engine_does_after_the_cell_leaves_its_stage_alone() -> None:
    engine = FakeEngine()
    with Stage(engine) as stage:
        engine.add("a", 5)
        engine.step()
    engine.end()
    assert stage.recorded["steps"][-1]["used"] == 2
    assert not stage.live
    assert not engine.callbacks
    assert not engine.pool._callbacks
    stage.close()


def test_a_large_pool_is_drawn_in_part_and_counted_in_full() -> None:
    engine = FakeEngine(num_blocks=5000)
    engine.add("a", 4 * 2000)
    stage = Stage(engine)
    recording = stage.recorded
    assert (recording["drawn"], recording["num_blocks"], recording["steps"][0]["used"]) == (1024, 5000, 2000)
    assert max(map(int, recording["steps"][0]["counts"])) == 1023
    assert "5000" not in stage.picture().headline() or stage.picture().drawing()
