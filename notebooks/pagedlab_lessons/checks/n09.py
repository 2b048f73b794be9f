"""Checks of notebook 09: a scheduler of ten lines, the edge of a block, swap or recompute, the
victim, a queue without starvation.

`ToyEngine` runs a scheduler without a model. `FirstThatFits` is the scheduler that starves large
requests.
"""

import sys
from collections.abc import Iterable
from itertools import count, permutations, product
from types import SimpleNamespace
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.callbacks import Callbacks
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Plan, Scheduler, Sequence
from pagedlab_lessons.checks import Wrong, agree, compared

PATIENCE = 3  # how often the first in the queue may be passed


class ToyEngine:
    """A scheduler at work, without a model: a sequence's next token is a number.

    It has the attributes of `LLM` that `trace.Recorder` reads. A swap changes tables only.

    Args:
        scheduler: the scheduler's class.
        num_blocks: of the pool.
        block_size: of the pool.
        options: the scheduler's.
    """

    def __init__(
        self,
        scheduler: type[Scheduler] = Scheduler,
        num_blocks: int = 64,
        block_size: int = 4,
        **options: Any,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        roomy = {"max_batch_tokens": 64, "max_sequences": 8}
        self.scheduler = scheduler(self.pool, **roomy | options)
        self.plan = self.scheduler.plan  # the latest step's
        self.model = SimpleNamespace(name="")
        self._ids = count()
        self._callbacks = Callbacks()
        self.on_step = self._callbacks.subscribe  # calls a function after every step
        self.on_forward = Callbacks().subscribe  # calls none: no forward pass ever runs

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of tokens: token i is the word "i"."""
        return "".join(f" {i}" for i in token_ids)

    def add(self, prompt: int, new: int) -> Sequence:
        """Queue a sequence with these numbers of prompt tokens and of new ones."""
        sequence = Sequence(
            next(self._ids),
            BlockTable(self.pool),
            list(range(prompt)),
            prompt,
            SamplingParams(max_tokens=new),
            max_tokens=new,
        )
        self.scheduler.check(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        """Run one step, if there is anything to do."""
        self.plan = plan = _checked(self.scheduler.schedule())
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if chunk.num_rows:
                sequence.token_ids.append(chunk.stop)
                if sequence.num_outputs >= sequence.max_tokens:
                    sequence.finish_reason = "length"
                    self.scheduler.remove(sequence)
        if plan.chunks:
            self._callbacks.call()
        return plan

    def run(self) -> None:
        """Run steps until no sequence is left."""
        while self.step().chunks:
            pass


def _checked(plan: Any) -> Plan:
    """Return what `schedule` returned, or raise `Wrong` if it cannot be carried out."""
    if not isinstance(plan, Plan):
        raise Wrong("schedule returns the plan: return self.plan.", "a Plan", repr(plan))
    for chunk in plan.chunks:
        name, stop = chunk.sequence.name, chunk.stop
        slots = chunk.sequence.table.num_tokens
        message = (
            f"A token that is computed needs a slot: {name}'s table has {slots} slots, but "
            f"its chunk ends before token {stop}. `stop` is exclusive,\nand append takes "
            "the number of tokens that have no slot yet."
        )
        agree(stop, slots, message)
    return plan


def _running(
    scheduler: type[Scheduler], num_blocks: int, places: int, arrivals: Iterable[list[int]]
) -> dict[str, list[str]]:
    """Return which requests run after each step, and their tokens.

    No request grows beyond its first blocks, so no request has to be preempted.

    Args:
        scheduler: the scheduler.
        num_blocks: of the pool.
        places: requests that run at once.
        arrivals: before each of the first steps, the lengths of the prompts that arrive.
    """
    engine = ToyEngine(scheduler, num_blocks, max_sequences=places)
    steps = {}
    for step, prompts in enumerate([*arrivals, *12 * [[]]], 1):
        for prompt in prompts:
            engine.add(prompt, 3)
        engine.step()
        running = engine.scheduler.running
        steps[f"Step {step}"] = [f"{each.name}: {each.table.num_tokens} tokens" for each in running]
    return steps


# In the first of two pools blocks are short, in the second one places.
_QUEUES = [
    (num_blocks, places, arrivals)
    for n in (1, 2, 3)
    for arrivals in product(([6], [30, 6, 6], [6, 30, 10, 6], [30, 30, 30]), repeat=n)
    for num_blocks, places in ((10, 8), (40, 3))
]
_TOLD = "{0} blocks of 4, {1} places; prompts that arrive before step 1, 2, ... have tokens: {2}"


@compared(
    "The same tokens in every step as ours, in {} queues: a finished request leaves, and the next "
    "is\nadmitted in the same step.",
    _QUEUES,
    name="schedule",
    through=_running,
    told=_TOLD,
    why="These requests run after the step, with so many tokens. Do you admit all that fit, in "
    "order, and compute all their tokens?",
)
class Continuous(Scheduler):
    """A Scheduler with schedule(self): continuous batching while enough blocks are free.

    It admits waiting requests in order, while a slot is free and `may_admit` is true. Then each
    running request gets slots for all its tokens that have none, and a chunk with them.
    """

    def schedule(self) -> Plan:
        """Plan the next step."""
        self.plan = Plan()
        self.budget = sys.maxsize
        while (
            self.waiting
            and len(self.running) < self.max_sequences
            and self.may_admit(self.waiting[0])
        ):
            self.running.append(self.waiting.popleft())
        for sequence in self.running:
            self.give_slots(sequence)
        return self.plan


class FirstThatFits(Scheduler):
    """Fills every gap, and lets a large request wait as long as small ones arrive."""

    def next_waiting(self) -> Sequence:
        """Return the first waiting sequence that fits."""
        fitting = (sequence for sequence in self.waiting if self.may_admit(sequence))
        return next(fitting, self.waiting[0])


@compared(
    "The same order as ours in {} queues: gaps are filled, and the first in the queue is passed\n"
    f"{PATIENCE} times at most, however many small requests arrive.",
    _QUEUES,
    name="patient",
    through=_running,
    told=_TOLD,
    why="These requests run after the step. The first in the queue is passed "
    f"{PATIENCE} times at most, and only if it does not fit.",
)
class Patient(Scheduler):
    """A Scheduler with next_waiting(self): the first request that fits.

    The first in the queue is passed three times at most.
    """

    passed = 0

    def next_waiting(self) -> Sequence:
        """Return the first sequence that fits; the very first after `PATIENCE` others."""
        first = self.waiting[0]
        if self.may_admit(first):
            self.passed = 0
        elif self.passed < PATIENCE:
            for sequence in self.waiting:
                if self.may_admit(sequence):
                    self.passed += 1
                    return sequence
        return first


def _victim_of(policy: type[Scheduler], computed: Iterable[int]) -> Any:
    """Return which of the running sequences a policy preempts.

    Args:
        policy: the scheduler.
        computed: tokens computed of each, in the order of their arrival.
    """
    engine = ToyEngine(policy)
    for tokens in computed:
        # Prompts in chunks: of one length, computed up to here.
        engine.add(44, 4).table.append(tokens)
    engine.scheduler.running += engine.scheduler.waiting
    engine.scheduler.waiting.clear()
    return engine.scheduler.victim().name


@compared(
    "The oldest request is never preempted, so one always finishes; of the others the one is "
    "preempted\nwhose work is the cheapest to do again.",
    [
        *((case,) for n in (1, 2, 3) for case in permutations((5, 2, 3, 9, 0), n) if case[0]),
        ((1, 6, 6),),
        ((30, 8, 12, 8, 40),),
    ],
    name="victim",
    why="A request without a block frees nothing, and the oldest one goes on. Which of the others "
    "has the fewest tokens?",
    through=_victim_of,
    told="victim()  # computed tokens of r0, r1, ...: {0}",
)
class Cheapest(Scheduler):
    """A Scheduler with victim(self): the running request that loses the fewest tokens.

    It never chooses the oldest request, nor one without a block.
    """

    def victim(self) -> Sequence:
        """Return the sequence to preempt; the later one of two that lose as many."""
        others = [each for each in reversed(self.running[1:]) if each.table.num_tokens]
        return min(others, key=lambda each: each.table.num_tokens, default=self.running[0])


def _times(
    tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float
) -> tuple[float, float]:
    """Return the seconds of a swap and those of a forward pass."""
    return 2 * tokens * kv_bytes / bandwidth, 2 * tokens * parameters / flops


@compared(
    "Right on all of them. The number of tokens cancels: what decides is bytes of KV a token over "
    "the\nbandwidth, against parameters over the arithmetic.",
    [
        (1000, 12 * 1024, 64e9, 0.5e9, 989e12),
        (1000, 512 * 1024, 64e9, 6.7e9, 989e12),
        *product((1, 100), (1000, 1500, 700), (1e9, 2e9, 0.5e9), (1e6, 2e6), (1e12, 1.5e12)),
    ],
    why=lambda *case: "A swap takes {:.4g} s, recomputing {:.4g} s.".format(*_times(*case)),
)
def swap_or_recompute(
    tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float
) -> str:
    """Which one is shorter, "swap" or "recompute".

    These are: moving the KV of these tokens out and back, or their forward pass again.
    """
    moved, computed = _times(tokens, kv_bytes, bandwidth, parameters, flops)
    return "swap" if moved < computed else "recompute"


@compared(
    "Right on both sides of every edge: a sequence that fills its blocks, or holds none, needs one "
    "more, and no other does.",
    [
        ([*held], free, size)
        for size in (4, 1, 2, 16)
        for n in (1, 2, 0)
        for held in product((1, size - 1, size, size + 1, 2 * size, 0), repeat=n)
        for free in range(3)
    ],
    why="Lengths {0} in blocks of {2}: a sequence needs a new block if its length is a multiple of "
    "{2}, and {1} are free.",
)
def must_preempt(held: list[int], free: int, block_size: int) -> bool:
    """Whether one more token for each sequence takes more blocks than are free."""
    return sum(tokens % block_size == 0 for tokens in held) > free
