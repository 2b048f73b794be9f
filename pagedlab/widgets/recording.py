"""What an engine did, step by step, as JSON.

Nothing is sampled: every step says what changed in it.

    {"format": 1, "model": "Qwen2.5-0.5B", "block_size": 16, "num_blocks": 64, "drawn": 64, "steps": [{...}, ...]}

The first step says how things stood, each later one what an engine's step changed; what did not
change is left out:

    step     the engine's step, from 1 on
    used, cached   blocks of the whole pool; those below `drawn` are told one by one:
    counts   {block: its reference count now}
    kept     {block: 1 if a cache keeps its contents from now on, else 0}
    copies, hits, evicted   [[source, destination], ...], and blocks that a cache found or gave up
    texts    {name: what changed of it}
        look     running number of its colour          prompt   tokens of its prompt
        state    waiting, running, swapped, or why it ended: stop, length, abort; dropped (a beam)
        tokens   those in its table                    blocks   [n, ids]: keep the first n of its table, then these
        words    [n, pieces]: keep the first n, then these; a piece a token, "" while a character is incomplete

stage.js plays it, and `Replay` here does the same for a picture or a test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count, takewhile
from typing import Any

from pagedlab.lessons.colors import sequence_look
from pagedlab.validation import integer
from pagedlab.widgets.reading import Reading, TableReading, read
from pagedlab.widgets.session import MAX_BLOCKS

FORMAT = 1
MAX_NAMES = 10_000  # of texts whose colours are remembered
QUEUES = ("waiting", "running", "swapped")


def pieces(decode: Callable[[list[int]], str], ids: Sequence[int], start: int = 0) -> list[str]:
    """The text that each token from `start` on adds to those before it."""
    words: list[str] = []
    first = max(0, start - 4)  # enough to know whether a token begins with a space
    said = decode(list(ids[first:start])).rstrip("\ufffd")
    for stop in range(start + 1, len(ids) + 1):
        text = decode(list(ids[first:stop]))
        words.append("" if text.endswith("\ufffd") else text[len(said) :])
        if words[-1]:
            first, said = (
                (stop - 4, decode(list(ids[stop - 4 : stop])))
                if stop - first > 24
                else (first, text)
            )
    return words


class Recorder(ExitStack):
    """Records `llm` from now until `close()`, in the thread that runs the engine.

    llm    has `pool`, `on_step(callback) -> unsubscribe`, `decode(token_ids) -> str`, and either `scheduler` and `plan`
           as `LLM` does, or `sequences()`, whose items have `name`, `table` and `token_ids`
    words  whether texts are recorded, and not only their blocks
    most   steps that are kept; of a longer run the older half is forgotten. None keeps all
    """

    def __init__(
        self,
        llm: Any,
        *,
        words: bool = True,
        most: int | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        pool = llm.pool
        self.recording: dict[str, Any] = {
            "format": FORMAT,
            "model": getattr(getattr(llm, "model", None), "name", ""),
            "block_size": pool.block_size,
            "num_blocks": pool.num_blocks,
            "drawn": min(pool.num_blocks, MAX_BLOCKS),
            "steps": [],
        }
        self.forgotten = 0  # steps
        self.engine_steps = 0
        self._llm, self._words, self._most, self._told = llm, words, most, on_step
        # running number of each text, by name
        self.looks: dict[str, int] = defaultdict(count().__next__)
        self._requests: dict[Any, None] = {}  # those last seen in a queue
        self._plan = getattr(llm, "plan", None)  # whose chunks have been looked at
        self._texts: dict[
            str, dict[str, Any]
        ] = {}  # what the recording says of those that have not ended
        self._drawn = range(self.recording["drawn"])
        self._counts = dict.fromkeys(self._drawn, 0)
        self._changed: dict[int, int] = {}
        self._step: dict[str, Any] = {}  # events since the last step
        if subscribe := getattr(pool, "subscribe", None):
            self.callback(subscribe(self._on_event))
        self.watches_pool = subscribe is not None
        self._read_counts()
        if keeps := getattr(pool, "keeps", None):
            self._step["kept"] = {b: 1 for b in self._drawn if keeps(b)}
        self.update()
        self.callback(llm.on_step(self._on_step))

    def update(self, *, always: bool = False) -> None:
        """Add a step for what has changed since the last one; if nothing has, `always` adds one
        too.
        """
        pool = self._llm.pool
        if not self.watches_pool:
            self._read_counts()
        step = {name: value for name, value in self._step.items() if value}
        if counts := {b: n for b, n in self._changed.items() if self._counts[b] != n}:
            step["counts"] = counts
            self._counts |= counts
        self._changed, self._step = {}, {}
        if texts := self._follow():
            step["texts"] = texts
        if step or always or not self.recording["steps"]:
            totals = {
                "used": pool.num_blocks - pool.num_free,
                "cached": getattr(pool, "num_cached", 0),
            }
            self.recording["steps"].append({"step": self.engine_steps, **totals, **step})

    def _on_step(self) -> None:
        self.engine_steps += 1
        self.update(always=True)  # a step that changed nothing is a step too
        if self._most and len(self.recording["steps"]) > self._most:
            self._forget(self._most // 2)
        self._told()

    def _forget(self, older: int) -> None:
        steps = self.recording["steps"]
        self.recording["steps"] = [Replay(self.recording).seek(older).whole(), *steps[older + 1 :]]
        self.forgotten += older

    def _on_event(self, event: Any) -> None:
        block_id = event.block_id
        if block_id not in self._counts:
            return
        self._changed[block_id] = event.refcount
        match event.kind:
            case "copy":
                self._step.setdefault("copies", []).append([event.source, block_id])
            case "hit":
                self._step.setdefault("hits", []).append(block_id)
            case "keep":
                self._step.setdefault("kept", {})[block_id] = 1
            case "evict" | "forget":
                self._step.setdefault("kept", {})[block_id] = 0
                if event.kind == "evict":
                    self._step.setdefault("evicted", []).append(block_id)

    def _read_counts(self) -> None:
        pool = self._llm.pool
        counts = read(pool, {}, len(self._drawn), pool.block_size).counts
        self._changed = {
            b: n for b, n in zip(self._drawn, counts, strict=True) if n != self._counts[b]
        }

    def _present(self) -> dict[str, tuple[Any, str]]:
        """Every text that there is, with its state; those too that ended since the last look."""
        if (scheduler := getattr(self._llm, "scheduler", None)) is None:
            return {text.name: (text, "running") for text in self._llm.sequences()}
        chunks = [] if self._plan is self._llm.plan else self._llm.plan.chunks
        self._plan = self._llm.plan
        queued = {request: where for where in QUEUES for request in getattr(scheduler, where)}
        requests = {**self._requests, **dict.fromkeys(chunk.request for chunk in chunks), **queued}
        self._requests = dict.fromkeys(queued)
        texts = (
            (text, r) for r in sorted(requests, key=lambda r: r.request_id) for text in r.sequences
        )
        return {
            text.name: (text, text.finish_reason or queued.get(r, "abort")) for text, r in texts
        }

    def _follow(self) -> dict[str, Any]:
        """What changed of each text."""
        present = self._present()
        changes = {
            name: self._changes(name, text, state) for name, (text, state) in present.items()
        }
        for name in self._texts.keys() - present.keys():
            changes[name] = self._changes(name, None, "dropped")
        self._texts = {n: t for n, t in self._texts.items() if t["state"] in QUEUES}
        return {name: change for name, change in changes.items() if change}

    def _changes(self, name: str, text: Any, state: str) -> dict[str, Any]:
        change: dict[str, Any] = {}
        if (known := self._texts.get(name)) is None:
            if state not in QUEUES and name in self.looks:
                return {}  # it ended, and that has been told
            look, prompt = self.looks[name], getattr(text, "num_prompt_tokens", 0)
            known = self._texts[name] = {
                "state": "",
                "tokens": 0,
                "blocks": [],
                "ids": [],
                "prompt": prompt,
            }
            change = {"look": look, "prompt": prompt}
            while len(self.looks) > MAX_NAMES:
                del self.looks[next(iter(self.looks))]
        blocks, tokens = (
            ([], 0) if text is None else (list(text.table.block_ids), text.table.num_tokens)
        )
        ids = known["ids"] if text is None else text.token_ids
        for key, now in (("state", state), ("tokens", tokens)):
            if known[key] != now:
                change[key] = known[key] = now
        if known["blocks"] != blocks:
            keep = _alike(known["blocks"], blocks)
            change["blocks"], known["blocks"] = [keep, blocks[keep:]], blocks
        if self._words and known["ids"] != ids:
            keep = _alike(known["ids"], ids)
            change["words"], known["ids"] = [keep, pieces(self._llm.decode, ids, keep)], list(ids)
        return change


def _alike(a: list[int], b: list[int]) -> int:
    """Items that both begin with."""
    if a == b[: len(a)]:
        return len(a)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class Replay:
    """A recording's state after a step, the first of which is number 0."""

    def __init__(self, recording: dict[str, Any]) -> None:
        if (
            not isinstance(recording, dict)
            or recording.get("format") != FORMAT
            or not recording.get("steps")
        ):
            raise ValueError(
                f"this is no recording of format {FORMAT}: Stage(llm).save(path) writes one"
            )
        self.recording = recording
        self.steps: list[dict[str, Any]] = recording["steps"]
        self.seek(0)

    def seek(self, step: int) -> Replay:
        """Go to the state after that step."""
        step = integer("step", step, 0, len(self.steps) - 1)
        self.counts = [0] * self.recording["drawn"]
        self.kept: set[int] = set()
        self.texts: dict[str, dict[str, Any]] = {}
        self.copied = 0
        for now in self.steps[: step + 1]:
            self.now = now
            for block_id, n in self.now.get("counts", {}).items():
                self.counts[int(block_id)] = n
            for block_id, n in self.now.get("kept", {}).items():
                (self.kept.add if n else self.kept.discard)(int(block_id))
            for name, change in self.now.get("texts", {}).items():
                text = self.texts.setdefault(name, {"blocks": [], "words": [], "tokens": 0})
                for key, value in change.items():
                    text[key] = (
                        text[key][: value[0]] + value[1] if key in ("blocks", "words") else value
                    )
            self.copied += len(self.now.get("copies", ()))
        return self

    def whole(self) -> dict[str, Any]:
        """A first step that says the same as all up to this one; texts that have ended are
        forgotten.
        """
        there = {name: text for name, text in self.texts.items() if text["state"] in QUEUES}
        texts = {
            n: {**t, "blocks": [0, t["blocks"]], "words": [0, t["words"]]} for n, t in there.items()
        }
        counts, kept = {b: n for b, n in enumerate(self.counts) if n}, dict.fromkeys(self.kept, 1)
        return {**self.now, "counts": counts, "kept": kept, "texts": texts}

    def telling(self) -> int:
        """The step that says most: of those with a copy, if there are any, the one with most blocks
        in use.
        """
        steps = self.steps
        return max(
            range(len(steps)), key=lambda i: ("copies" in steps[i], steps[i].get("used", 0), i)
        )

    def grid(self) -> dict[str, Any]:
        """The state as a block grid shows it, see `Reading.snapshot`."""
        held = {name: text for name, text in self.texts.items() if text["blocks"]}
        tables = {name: TableReading(text["blocks"], text["tokens"]) for name, text in held.items()}
        used = self.now.get("used", 0)
        size, free = self.recording["block_size"], self.recording["num_blocks"] - used
        reading = Reading(size, self.counts, free, tables, problems=[])
        looks = {name: text["look"] for name, text in held.items()}
        return reading.snapshot(looks) | {
            "used": used,
            "copied": self.copied,
            "engine_steps": self.now["step"],
        }

    def answers(self) -> list[dict[str, Any]]:
        """What is written so far: of each text its runs of words as (logical block or None, words,
        of the prompt?).
        """
        size, answers = self.recording["block_size"], []
        for name, text in self.texts.items():
            runs: dict[tuple[int | None, bool], str] = {}
            for position, word in enumerate(text["words"]):
                run = (
                    position // size if position < text["tokens"] else None,
                    position < text["prompt"],
                )
                runs[run] = runs.get(run, "") + word
            look = sequence_look(text["look"])
            runs_of = [(place, words, asked) for (place, asked), words in runs.items()]
            answers.append({"name": name, "state": text["state"], "runs": runs_of, **look})
        return answers


def moments(
    llm: Any, prompts: Sequence[Any], params: Sequence[Any]
) -> list[dict[str, dict[str, Any]]]:
    """Run these requests, which come together; the texts as they stand before the first step and
    after each.
    """
    for prompt, asked in zip(prompts, params, strict=True):
        llm.add(prompt, asked)
    with Recorder(llm) as recorder:
        while llm.step():
            pass
    replay = Replay(recorder.recording)
    return [replay.seek(step).texts for step in range(len(replay.steps))]
