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
from pagedlab.prefix import PrefixCache


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
    score: float | None = None  # of a beam that has ended

    @property
    def num_uncomputed(self) -> int:
        """Tokens that have no KV yet: the rest of the prompt, or the one token sampled last."""
        return len(self.token_ids) - self.table.num_tokens

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(eq=False)
class Request:
    """One prompt and the `num_texts` texts that continue it. They are one sequence until the prompt is computed."""

    request_id: int
    sequences: list[Sequence]
    num_texts: int
    max_tokens: int
    salt: str | None = None  # only requests with the same salt share cached blocks

    def blocks_at_most(self, block_size: int) -> int:
        """Blocks in the worst case: the full blocks of the prompt are shared, the others each text's own.

        The token sampled last is never fed back, so it needs no slot.
        """
        prompt = self.sequences[0].num_prompt_tokens
        shared = prompt // block_size
        return shared + self.num_texts * (blocks_for(prompt + self.max_tokens - 1, block_size) - shared)

    @property
    def texts_to_fork(self) -> int:
        """Texts that are still to be forked from the first one, once its prompt is computed."""
        return self.num_texts - len(self.sequences)

    @property
    def unfinished(self) -> list[Sequence]:
        return [s for s in self.sequences if s.finish_reason is None]


class Chunk(NamedTuple):
    """In this step, compute tokens start, ..., stop - 1 of the sequence; they have their slots."""

    request: Request
    sequence: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether the text is computed to its end with this chunk, so that its next token can be chosen."""
        return self.stop == len(self.sequence.token_ids)


@dataclass
class Schedule:
    """One step's work: the chunks of the batch, and the block copies to do before it."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


class Scheduler:
    """Queues of requests over one pool, at most `max_sequences` texts and `max_batch_tokens` tokens a step."""

    def __init__(
        self, pool: Pool, max_batch_tokens: int, max_sequences: int, prefix_cache: PrefixCache | None = None
    ) -> None:
        for name, value in (("max_batch_tokens", max_batch_tokens), ("max_sequences", max_sequences)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.pool = pool
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = max_sequences
        self.prefix_cache = prefix_cache
        self.cached_tokens = 0  # found so far, of all prompts admitted
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._owed: list[BlockCopy] = []  # copies of a step that failed: the tables have their new blocks already

    def add(self, request: Request) -> None:
        """Queue a request. `ValueError` if it could not run even alone."""
        need, have, size = request.blocks_at_most(self.pool.block_size), self.pool.num_blocks, self.pool.block_size
        if need > have:
            prompt = request.sequences[0].num_prompt_tokens
            raise ValueError(
                f"the request needs {need} blocks of {size} tokens ({prompt} prompt tokens, up to {request.max_tokens} "
                f"new ones, {request.num_texts} texts) and the pool has {have}: lower max_tokens or raise num_blocks"
            )
        limit = min(self.max_sequences, self.max_batch_tokens)
        if request.num_texts > limit:
            raise ValueError(
                f"{request.num_texts} texts of one prompt run side by side and the engine takes {limit}: "
                "raise max_sequences and max_batch_tokens"
            )
        self.waiting.append(request)

    def schedule(self) -> Schedule:
        """Choose the next step's tokens and give them slots. Empty only when nothing is left to do."""
        self._admit()
        plan, budget = Schedule(copies=self._owed), self.max_batch_tokens
        self._owed = []
        try:
            for request in self.running:
                texts = request.unfinished
                if len(texts) > budget:
                    continue  # the texts of one request go on together or not at all
                for sequence in texts:
                    start = sequence.table.num_tokens
                    stop = start + min(sequence.num_uncomputed, budget)
                    plan.chunks.append(Chunk(request, sequence, start, stop))
                    plan.copies += sequence.table.append(stop - start)
                    budget -= stop - start
        except BaseException:
            self.undo(plan)
            raise
        return plan

    def undo(self, plan: Schedule) -> None:
        """Take back the slots of a step that failed: no table may claim KV that was never computed.

        Its copies stay due. Doing one twice is harmless: nothing is written in between but what is computed again.
        """
        self._owed = plan.copies
        for chunk in plan.chunks:
            chunk.sequence.table.truncate(chunk.start)

    def _admit(self) -> None:
        promised = sum(r.blocks_at_most(self.pool.block_size) for r in self.running)
        texts = sum(r.num_texts for r in self.running)
        while self.waiting:
            request = self.waiting[0]
            promised += request.blocks_at_most(self.pool.block_size)
            texts += request.num_texts
            if promised > self.pool.num_blocks or texts > self.max_sequences:
                break  # later ones that would fit wait too, or a large request might wait for ever
            self.running.append(self.waiting.popleft())
            if self.prefix_cache is not None:
                (first,) = request.sequences
                # One token at least is left to compute, or there would be no logits to go on from.
                first.table = self.prefix_cache.match(first.token_ids, leave=1, salt=request.salt)
                self.cached_tokens += first.table.num_tokens

    def remove(self, request: Request) -> None:
        """Take a request out, finished or not, and free its blocks."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        for sequence in request.sequences:
            sequence.table.free()
