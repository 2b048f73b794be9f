"""Who runs in the next step, and in which blocks. Pure Python: it sees numbers of tokens, never a tensor.

First come, first served. A request is admitted once the blocks it may need at most are not promised to
others, so whoever runs can always finish. A promise is not memory: blocks are taken one by one as the text
grows, and what a text does not use was never held.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pagedlab.blocks import BlockCopy, BlockTable, Pool, blocks_for


@dataclass(eq=False)
class Sequence:
    """One text being written: its tokens, and the blocks that hold the KV of the first `table.num_tokens`."""

    name: str
    table: BlockTable
    token_ids: list[int]
    seed: int
    num_prompt_tokens: int
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0

    @property
    def num_uncomputed(self) -> int:
        """Tokens that have no KV yet: the rest of the prompt, or the one token sampled last."""
        return len(self.token_ids) - self.table.num_tokens

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(eq=False)
class Request:
    """One prompt and the texts that continue it. They are one sequence until the prompt is computed."""

    request_id: int
    sequences: list[Sequence]
    num_samples: int
    max_tokens: int

    def blocks_at_most(self, block_size: int) -> int:
        """Blocks in the worst case: the full blocks of the prompt are shared, the others each text's own.

        The token sampled last is never fed back, so it needs no slot.
        """
        prompt = self.sequences[0].num_prompt_tokens
        shared = prompt // block_size
        return shared + self.num_samples * (blocks_for(prompt + self.max_tokens - 1, block_size) - shared)

    @property
    def unfinished(self) -> list[Sequence]:
        return [s for s in self.sequences if s.finish_reason is None]


class Chunk(NamedTuple):
    """In this step, compute tokens start, ..., stop - 1 of the sequence; they have their slots."""

    request: Request
    sequence: Sequence
    start: int
    stop: int


@dataclass
class Schedule:
    """One step's work: the chunks of the batch, and the block copies to do before it."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


class Scheduler:
    """Queues of requests over one pool, at most `max_sequences` texts and `max_batch_tokens` tokens a step."""

    def __init__(self, pool: Pool, max_batch_tokens: int, max_sequences: int) -> None:
        for name, value in (("max_batch_tokens", max_batch_tokens), ("max_sequences", max_sequences)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.pool = pool
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = max_sequences
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request. `ValueError` if it could not run even alone."""
        need, have, size = request.blocks_at_most(self.pool.block_size), self.pool.num_blocks, self.pool.block_size
        if need > have:
            prompt = request.sequences[0].num_prompt_tokens
            raise ValueError(
                f"the request needs {need} blocks of {size} tokens ({prompt} prompt tokens, up to {request.max_tokens} "
                f"new ones, {request.num_samples} texts) and the pool has {have}: lower max_tokens or raise num_blocks"
            )
        if request.num_samples > self.max_sequences:
            raise ValueError(
                f"n={request.num_samples} texts at once, but the engine runs {self.max_sequences}: raise max_sequences"
            )
        self.waiting.append(request)

    def schedule(self) -> Schedule:
        """Choose the next step's tokens and give them slots. Empty only when nothing is left to do."""
        self._admit()
        plan, budget = Schedule(), self.max_batch_tokens
        for request in self.running:
            for sequence in request.unfinished:
                start = sequence.table.num_tokens
                n = min(sequence.num_uncomputed, budget)
                if n > 0:
                    plan.copies += sequence.table.append(n)
                    plan.chunks.append(Chunk(request, sequence, start, start + n))
                    budget -= n
        return plan

    def _admit(self) -> None:
        promised = sum(r.blocks_at_most(self.pool.block_size) for r in self.running)
        texts = sum(r.num_samples for r in self.running)
        while self.waiting:
            request = self.waiting[0]
            promised += request.blocks_at_most(self.pool.block_size)
            texts += request.num_samples
            if promised > self.pool.num_blocks or texts > self.max_sequences:
                break  # later ones that would fit wait too, or a large request might wait for ever
            self.running.append(self.waiting.popleft())

    def remove(self, request: Request) -> None:
        """Take a request out, finished or not, and free its blocks."""
        for sequence in request.sequences:
            sequence.table.free()
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
