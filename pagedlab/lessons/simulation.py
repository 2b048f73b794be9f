"""Four allocators on the same requests: which requests are admitted, and the state of each slot.

The states are those of "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (Kwon et al., 2023, section 3.1 and figure 2):

    used        holds a token
    reserved    empty; its request fills it later, and no other request can use it until then
    internal    internal fragmentation: reserved for tokens that never come. This is known only
                when the request ends
    external    external fragmentation: what the allocator rounds up, and holes that are too small
                for the request that waits
    free        empty, and no request waits for memory

The five add up to all slots at every step. `external` is the paper's "external fragmentation &
others".
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pagedlab.blocks import OutOfBlocks
from pagedlab.lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request

KINDS = ("used", "reserved", "internal", "external", "free")


@dataclass
class Place:
    """Where one request lies at one moment: `tokens` of the `total` it will have, in `regions`, in
    this order.
    """

    request: int
    tokens: int
    total: int
    regions: list[Region] = field(default_factory=list)

    @property
    def wish(self) -> Request:
        """What it asks for when it is admitted: after a preemption, what was written is prompt."""
        return Request(self.tokens, self.total - self.tokens)


class Sample(NamedTuple):
    """One moment: slots by kind (see the module's docstring), requests in memory and in line, and
    who lies where.
    """

    step: int
    running: int
    waiting: int
    slots: dict[str, int]
    places: list[Place]  # empty unless asked for


@dataclass
class Run:
    """What `simulate` saw."""

    num_slots: int
    samples: list[Sample] = field(default_factory=list)
    steps: int = 0
    finished: int = 0
    preempted: int = 0  # times a running request gave its memory back, to be computed again
    # steps in which the first in line was refused though enough slots were free in all
    refused_with_room: int = 0

    def shares(self) -> dict[str, float]:
        """Mean share of the slots by kind over the samples in which somebody waits (over all, if
        nobody ever does).
        """
        samples = self._busy()
        return {
            kind: sum(s.slots[kind] for s in samples) / len(samples) / self.num_slots
            for kind in KINDS
        }

    def mean_running(self) -> float:
        """Requests in memory at a time, mean over the same samples."""
        return sum(s.running for s in self._busy()) / len(self._busy())

    def _busy(self) -> list[Sample]:
        return [s for s in self.samples if s.waiting] or self.samples


def simulate(
    requests: Iterable[tuple[int, int]],
    allocator: Contiguous | Paged,
    *,
    max_running: float = math.inf,
    max_steps: float = math.inf,
    sample_every: int = 1,
    places: bool = False,
) -> Run:
    """Serve `requests`, (prompt, output) token counts, first come first served from a line that
    starts full.

    In a step every running request gets one token, the complete ones leave, and the first in line
    are admitted with their whole prompts while there is room. Where a running one finds no room for
    its token (only "paged" comes to that), the last admitted gives its memory back and returns to
    the head of the line. `ValueError` before the first step for a request that could never fit.
    """
    line = deque(
        Place(number, prompt, prompt + output) for number, (prompt, output) in enumerate(requests)
    )
    for job in line:
        if not 0 < job.tokens < job.total:
            raise ValueError(
                f"request {job.request} needs at least one token of prompt and one of output: "
                f"{job.wish}"
            )
        if not allocator.can_ever_fit(job.wish):
            needed, room = max(job.total, allocator.needs(job.wish)), allocator.num_slots
            needs = (
                f"it needs {needed:,} slots side by side or a larger reservation, and memory has "
                f"{room:,}"
            )
            never = f"request {job.request} ({job.total:,} tokens) can never fit: {needs}"
            raise ValueError(f"{never}; leave it out, or raise max_length or num_slots")
    run, running = Run(allocator.num_slots), list[Place]()
    while (line or running) and run.steps < max_steps:
        refused = _decode(running, line, allocator, run)
        while line and not refused and len(running) < max_running:
            try:
                allocator.admit(line[0].request, line[0].wish)
                running.append(line.popleft())
            except (OutOfMemory, OutOfBlocks):
                if not running:
                    raise  # somebody else holds the memory, and waiting would not end
                refused = True
                run.refused_with_room += allocator.num_free >= allocator.needs(line[0].wish)
        if run.steps % sample_every == 0:
            where = [
                replace(job, regions=allocator.regions(job.request)) for job in running if places
            ]
            run.samples.append(
                Sample(
                    run.steps, len(running), len(line), _slots(running, allocator, refused), where
                )
            )
        run.steps += 1
    return run


def _decode(
    running: list[Place], line: deque[Place], allocator: Contiguous | Paged, run: Run
) -> bool:
    """One token for every running request, oldest first; then the complete ones leave.

    Whether one gave way: the blocks won by it are for those that run, not for a newcomer.
    """
    before, i = run.preempted, 0
    while i < len(running):
        try:
            allocator.append(running[i].request)
        except OutOfBlocks:
            line.appendleft(running.pop())
            allocator.release(line[0].request)
            run.preempted += 1
            continue  # try the same one again, unless it was the last
        running[i].tokens += 1
        i += 1
    for job in [job for job in running if job.tokens == job.total]:
        allocator.release(job.request)
        running.remove(job)
        run.finished += 1
    return run.preempted > before


def _slots(running: list[Place], allocator: Contiguous | Paged, refused: bool) -> dict[str, int]:
    slots = dict.fromkeys(KINDS, 0)
    for job in running:
        asked, given = allocator.held(job.request)
        slots["used"] += job.tokens
        slots["reserved"] += min(asked, job.total) - job.tokens
        slots["internal"] += max(0, asked - job.total)
        slots["external"] += given - asked
    slots["external" if refused else "free"] += allocator.num_free
    return slots
