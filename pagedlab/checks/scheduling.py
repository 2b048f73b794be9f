"""Checks of notebook 09: a queue that starves nobody, the victim, swap or recompute, the edge of a
block.

`ToyEngine` runs a scheduler without a model, and `FirstThatFits` is the scheduler that starves.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, product
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.checks import Trial, Wrong, agree, compare, compared, exercise, search, trying
from pagedlab.scheduler import Request, Schedule, Scheduler
from pagedlab.scheduler import Sequence as Text

PATIENCE = 3  # how often the first in line may be passed


class ToyEngine:
    """A scheduler at work, without a model: each text gets a number for its next token, and ends
    when it has them all.

    It has what `Recording` and `Timeline` ask of an engine. options: the scheduler's. A swap moves
    only the books.
    """

    def __init__(
        self,
        scheduler: type[Scheduler] = Scheduler,
        num_blocks: int = 64,
        block_size: int = 4,
        **options: Any,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        roomy: dict[str, Any] = {"max_batch_tokens": 64, "max_sequences": 8, "swapper": self}
        self.scheduler = scheduler(self.pool, **roomy | options)
        self.plan = self.scheduler.plan  # the latest step's
        self._ids, self._callbacks = count(), list[Callable[[], None]]()

    def swap_in(self, *block_ids: Any) -> None:
        """Nothing to move."""

    swap_out = swap_in

    def on_step(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every step; what is returned stops it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def sequences(self) -> list[Text]:
        """The texts that hold blocks."""
        return [
            text for r in self.scheduler.running for text in r.sequences if text.table.block_ids
        ]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Token i is the word "i"."""
        return "".join(f" {i}" for i in token_ids)

    def add(self, prompt: int, new: int) -> Request:
        """Queue a request of so many prompt tokens and new ones."""
        number = next(self._ids)
        text = Text(f"r{number}", BlockTable(self.pool), list(range(prompt)), 0, prompt)
        request = Request(number, [text], 1, new)
        self.scheduler.add(request)
        return request

    def step(self) -> Schedule:
        """One step, if there is anything to do."""
        self.plan = plan = self.scheduler.schedule()
        for request, text, _, stop in plan.chunks:
            if stop == len(text.token_ids):
                text.token_ids.append(stop)
                if len(text.output_ids) == request.max_tokens:
                    text.finish_reason = "length"
                    self.scheduler.remove(request)
        for callback in tuple(self._callbacks if plan.chunks else ()):
            callback()
        return plan

    def run(self) -> None:
        """Steps until nobody is left."""
        while self.step().chunks:
            pass


class FirstThatFits(Scheduler):
    """Fills every gap, and lets a large request wait as long as small ones keep coming."""

    def next_waiting(self) -> Request:
        """The first in line for whom there is room."""
        return next(
            (request for request in self.waiting if self.may_admit(request)), self.waiting[0]
        )


class Patient(Scheduler):
    """Right: the first in line is passed `PATIENCE` times and no more."""

    passed = 0

    def next_waiting(self) -> Request:
        """The first in line for whom there is room, unless the very first has been passed often
        enough.
        """
        first = self.waiting[0]
        if self.may_admit(first):
            self.passed = 0
        elif self.passed < PATIENCE:
            for request in self.waiting:
                if self.may_admit(request):
                    self.passed += 1
                    return request
        return first


def queue_trial(answer: type[Scheduler]) -> Trial:
    """The reader's scheduler beside `Patient`, on the same arrivals.

    Nobody's blocks grow, so nobody gives way.
    """
    yield f"LLM(scheduler={answer.__name__}), 10 blocks of 4; for 3 steps s takes 2, m 3, L 8"

    class Mine(answer):  # type: ignore[misc, valid-type]
        def next_waiting(self) -> Request:
            if not isinstance(chosen := super().next_waiting(), Request):
                raise Wrong(
                    "next_waiting returns a request, whether it fits or not.",
                    "one of self.waiting",
                    chosen,
                )
            return chosen

    def let_in(engine: ToyEngine, operation: str) -> list[str]:
        verb, argument = operation.rstrip("')").split("(")
        if verb == "step":
            return [
                f"r{r.request_id}"
                for _ in range(int(argument or 1))
                for r in engine.step().admitted
            ]
        for kind in argument.lstrip("'"):
            engine.add({"s": 6, "m": 10, "L": 30}[kind], 3)
        return []

    mine, right = ToyEngine(Mine, num_blocks=10), ToyEngine(Patient, num_blocks=10)
    while True:
        operation = yield [
            "step()",
            "arrive('s')",
            "arrive('sL')",
            "arrive('sLssss')",
            "arrive('sLms')",
            "step(12)",
        ]
        assert isinstance(right.scheduler, Patient)
        queue, passed = right.scheduler.waiting, right.scheduler.passed
        before = (
            f"Before it, r{queue[0].request_id} is the first in the queue and has been passed "
            f"{passed} times."
            if queue
            else "Before it, the queue is empty."
        )
        got, expected = let_in(mine, operation), let_in(right, operation)
        agree(expected, got, f"{operation} admits other requests. {before}", "admits {}".format)


def _check_subclass(answer: Any) -> None:
    if not (isinstance(answer, type) and issubclass(answer, Scheduler)):
        raise Wrong("Give a subclass of Scheduler.", "class ...(Scheduler)", repr(answer))


@exercise
def patient(answer: type[Scheduler]) -> str:
    """next_waiting(self): the first that fits, but the first in line is passed three times at
    most.
    """
    _check_subclass(answer)
    search([partial(queue_trial, answer)], sequences=300, walks=60, length=16)
    same = (
        "The same order as ours in hundreds of queues: gaps are filled, and whoever is first in "
        "line is passed"
    )
    return f"{same}\n{PATIENCE} times at most, however many small requests keep coming."


class Cheapest(Scheduler):
    """Right: of all but the oldest, whoever loses the fewest tokens."""

    def victim(self) -> Request:
        """Who gives way; the later one of two that lose as many, and nobody who holds no block."""
        others = [r for r in reversed(self.running[1:]) if r.unfinished[0].table.num_tokens]
        return min(
            others,
            key=lambda r: sum(t.table.num_tokens for t in r.unfinished),
            default=self.running[0],
        )


@exercise
def victim(answer: type[Scheduler]) -> str:
    """victim(self): whoever loses the fewest tokens, but not the oldest, and nobody without a
    block.
    """
    _check_subclass(answer)

    def victim_if_computed(*computed: int, policy: type[Scheduler] = answer) -> Any:
        """Which of running requests, in order of arrival and with so many tokens computed, gives
        way.
        """
        engine = ToyEngine(policy)
        for tokens in computed:
            # prompts in chunks: equally long, computed so far
            engine.add(44, 4).sequences[0].table.append(tokens)
        engine.scheduler.running += engine.scheduler.waiting
        engine.scheduler.waiting.clear()
        chosen = engine.scheduler.victim()
        return f"r{chosen.request_id}" if isinstance(chosen, Request) else chosen

    cases = [
        (5,),
        (5, 3),
        (3, 5),
        (2, 9, 4),
        (2, 4, 9),
        (1, 6, 6),
        (7, 0, 5),
        (2, 0, 8, 3),
        (9, 0),
        (30, 8, 12, 8, 40),
    ]
    compare(victim_if_computed, partial(victim_if_computed, policy=Cheapest), cases)
    goes = (
        "The oldest goes on whatever happens, so somebody always finishes; and of the others the "
        "one gives way"
    )
    return f"{goes}\nwhose work is the cheapest to do again."


@exercise
def swap_or_recompute(answer: Callable[[int, int, float, float, float], str]) -> str:
    """Which is over sooner: the KV of so many tokens out and back, or their forward pass once
    more.
    """
    cases = [(1000, 12 * 1024, 25e9, 0.5e9, 400e12), (1000, 512 * 1024, 25e9, 6.7e9, 400e12)]
    cases += [(1, 1000, bandwidth, 1e6, 1e12) for bandwidth in (1e9, 2e9, 0.5e9)]
    cases += [
        (100, kv, 1e9, parameters, 1e12)
        for kv, parameters in ((1500, 1e6), (700, 1e6), (1500, 2e6))
    ]
    cases += [(100, 1000, 1e9, 1e6, flops) for flops in (0.7e12, 1.5e12)]
    for tokens, kv_bytes, bandwidth, parameters, flops in cases:
        moved, computed = 2 * tokens * kv_bytes / bandwidth, 2 * tokens * parameters / flops
        expected = "swap" if moved < computed else "recompute"
        line = (
            f"swap_or_recompute({tokens=}, {kv_bytes=}, {bandwidth=:g}, {parameters=:g}, "
            f"{flops=:g})"
        )
        with trying(line, expected=expected):
            if (got := answer(tokens, kv_bytes, bandwidth, parameters, flops)) != expected:
                times = f"swap takes {1000 * moved:.4g} ms, recompute {1000 * computed:.4g} ms"
                raise Wrong("Not the one that is over sooner:", f"{expected!r}: {times}", repr(got))
    right = (
        "Right on all of them. The number of tokens drops out: what decides is bytes of KV a token "
        "over the"
    )
    return f"{right}\nbandwidth, against parameters over the arithmetic."


@compared(
    "Right on both sides of every edge: a sequence that fills its blocks, or holds none, needs one "
    "more, and no other does.",
    [([tokens], 0, 4) for tokens in (1, 3, 4, 5, 7, 8, 9, 0)],
    [([*pair], free, 4) for pair in product((1, 3, 4, 5, 7, 8, 9), repeat=2) for free in (0, 1, 2)],
    [
        ([tokens], 0, size)
        for size in (1, 2, 16)
        for tokens in (1, size, size + 1, 2 * size - 1, 2 * size)
    ],
    [([], 0, 4), ([16, 32, 48, 15, 17], 2, 16), ([16, 32, 48, 15, 17], 3, 16)],
)
def must_preempt(held: list[int], free: int, block_size: int) -> bool:
    """Whether one more token for each sequence takes more blocks than are free."""
    return sum(tokens % block_size == 0 for tokens in held) > free
