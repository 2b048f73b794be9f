"""The scheduler: which sequences run in the next step, and in which blocks. Pure Python: it counts.

A sequence waits or runs. A running sequence takes blocks as it grows. If no block is free, the
sequence that arrived last is preempted: its blocks are freed for older ones. It waits again, and
its KV is computed again, but for blocks that the prefix cache still has. A long prompt is computed
in chunks, each within the budget of tokens a step.

    waiting --admit--> running --finished-->
       ^                  |
       +-----preempt------+

Every sequence finishes. `check` refuses one that does not fit alone. A preempted sequence returns
before a new one is admitted. The oldest is preempted only if blocks are held outside the engine, so
it advances in every step.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pagedlab.arguments import integer
from pagedlab.blocks import BlockCopy, BlockTable, OutOfBlocks, Pool, blocks_for
from pagedlab.prefix import PrefixCache
from pagedlab.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pagedlab.kv_cache import KVCache


@dataclass(eq=False)
class Sequence:
    """A text that grows, and the blocks that hold its KV.

    Args:
        request_id: a running number, so the order of arrival.
        table: the block table; it holds the KV of the first `table.num_tokens` tokens.
        token_ids: the prompt, then the new tokens.
        num_prompt_tokens: tokens of the prompt.
        params: what was asked.
        max_tokens: new tokens, at most.
        seed: what its tokens are sampled with.
        salt: prompts share cached blocks only with prompts of the same salt.
        nth: 0, or the number of the sample, if several continue the prompt.
        forks: further samples of its prompt, which wait until the prompt has been computed.
        finish_reason: "stop", "length", "abort" or "error"; None while it grows.
    """

    request_id: int
    table: BlockTable
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    max_tokens: int
    seed: int = 0
    salt: str | None = None
    nth: int = 0
    forks: list[Sequence] = field(default_factory=list)
    finish_reason: str | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The name that users see, "r0" or "r0.2"."""
        return f"r{self.request_id}.{self.nth}" if self.nth else f"r{self.request_id}"

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens without KV: the rest of the prompt, or the token that was sampled last."""
        return self.length - self.table.num_tokens

    @property
    def output_ids(self) -> list[int]:
        """The new tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_outputs(self) -> int:
        """How many tokens are new."""
        return len(self.token_ids) - self.num_prompt_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """The tokens at positions start, ..., stop - 1, as far as it has them."""
        return self.token_ids[start:stop]


class Chunk(NamedTuple):
    """Tokens start, ..., stop - 1 of a sequence, which a step computes. They have slots already.

    Args:
        sequence: the sequence.
        start: the first token.
        stop: the token after the last one.
        guesses: the last of these tokens, if they are guessed and no tokens of the sequence yet.
    """

    sequence: Sequence
    start: int
    stop: int
    guesses: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of logits that are sampled: for the last known token, and for each guess.

        There is none if the chunk ends before the last known token.
        """
        return max(0, self.stop - self.sequence.length + 1)

    @property
    def token_ids(self) -> list[int]:
        """The tokens that are known."""
        known = self.sequence.tokens(self.start, self.stop - len(self.guesses))
        return [*known, *self.guesses]


@dataclass
class Plan:
    """What one step does.

    Args:
        chunks: the tokens to compute.
        copies: block copies to execute before the forward pass.
        operations: what else happens to the KV cache, before the copies; a policy may add some.
        admitted: sequences that run from now on, and their tokens that are in the prefix cache.
        preempted: sequences that lost their blocks, and how: "recompute", or what a policy says.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    operations: list[Callable[[KVCache], None]] = field(default_factory=list)
    admitted: dict[Sequence, int] = field(default_factory=dict)
    preempted: dict[Sequence, str] = field(default_factory=dict)


class Scheduler:
    """Plans steps for the sequences over one pool.

    To change the policy, override `order`, `may_admit`, `next_waiting`, `victim` or `preempt` in a
    subclass. Both queues are sorted by `order`.

    Args:
        pool: the block pool.
        max_batch_tokens: tokens per step, at most.
        max_sequences: running sequences, at most.
        prefix_cache: the prefix cache; None if prefix caching is off.
    """

    def __init__(
        self,
        pool: Pool,
        max_batch_tokens: int,
        max_sequences: int,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self.pool = pool
        self.max_batch_tokens = integer("max_batch_tokens", max_batch_tokens, 1)
        self.max_sequences = integer("max_sequences", max_sequences, 1)
        self.prefix_cache = prefix_cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.plan = Plan()  # the latest plan
        self.budget = 0  # tokens that this step may still compute

    # ------------------------------------------------------------------ the policy

    def order(self, sequence: Sequence) -> Any:
        """The key that sorts the queues. By default: first come, first served."""
        return sequence.request_id, sequence.nth

    def may_admit(self, sequence: Sequence) -> bool:
        """Whether enough blocks are free to admit a waiting sequence.

        Blocks are needed for all its tokens, for tokens that running sequences have yet to compute,
        and for one more block a sequence. Without the last, it would be preempted as soon as a
        sequence starts its next block.
        """
        free = self.pool.num_free - self.num_lacking() - 1 - len(sequence.forks)
        need = blocks_for(sequence.length, self.pool.block_size)
        if need > free and self.prefix_cache is not None:
            need -= self.prefix_cache.num_shared(sequence.token_ids, salt=sequence.salt)
        return need <= free

    def next_waiting(self) -> Sequence:
        """The sequence that is admitted next. No other overtakes it, even if only that one fits."""
        return self.waiting[0]

    def victim(self) -> Sequence:
        """The running sequence to preempt: the youngest, so that the oldest always advances."""
        return self.running[-1]

    # ------------------------------------------------------------------ a step

    def check(self, sequence: Sequence) -> None:
        """Raise `ValueError` if a new sequence would not fit even if it ran alone."""
        size = self.pool.block_size
        # The last token needs no slot, because its KV is never needed.
        need = blocks_for(sequence.num_prompt_tokens + sequence.max_tokens - 1, size)
        if need > self.pool.num_blocks:
            raise ValueError(
                f"the request needs {need} blocks of {size} tokens ({sequence.num_prompt_tokens} "
                f"prompt tokens, up to {sequence.max_tokens} new ones) and the pool has "
                f"{self.pool.num_blocks}"
            )
        num_samples = sequence.params.n
        if num_samples > self.max_sequences:
            raise ValueError(
                f"{num_samples} samples of one prompt begin side by side and the "
                f"engine takes {self.max_sequences}"
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that `check` accepts."""
        insort(self.waiting, sequence, key=self.order)

    def schedule(self) -> Plan:
        """Plan the next step: choose the tokens to compute and give them slots.

        Running sequences go on, oldest first, and may preempt the youngest. Only if none was
        preempted, waiting ones are admitted.

        Returns:
            The plan. It has no chunks if there is nothing to compute, or if no sequence can go on.
        """
        self.plan = Plan()
        self.budget = self.max_batch_tokens
        self.continue_running()
        for chunk in self.plan.chunks:
            self.register(chunk)
        self.admit_waiting()
        return self.plan

    def continue_running(self) -> None:
        """Give slots to the next tokens of running sequences, oldest first.

        While blocks are short, the youngest is preempted, in the end the sequence itself.
        """
        for sequence in tuple(self.running):
            while sequence not in self.plan.preempted and not self.give_slots(sequence):
                self.preempt(self.victim())

    def admit_waiting(self) -> None:
        """Admit waiting sequences until one does not fit, or the budget is spent."""
        while self.waiting and self.budget and not self.plan.preempted:
            sequence = self.next_waiting()
            if not self.has_room_for(sequence):
                return
            self.admit(sequence)
            if self.give_slots(sequence):
                self.register(self.plan.chunks[-1])
            else:
                self.preempt(sequence)

    def fork(self, sequence: Sequence) -> None:
        """Give further samples of a prompt that has been computed its blocks. They run at once."""
        for sample in sequence.forks:
            sample.table = sequence.table.fork()
            insort(self.running, sample, key=self.order)
        sequence.forks = []

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, finished or not, and free its blocks."""
        for queue in self.queues().values():
            if sequence in queue:
                queue.remove(sequence)
                break
        sequence.table.free()

    def queues(self) -> dict[str, Any]:
        """The queues by name. Every unfinished sequence is in one, or is a fork of one that is."""
        return {"running": self.running, "waiting": self.waiting}

    # ------------------------------------------------------------------ slots and blocks

    def give_slots(self, sequence: Sequence) -> bool:
        """Give slots to the next tokens of a running sequence, within the budget.

        Returns:
            False, with nothing changed, if too few blocks are free.
        """
        num_tokens = self.num_next(sequence)
        if num_tokens == 0:
            return True
        start = sequence.table.num_tokens
        try:
            self.plan.copies += sequence.table.append(num_tokens)
        except OutOfBlocks:
            return False
        self.plan.chunks.append(Chunk(sequence, start, start + num_tokens))
        self.budget -= num_tokens
        return True

    def num_next(self, sequence: Sequence) -> int:
        """How many tokens a running sequence may compute in this step."""
        return min(sequence.num_uncomputed, self.budget)

    def register(self, chunk: Chunk) -> None:
        """Register the blocks that a chunk fills, so that sequences admitted later share them.

        prefix.py says why that is safe before they are computed.
        """
        sequence = chunk.sequence
        num_full = chunk.stop // self.pool.block_size
        if self.prefix_cache is not None and num_full > len(sequence.table.entries):
            known = sequence.token_ids[: chunk.stop]
            self.prefix_cache.register(sequence.table, known, salt=sequence.salt)

    def admit(self, sequence: Sequence) -> None:
        """Move a waiting sequence to the running ones, with the blocks that are cached for it."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=self.order)
        if self.prefix_cache is not None:
            sequence.table = self.prefix_cache.match(sequence.token_ids, salt=sequence.salt)
        self.plan.admitted[sequence] = sequence.table.num_tokens

    def preempt(self, sequence: Sequence) -> None:
        """Free all blocks of a running sequence. It waits, and is computed again."""
        self.take_back(sequence)
        sequence.table.free()
        self.running.remove(sequence)
        self.add(sequence)
        self.plan.preempted[sequence] = "recompute"
        # Its copies are not executed: their destinations may be given to other sequences.
        self.plan.copies = [
            copy for copy in self.plan.copies if self.pool.refcount(copy.destination) > 0
        ]

    def take_back(self, sequence: Sequence) -> None:
        """Take back the slots that a sequence got in this step, if a policy preempts such a one."""
        for chunk in self.plan.chunks:
            if chunk.sequence is sequence:
                sequence.table.truncate(chunk.start)
                self.budget += chunk.stop - chunk.start
        self.plan.chunks = [chunk for chunk in self.plan.chunks if chunk.sequence is not sequence]

    # ------------------------------------------------------------------ counts

    def has_room_for(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may run now: enough sequences and blocks are free."""
        if self.num_sequences() + 1 + len(sequence.forks) > self.max_sequences:
            return False
        # Alone it fits: `check` has seen to that.
        return not self.running or self.may_admit(sequence)

    def num_sequences(self) -> int:
        """The running sequences, and those that are forked from them later."""
        return len(self.running) + sum([len(each.forks) for each in self.running])

    def num_lacking(self) -> int:
        """Blocks that running sequences lack for the tokens they have, and one a sequence.

        The one is for tokens that the sequence is about to write.
        """
        lacking = sum(each.table.needs(each.num_uncomputed) for each in self.running)
        return lacking + self.num_sequences()
