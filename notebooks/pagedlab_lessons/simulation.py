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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagedlab.blocks import OutOfBlocks
from pagedlab_lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request

KINDS = ("used", "reserved", "internal", "external", "free")


@dataclass
class Place:
    """A request at one moment.

    Args:
        request: its number.
        tokens: computed so far.
        total: tokens of prompt and output.
        regions: where its slots are, in the order of its tokens.
    """

    request: int
    tokens: int
    total: int
    regions: Sequence[Region] = ()


class Sample(NamedTuple):
    """One moment.

    Args:
        running: requests in memory.
        waiting: requests in the queue.
        slots: by kind, see the module's docstring.
        places: of the requests in memory; empty unless asked for.
    """

    running: int
    waiting: int
    slots: dict[str, int]
    places: list[Place]


@dataclass
class Run:
    """What `simulate` found.

    Args:
        num_slots: of the memory.
        samples: of the state.
        steps: of the run.
        preempted: times that a running request was preempted, to be computed again.
    """

    num_slots: int
    samples: list[Sample]
    steps: int = 0
    preempted: int = 0

    def shares(self) -> dict[str, float]:
        """Return the mean share of the slots by kind, over the samples with waiting requests.

        If no request ever waits it is the mean over all samples.
        """
        samples = self._busy()
        return {
            kind: sum(sample.slots[kind] for sample in samples) / len(samples) / self.num_slots
            for kind in KINDS
        }

    def mean_running(self) -> float:
        """Return the mean number of requests in memory, over the same samples."""
        samples = self._busy()
        return sum(sample.running for sample in samples) / len(samples)

    def _busy(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.waiting] or self.samples


def simulate(
    requests: Iterable[tuple[int, int]],
    allocator: Contiguous | Paged,
    *,
    max_running: float = math.inf,
    sample_every: int = 1,
    places: bool = False,
) -> Run:
    """Serve requests first come, first served, from a queue that holds all of them at the start.

    In a step every running request gets one token, and finished ones release their memory. Then
    waiting requests are admitted with their whole prompts as long as they fit. If there is no slot
    for a running request's token, the request admitted last is preempted and returns to the head of
    the queue. This happens only with "paged".

    Args:
        requests: prompt and output tokens of each.
        allocator: of the memory.
        max_running: requests in memory at a time.
        sample_every: steps between two samples.
        places: whether samples have the places of the requests.

    Raises:
        OutOfMemory, OutOfBlocks: For a request that does not fit when it is alone.
    """
    queue = deque(
        Place(number, prompt, prompt + output) for number, (prompt, output) in enumerate(requests)
    )
    run = Run(allocator.num_slots, [])
    running: list[Place] = []
    while queue or running:
        preempted = _decode(running, queue, allocator, run)
        # Blocks freed by a preemption are for running requests, not for new ones.
        refused = preempted or _admit(running, queue, allocator, max_running)
        if run.steps % sample_every == 0:
            slots = _slots(running, allocator, refused)
            shown = running if places else []
            where = [replace(place, regions=allocator.regions(place.request)) for place in shown]
            run.samples.append(Sample(len(running), len(queue), slots, where))
        run.steps += 1
    return run


def _admit(
    running: list[Place],
    queue: deque[Place],
    allocator: Contiguous | Paged,
    max_running: float,
) -> bool:
    """Admit waiting requests; return whether one was refused for lack of memory."""
    while queue and len(running) < max_running:
        first = queue[0]
        # after a preemption all its tokens are prompt
        wish = Request(first.tokens, first.total - first.tokens)
        try:
            allocator.admit(first.request, wish)
        except (OutOfMemory, OutOfBlocks):
            if not running:
                raise  # waiting would not end
            return True
        running.append(queue.popleft())
    return False


def _decode(
    running: list[Place], queue: deque[Place], allocator: Contiguous | Paged, run: Run
) -> bool:
    """Give every running request a token, oldest first, and remove the finished ones.

    Returns:
        Whether a request was preempted.
    """
    before = run.preempted
    i = 0
    while i < len(running):
        try:
            allocator.append(running[i].request)
        except OutOfBlocks:
            if len(running) == 1:
                raise
            queue.appendleft(running.pop())
            allocator.release(queue[0].request)
            run.preempted += 1
            continue  # try the same one again, unless it was the last
        running[i].tokens += 1
        i += 1
    for place in [place for place in running if place.tokens == place.total]:
        allocator.release(place.request)
        running.remove(place)
    return run.preempted > before


def _slots(running: list[Place], allocator: Contiguous | Paged, refused: bool) -> dict[str, int]:
    """Return the slots by kind.

    Args:
        running: requests in memory.
        allocator: of the memory.
        refused: whether a request waits for memory.
    """
    slots = dict.fromkeys(KINDS, 0)
    for place in running:
        asked, given = allocator.held(place.request)
        slots["used"] += place.tokens
        slots["reserved"] += min(asked, place.total) - place.tokens
        slots["internal"] += max(0, asked - place.total)
        slots["external"] += given - asked
    slots["external" if refused else "free"] += allocator.num_free
    return slots
