"""Checks of notebook 13: the loop that owns the engine, the salt that closes the side channel, ten classes of vLLM."""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial
from itertools import product

from pagedlab.blocks import BlockPool
from pagedlab.checks import StillRunning, Wrong, bounded, exercise, explain, trying
from pagedlab.prefix import PrefixCache


class Stuck(BaseException):
    """The loop would go on for ever. Not an `Exception`, so that `except Exception` lets it by."""


class Desk:
    """Inbox and engine in one, a script of who comes when, and a diary of what the loop does with them.

    script: name -> (the step before which it arrives, the steps that its request takes). A message that asks for none,
    such as a look at the metrics, takes 0. Time passes in `step`, and while the loop sleeps in `get`.
    """

    def __init__(self, script: dict[str, tuple[int, int]]) -> None:
        self.coming = sorted(script.items(), key=lambda item: item[1][0])
        self.pending: list[tuple[str, int]] = []
        self.left: dict[str, int] = {}
        self.now = self.looks = 0
        self.diary: list[str] = []
        self._arrive()

    def _arrive(self) -> None:
        while self.coming and self.coming[0][1][0] <= self.now:
            name, (_, steps) = self.coming.pop(0)
            self.pending.append((name, steps))

    def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], None] | None:
        """As `queue.SimpleQueue.get`; None once everybody has come and gone."""
        if not self.pending and self.left and block:
            raise Stuck(f"it sleeps in the inbox while {', '.join(self.left)} has tokens to come")
        if not self.pending and not self.left and not self.coming:
            self.diary.append("end")
            return None
        if not self.pending and block:
            self.now = self.coming[0][1][0]
            self._arrive()
        if not self.pending:
            self.looks += not self.left
            if self.looks > 20:
                raise Stuck("with nothing to do it looks into the inbox again and again, and keeps a core busy")
            raise queue.Empty
        return partial(self._run, *self.pending.pop(0))

    def get_nowait(self) -> Callable[[], None] | None:
        """As `queue.SimpleQueue.get_nowait`."""
        return self.get(block=False)

    def empty(self) -> bool:
        """As `queue.SimpleQueue.empty`; at the end there is the None to take."""
        return not self.pending and (bool(self.left) or bool(self.coming))

    def _run(self, name: str, steps: int) -> None:
        self.diary.append(name)
        if steps:
            self.left[name] = steps

    def busy(self) -> bool:
        """Whether a request is not finished."""
        return bool(self.left)

    def step(self) -> None:
        """A token for everybody."""
        self.diary.append(f"step({', '.join(self.left)})")
        if len(self.diary) > 60:
            raise Stuck("it steps on and on")
        self.left = {name: steps - 1 for name, steps in self.left.items() if steps > 1}
        self.now += 1
        self._arrive()


SCRIPTS: list[dict[str, tuple[int, int]]] = [
    {},
    {"A": (0, 2)},
    {"A": (3, 1)},
    {"A": (0, 1), "B": (0, 1)},
    {"A": (0, 2), "B": (1, 1)},
    {"A": (0, 1), "B": (5, 1)},
    {"metrics": (0, 0), "A": (0, 1)},
    {"A": (0, 3), "B": (1, 2), "metrics": (1, 0), "C": (1, 1)},
]


@exercise
def engine_loop(answer: Callable[..., None]) -> str:
    """Everything in the inbox before each step; a step if there is work; sleep if there is none; the end at None."""
    from pagedlab.serving.engine_thread import run_loop  # not before: it takes torch

    for script in SCRIPTS:
        right, desk = Desk(script), Desk(script)
        run_loop(right, right.busy, right.step)  # type: ignore[arg-type]
        try:
            with bounded():
                answer(desk, desk.busy, desk.step)
            got = " ".join(desk.diary)
        except NotImplementedError:
            raise
        except (Exception, Stuck, StillRunning) as error:
            said = str(error) if isinstance(error, Stuck) else explain(error)
            got = f"{' '.join(desk.diary)} and then {said}".removeprefix(" ")
        if got != " ".join(right.diary):
            came = [f"{name} arrives before step {at}, wants {steps}" for name, (at, steps) in script.items()]
            raise Wrong("The diary differs:", " ".join(right.diary), got or "nothing", operations=came)
    return "Nobody waits for anybody else's answer, nothing runs twice at once, and an idle engine sleeps."


PAIRS: list[tuple[str | None, str | None]] = [
    *[
        ("a", None),
        ("b", None),
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
        ("a", "bc"),
        ("ab", "c"),
        ("a", "b:c"),
        ("a:b", "c"),
    ],
    *[("a", "b/c"), ("a/b", "c"), ("a", "b,c"), ("a,b", "c"), ('a", "b', "c"), ("a", 'b", "c')],
    *product(("a", None), ("", "None")),
    *product((None,), ("a", "b", None)),
]


@exercise
def closed_salt(answer: Callable[[str | None, str | None], str | None]) -> str:
    """Requests share blocks if and only if both tenant and cache_salt are the same, over the real cache."""
    prompt = list(range(48))
    order = sorted(product(PAIRS, PAIRS), key=lambda two: (two[0] != two[1], max(map(PAIRS.index, two))))
    for first, second in order:  # attacks that anybody thinks of come before those with "None" as a name
        cache = PrefixCache(BlockPool(8))
        lines = [f"serve(prompt, salt=salt_for({a!r}, {b!r}))" for a, b in (first, second)]
        with trying(*lines, expected="a salt"):
            salts = [answer(*first), answer(*second)]
            for salt in salts:
                if salt is not None and not isinstance(salt, str):
                    raise Wrong("A salt is a text or None.", "a str", repr(salt), operations=lines[:1])
            table = cache.match(prompt, leave=1, salt=salts[0])
            table.append(48)
            cache.insert(table, prompt, salt=salts[0])
            found = cache.match(prompt, leave=1, salt=salts[1]).num_tokens
            if found != (32 if first == second else 0):
                said = "These two may share." if first == second else "These two may not know of each other."
                wanted = "the second finds 32 tokens" if first == second else "the second finds nothing"
                raise Wrong(said, wanted, f"it finds {found} tokens, salts {salts}")
    return f"{len(PAIRS)} callers, each against each: who may share does, and nobody learns of a stranger's prompt."


# Class of vLLM -> (what it became out of, a nudge for who has it wrong)
CLASSES: dict[str, tuple[str, str]] = {
    "FreeKVCacheBlockQueue": ("BlockPool", "who is handed out next, and what is forgotten first: notebooks 02 and 05"),
    "KVCacheManager": ("BlockTable.append", "the scheduler asks it for room for n more tokens: notebooks 02 and 03"),
    "BlockTable": ("Batch", "not ours of the same name: an array on the device, a row a request, and the slots"),
    "ParentRequest": ("BlockTable.fork", "several answers to one prompt: notebooks 03 and 04"),
    "TritonAttentionImpl": ("paged_attention", "what reads keys and values through the tables: notebooks 06 and 07"),
    "Sampler": ("sample", "from a row of logits to a token: notebook 04"),
    "IncrementalDetokenizer": ("Detokenizer", "no half characters, and no stop string shown: this notebook's streams"),
    "EngineCoreProc": ("run_loop", "it owns the engine, and does nothing but empty an inbox and step"),
    "RequestOutputCollector": ("Ticket", "one for each request; a coroutine waits at it for what is new"),
    "PrometheusStatLogger": ("Metrics", "somebody scrapes it every few seconds"),
}


@exercise
def vllm_classes(answer: dict[str, str]) -> str:
    """Each of ten classes of vLLM with the part of pagedlab that does its job."""
    parts = [part for part, _ in CLASSES.values()]
    if not isinstance(answer, dict) or set(answer) != set(CLASSES):
        raise Wrong("Keep the ten names on the left.", ", ".join(CLASSES), repr(answer)[:200])
    if unknown := [part for part in answer.values() if part not in parts]:
        raise Wrong("That is no part to choose from.", f"one of {', '.join(parts)}", repr(unknown[0]))
    wrong = [name for name, (part, _) in CLASSES.items() if answer[name] != part]
    if wrong:
        message = f"{len(CLASSES) - len(wrong)} of {len(CLASSES)} are right. The first that is not: {wrong[0]}."
        raise Wrong(message, CLASSES[wrong[0]][1], answer[wrong[0]])
    return "All ten. You can open vLLM's source and know why each of these files is there."
