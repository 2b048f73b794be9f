"""Four allocators on the same requests: who gets in, and what every slot of memory is doing meanwhile.

What a slot can be is defined as in "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (Kwon et al., 2023, section 3.1 and figure 2):

    used        holds a token
    reserved    empty now; its request fills it before it ends, and nobody else can have it until then
    internal    set aside for tokens that never come, which shows only when the request ends
    external    lost to the allocator: what it rounds up, and holes that are no use to the request that waits
    free        empty, and no request is being refused for lack of memory

The five add up to all slots at every step. `external` is the paper's "external fragmentation & others".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pagedlab.blocks import OutOfBlocks
from pagedlab.lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request

KINDS = ("used", "reserved", "internal", "external", "free")


class Place(NamedTuple):
    """Where one request lies at one moment: `tokens` of the `total` it will have, in `regions`, in this order."""

    request: int
    tokens: int
    total: int
    regions: list[Region]


class Sample(NamedTuple):
    """One moment: slots by kind (see the module's docstring), requests in memory and in line, and who lies where."""

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
    refused_with_room: int = 0  # steps in which the first in line was refused though enough slots were free in all

    def shares(self) -> dict[str, float]:
        """Mean share of the slots by kind over the samples in which somebody waits (over all, if nobody ever does)."""
        samples = self._busy()
        return {kind: sum(s.slots[kind] for s in samples) / len(samples) / self.num_slots for kind in KINDS}

    def mean_running(self) -> float:
        """Requests in memory at a time, mean over the same samples."""
        return sum(s.running for s in self._busy()) / len(self._busy())

    def _busy(self) -> list[Sample]:
        return [s for s in self.samples if s.waiting] or self.samples


@dataclass
class _Job:
    key: int
    tokens: int
    total: int

    @property
    def request(self) -> Request:
        return Request(self.tokens, self.total - self.tokens)  # after a preemption, what was written is prompt


def simulate(
    requests: Iterable[tuple[int, int]],
    allocator: Contiguous | Paged,
    *,
    max_running: int | None = None,
    max_steps: int | None = None,
    sample_every: int = 1,
    places: bool = False,
) -> Run:
    """Serve `requests`, (prompt, output) token counts, first come first served from a line that starts full.

    In a step every running request gets one token, the complete ones leave, and the first in line are admitted
    with their whole prompts while there is room. Where a running one finds no room for its token (only "paged"
    comes to that), the last admitted gives its memory back and returns to the head of the line. `ValueError`
    before the first step for a request that could never fit.
    """
    line = deque(_Job(key, prompt, prompt + output) for key, (prompt, output) in enumerate(requests))
    for job in line:
        if not 0 < job.tokens < job.total:
            raise ValueError(f"request {job.key} needs at least one token of prompt and one of output: {job.request}")
        if not allocator.can_ever_fit(job.request):
            needed, room = max(job.total, allocator.needs(job.request)), allocator.num_slots
            raise ValueError(
                f"request {job.key} ({job.total:,} tokens) can never fit: it needs {needed:,} slots side by side or "
                f"a larger reservation, and memory has {room:,}; leave it out, or raise max_length or num_slots"
            )
    run, running = Run(allocator.num_slots), list[_Job]()
    while (line or running) and (max_steps is None or run.steps < max_steps):
        before = run.preempted
        _decode(running, line, allocator, run)
        refused = run.preempted > before  # the blocks won by it are for those that run, not for a newcomer
        while line and not refused and (max_running is None or len(running) < max_running):
            try:
                allocator.admit(line[0].key, line[0].request)
                running.append(line.popleft())
            except (OutOfMemory, OutOfBlocks):
                if not running:
                    raise  # somebody else holds the memory, and waiting would not end
                refused = True
                run.refused_with_room += allocator.num_free >= allocator.needs(line[0].request)
        if run.steps % sample_every == 0:
            run.samples.append(_sample(run.steps, running, len(line), allocator, refused, places))
        run.steps += 1
    return run


def _decode(running: list[_Job], line: deque[_Job], allocator: Contiguous | Paged, run: Run) -> None:
    """One token for every running request, oldest first; then the complete ones leave."""
    i = 0
    while i < len(running):
        try:
            allocator.append(running[i].key)
        except OutOfBlocks:
            line.appendleft(running.pop())
            allocator.release(line[0].key)
            run.preempted += 1
            continue  # try the same one again, unless it was the last
        running[i].tokens += 1
        i += 1
    for job in running:
        if job.tokens == job.total:
            allocator.release(job.key)
            run.finished += 1
    running[:] = [job for job in running if job.tokens < job.total]


def _sample(
    step: int, running: list[_Job], waiting: int, allocator: Contiguous | Paged, refused: bool, places: bool
) -> Sample:
    slots = dict.fromkeys(KINDS, 0)
    for job in running:
        asked, given = allocator.held(job.key)
        slots["used"] += job.tokens
        slots["reserved"] += min(asked, job.total) - job.tokens
        slots["internal"] += max(0, asked - job.total)
        slots["external"] += given - asked
    slots["external" if refused else "free"] += allocator.num_free
    where = [Place(job.key, job.tokens, job.total, allocator.regions(job.key)) for job in running] if places else []
    return Sample(step, len(running), waiting, slots, where)
