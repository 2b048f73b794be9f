"""Checks of notebook 13: the loop that owns the engine, the salt that closes the side channel, ten
classes of vLLM.
"""

import queue
from collections.abc import Callable
from functools import partialmethod
from itertools import product
from types import FunctionType

from pagedlab.checks import StillRunning, Wrong, agree, exercise, explain, trying
from pagedlab.checks.prefix import Served
from pagedlab.prefix import PrefixCache


class Desk:
    """Inbox and engine in one, a script of arrivals, and a diary of what the loop does with them.

    Time passes in `step`, and while the loop sleeps in `get`. `None` is the last item of the inbox:
    it arrives once all messages were run and all requests are finished.

    Args:
        script: name -> (the step before which it arrives, the steps that its request takes). A
            message that asks for none, such as a look at the metrics, takes 0.
    """

    MOST_STEPS = 30  # more than any script needs

    def __init__(self, script: dict[str, tuple[int, int]]) -> None:
        self.coming = sorted(script.items(), key=lambda item: item[1][0])
        self.left: dict[str, int] = {}
        self.now = 0  # steps
        self.looks = 0  # into an empty inbox with nothing to do
        self.taken = 0  # messages that the loop took and did not run yet
        self.ended = False  # None was taken
        self.diary: list[str] = []

    def here(self) -> bool:
        """Whether a message has arrived and is not taken."""
        return bool(self.coming) and self.coming[0][1][0] <= self.now

    def is_over(self) -> bool:
        """Whether None is the next item: nothing is left to arrive, to run or to finish."""
        return not (self.left or self.coming or self.taken or self.ended)

    def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], None] | None:
        """As `queue.SimpleQueue.get`; None is the last item."""
        if self.is_over():
            self.diary.append("end")
            self.ended = True
            return None
        if not self.here() and block:
            self._sleep()
        if not self.here():
            self.looks += not (self.left or self.taken)
            if self.looks > 20:
                raise StillRunning(
                    "with nothing to do it looks into the inbox again and again, and keeps a core "
                    "busy"
                )
            raise queue.Empty
        name, (_, steps) = self.coming.pop(0)
        self.taken += 1
        return lambda: self._run(name, steps)

    def _sleep(self) -> None:
        """Wait until the next message arrives; an error if the loop should not sleep now."""
        if self.ended:
            raise StillRunning("it sleeps in the inbox after None, which means stop")
        if self.left:
            raise StillRunning(
                f"it sleeps in the inbox while {', '.join(self.left)} has tokens to come"
            )
        if self.taken:
            raise StillRunning("it sleeps in the inbox with a message that it has not run")
        self.now = self.coming[0][1][0]

    get_nowait = partialmethod(get, block=False)

    def empty(self) -> bool:
        """As `queue.SimpleQueue.empty`; at the end there is the None to take."""
        return not self.here() and not self.is_over()

    def _run(self, name: str, steps: int) -> None:
        self.taken -= 1
        self.diary.append(name)
        if steps:
            self.left[name] = steps

    def busy(self) -> bool:
        """Whether a request is not finished."""
        return bool(self.left)

    def step(self) -> None:
        """A token for each request."""
        self.diary.append(f"step({', '.join(self.left)})")
        if len(self.diary) > self.MOST_STEPS:
            raise StillRunning("it steps on and on")
        self.left = {name: steps - 1 for name, steps in self.left.items() if steps > 1}
        self.now += 1


@exercise
def engine_loop(answer: Callable[..., None]) -> str:
    """Everything in the inbox before each step; a step if there is work; sleep if there is none;
    the end at None.
    """
    from pagedlab.serving.engine_thread import run_loop  # not before: it takes torch

    scripts = [
        {},
        {"A": (0, 2)},
        {"A": (3, 1)},
        {"A": (0, 1), "B": (0, 1)},
        {"A": (0, 2), "B": (1, 1)},
    ]
    scripts += [{"A": (0, 1), "B": (5, 1)}, {"metrics": (0, 0), "A": (0, 1)}]
    scripts += [{"A": (0, 3), "B": (1, 2), "metrics": (1, 0), "C": (1, 1)}]
    for script in scripts:
        right, desk = Desk(script), Desk(script)
        run_loop(right, right.busy, right.step)  # type: ignore[arg-type]
        with trying(
            *(
                f"{name} arrives before step {at}, wants {steps}"
                for name, (at, steps) in script.items()
            )
        ):
            try:
                answer(desk, desk.busy, desk.step)
            except NotImplementedError:
                raise
            except (Exception, StillRunning) as error:
                desk.diary.append(f"and then {explain(error)}")
            agree(
                " ".join(right.diary), " ".join(desk.diary) or "nothing", "The diary differs:", str
            )
    return (
        "No request waits for the end of another one, nothing runs twice at once, and an idle engine "
        "sleeps."
    )


_CALLERS: list[tuple[str | None, str | None]] = [
    ("a", None),
    ("b", None),
    ("a", "b"),
    ("a", "c"),
    ("b", "c"),
]
for glue in ("", ":", "/", ",", '", "'):  # what one may put between the two, and a name may hold
    _CALLERS += [("a", f"b{glue}c"), (f"a{glue}b", "c")]
_CALLERS += [*product(("a", None), ("", "None")), *product((None,), ("a", "b", None))]


@exercise
def closed_salt(answer: Callable[[str | None, str | None], str | None]) -> str:
    """Requests share blocks if and only if both tenant and cache_salt are the same, over the real
    cache.
    """
    order = sorted(
        product(_CALLERS, _CALLERS),
        key=lambda two: (two[0] != two[1], max(map(_CALLERS.index, two))),
    )
    for (
        first,
        second,
    ) in order:  # attacks that anybody thinks of come before those with "None" as a name
        server = Served(PrefixCache, num_blocks=8, block_size=16)
        lines = [f"serve(prompt, salt=salt_for({a!r}, {b!r}))" for a, b in (first, second)]
        with trying(*lines, expected="a salt"):
            salts = [answer(*first), answer(*second)]
            if strange := [salt for salt in salts if not isinstance(salt, str | None)]:
                raise Wrong("A salt is a text or None.", "a str", repr(strange[0]), lines[0])
            _, found = (server.serve(range(48), salt=salt) for salt in salts)
            may, wanted = ("share", 32) if first == second else ("not know of each other", 0)
            agree(
                wanted,
                found,
                f"These two may {may}. Their salts: {salts}.",
                "the second finds {} tokens".format,
            )
    code = getattr(answer, "__code__", None)
    if code and "hash" in code.co_names:  # what it gives if all hashes were one
        names = {**answer.__globals__, "hash": lambda _: 0}
        one = FunctionType(code, names, "one", answer.__defaults__, answer.__closure__)
        if one("a", None) == one("b", None):
            message = (
                "Two names may have one hash, and a spy can look for such a name; a new process "
                "has other hashes."
            )
            expected = "a salt from which both can be read back"
            raise Wrong(message, expected, repr(answer("a", None)), "salt_for('a', None)")
    return (
        f"{len(_CALLERS)} callers, each against each: who may share does, and nobody learns of a "
        "stranger's prompt."
    )


# Class of vLLM -> (what it became out of, a nudge for who has it wrong)
CLASSES: dict[str, tuple[str, str]] = {
    "FreeKVCacheBlockQueue": (
        "BlockPool",
        "who is handed out next, and what is forgotten first: notebooks 02 and 05",
    ),
    "KVCacheManager": (
        "BlockTable.append",
        "the scheduler asks it for room for n more tokens: notebooks 02 and 03",
    ),
    "BlockTable": (
        "Batch",
        "not ours of the same name: an array on the device, a row a request, and the slots",
    ),
    "ParentRequest": ("BlockTable.fork", "several answers to one prompt: notebooks 03 and 04"),
    "TritonAttentionImpl": (
        "paged_attention",
        "what reads keys and values through the tables: notebooks 06 and 07",
    ),
    "Sampler": ("sample", "from a row of logits to a token: notebook 04"),
    "IncrementalDetokenizer": (
        "Detokenizer",
        "no half characters, and no stop string shown: this notebook's streams",
    ),
    "EngineCoreProc": (
        "run_loop",
        "it owns the engine, and does nothing but empty an inbox and step",
    ),
    "RequestOutputCollector": (
        "Ticket",
        "one for each request; a coroutine waits at it for what is new",
    ),
    "PrometheusStatLogger": ("Metrics", "somebody scrapes it every few seconds"),
}


@exercise
def vllm_classes(answer: dict[str, str]) -> str:
    """Each of ten classes of vLLM with the part of pagedlab that does its job."""
    parts = [part for part, _ in CLASSES.values()]
    if not isinstance(answer, dict) or set(answer) != set(CLASSES):
        raise Wrong("Keep the ten names on the left.", ", ".join(CLASSES), repr(answer)[:200])
    if unknown := [part for part in answer.values() if part not in parts]:
        raise Wrong(
            "That is no part to choose from.", f"one of {', '.join(parts)}", repr(unknown[0])
        )
    if wrong := [name for name, (part, _) in CLASSES.items() if answer[name] != part]:
        message = (
            f"{len(CLASSES) - len(wrong)} of {len(CLASSES)} are right. The first that is not: "
            f"{wrong[0]}."
        )
        raise Wrong(message, CLASSES[wrong[0]][1], answer[wrong[0]])
    return "All ten. You can open vLLM's source and know why each of these files is there."
