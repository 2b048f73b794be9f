"""Swapping: a preempted sequence keeps its KV in CPU memory, and need not compute it again.

    llm = LLM(scheduler=SwappingScheduler)

             admit               finished
    waiting -------> running ----------->
       ^              |   ^
       |   recompute  |   |  resume
       +--------------+   |
                      +-> swapped

The scheduler notes in the plan which blocks the engine copies to CPU memory, and back. Blocks that
samples share are copied for each of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pagedlab.scheduler import Scheduler, Sequence

if TYPE_CHECKING:
    from torch import Tensor

    from pagedlab.kv_cache import KVCache


@dataclass
class SwappedKV:
    """The KV of a sequence in CPU memory.

    Args:
        block_ids: the blocks that it is copied from or to.
        num_tokens: tokens whose KV it is.
        keys: [layers, blocks, block_size, heads, head_dim], from when it has been copied out.
        values: the same.
    """

    block_ids: list[int]
    num_tokens: int
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)

    def copy_out(self, cache: KVCache) -> None:
        """Copy the blocks to CPU memory."""
        self.keys = cache.keys[:, self.block_ids].cpu()
        self.values = cache.values[:, self.block_ids].cpu()

    def copy_in(self, cache: KVCache) -> None:
        """Copy the contents into blocks of the cache."""
        cache.keys[:, self.block_ids] = self.keys.to(cache.keys.device)
        cache.values[:, self.block_ids] = self.values.to(cache.values.device)


class SwappingScheduler(Scheduler):
    """Preempts by copying blocks to CPU memory, as many as the pool has; then by recomputing.

    The arguments are those of `Scheduler`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.swapped: list[Sequence] = []
        self.max_cpu_blocks = self.pool.num_blocks
        self._kv: dict[Sequence, SwappedKV] = {}  # of each swapped sequence

    def queues(self) -> dict[str, Any]:
        """The queues by name, with the swapped sequences."""
        return {**super().queues(), "swapped": self.swapped}

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, and its KV in CPU memory."""
        super().remove(sequence)
        self._kv.pop(sequence, None)

    def preempt(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence, with their contents copied if CPU memory has room."""
        self.take_back(sequence)
        can_swap = self._can_swap(sequence)
        kv = SwappedKV(list(sequence.table.block_ids), sequence.table.num_tokens)
        super().preempt(sequence)
        if can_swap:
            self.plan.operations.append(kv.copy_out)
            self.plan.preempted[sequence] = "swap"
            self.waiting.remove(sequence)
            insort(self.swapped, sequence, key=self.order)
            self._kv[sequence] = kv

    def _can_swap(self, sequence: Sequence) -> bool:
        """Whether a sequence can be swapped out: no copy is pending, and CPU memory has room."""
        block_ids = sequence.table.block_ids
        # The destination of a pending copy holds nothing yet that could be moved.
        is_pending = any(copy.destination in block_ids for copy in self.plan.copies)
        in_use = sum(len(kv.block_ids) for kv in self._kv.values())
        return bool(block_ids and not is_pending and in_use + len(block_ids) <= self.max_cpu_blocks)

    def admit_waiting(self) -> None:
        """Resume swapped sequences while they fit, oldest first; then admit waiting ones."""
        while self.swapped and self._is_first(self.swapped[0], self.waiting):
            sequence = self.swapped[0]
            if not self.budget or not self._can_resume(sequence):
                return
            self._resume(sequence)
            if self.give_slots(sequence):
                self.register(self.plan.chunks[-1])
        super().admit_waiting()

    def may_admit(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may run now. No older one is swapped."""
        return self._is_first(sequence, self.swapped) and super().may_admit(sequence)

    def _is_first(self, sequence: Sequence, queue: Seq[Sequence]) -> bool:
        """Whether a sequence is older than all of another queue."""
        return not queue or self.order(sequence) < self.order(queue[0])

    def _can_resume(self, sequence: Sequence) -> bool:
        """Whether enough blocks are free for its KV, and one more for each sequence."""
        needed = len(self._kv[sequence].block_ids)
        if self.running:
            needed += len(self.running) + 1
        return len(self.running) < self.max_sequences and needed <= self.pool.num_free

    def _resume(self, sequence: Sequence) -> None:
        """Swap a sequence in, into blocks with new ids."""
        kv = self._kv.pop(sequence)
        sequence.table.append(kv.num_tokens)
        kv.block_ids = list(sequence.table.block_ids)
        self.plan.operations.append(kv.copy_in)
        self.plan.admitted[sequence] = 0
        self.swapped.remove(sequence)
        insort(self.running, sequence, key=self.order)
