"""Which sequences run in the next step, and in which blocks.

Pure Python: it sees numbers of tokens, never a tensor.

A request waits, runs, or is swapped out. A running request takes blocks one by one as its sequences
grow. When no block is free, the request that arrived last is preempted, whole, and its blocks go to
those that arrived before it. Its KV is either thrown away and computed again later (recompute), or
moved to host memory (swap).

    waiting --admit--> running --finished-->
       ^                |   ^
       |   recompute    |   |  resume
       +----------------+   +------------ swapped
                        +------swap----------^

No request waits for ever: the oldest is never preempted, `add` refuses what would not fit alone,
and a preempted request returns before any new one is admitted. So the oldest goes on in every step
until it is done.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from pagedlab.blocks import BlockCopy, BlockTable, OutOfBlocks, Pool, blocks_for
from pagedlab.prefix import PrefixCache
from pagedlab.sequence import Request, Sequence, SwappedKV, common_prefix
from pagedlab.validation import integer, one_of

How = Literal["recompute", "swap"]
# prompt tokens a step whose rows of logits are kept; of Qwen's in fp32 that is 620 MB
MAX_SCORED = 1024
RAMP = 4  # how much larger each step of prompts may be than the one before


class Swapper(Protocol):
    """Moves the contents of blocks, at once: `KVCache` in the engine."""

    def swap_out(self, block_ids: Seq[int]) -> Any:
        """Copy blocks to host memory and return what `swap_in` needs to bring them back."""

    def swap_in(self, parked: Any, block_ids: Seq[int]) -> None:
        """Write the swapped contents, in order, into `block_ids`."""


class Chunk(NamedTuple):
    """In this step, compute tokens start, ..., stop - 1 of the sequence; they have their slots."""

    request: Request
    sequence: Sequence
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows of logits that are wanted, up to the end: the next ones, and those that score the
        prompt.
        """
        first = self.sequence.score_from
        return self.num_next if first is None else max(0, self.stop - max(self.start, first))

    @property
    def num_next(self) -> int:
        """Rows that next tokens come from: at the last known token, if it is here, and at each
        drafted one after it.
        """
        return max(0, self.stop - self.sequence.length + self.sequence.num_draft + 1)

    @property
    def is_last(self) -> bool:
        """Whether the sequence is computed to its end with this chunk, so that its next token can
        be sampled.
        """
        return self.num_next > 0


class Preemption(NamedTuple):
    """`request` was preempted.

    What it had computed is computed again later, or waits in host memory.
    """

    request: Request
    how: How


@dataclass
class Schedule:
    """One step's work.

    Args:
        chunks: the tokens to compute.
        copies: the block copies to do before.
        admitted: requests that run from this step on.
        preempted: requests that lost their blocks.
        resumed: requests that were swapped back in.
        registered: blocks that the prefix cache finds already, and that this step computes.
        cached_tokens: tokens that the admitted requests found in the prefix cache.
        passes: forward passes: several if the device runs ahead, see accelerate/run_ahead.py.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    registered: set[int] = field(default_factory=set)
    cached_tokens: int = 0
    passes: int = 1

    def __repr__(self) -> str:
        tokens = ", ".join(
            f"{chunk.sequence.name}[{chunk.start}:{chunk.stop}]" for chunk in self.chunks
        )
        parts = [f"computes {tokens or 'nothing'}"]
        parts += [f"copies block {copy.source} to {copy.destination}" for copy in self.copies]
        parts += [f"admits r{request.request_id}" for request in self.admitted]
        parts += [f"preempts r{request.request_id} by {how}" for request, how in self.preempted]
        parts += [f"resumes r{request.request_id}" for request in self.resumed]
        return f"Schedule({'; '.join(parts)})"


@dataclass
class Budget:
    """How much a step may still compute.

    Args:
        tokens: of all kinds.
        prompt_tokens: of prompts, so that nobody waits long for the next token of another sequence.
        scored_tokens: of prompts whose rows of logits are kept.
    """

    tokens: int
    prompt_tokens: int
    scored_tokens: int

    @property
    def is_spent(self) -> bool:
        return self.tokens == 0 or self.prompt_tokens == 0

    def limit(self, is_prompt: bool, is_scored: bool) -> int:
        """Tokens that one request may still compute."""
        limit = self.tokens
        if is_prompt:
            limit = min(limit, self.prompt_tokens)
        if is_scored:
            limit = min(limit, self.scored_tokens)
        return limit

    def spend(self, num_tokens: int, is_prompt: bool, is_scored: bool) -> None:
        self.tokens -= num_tokens
        if is_prompt:
            self.prompt_tokens -= num_tokens
        if is_scored:
            self.scored_tokens -= num_tokens


class Demand(NamedTuple):
    """What one request computes in a step, if blocks are free for it.

    Args:
        tokens: each sequence, and how many tokens of it.
        is_prompt: whether these are more than the next token of each sequence.
        is_scored: whether the prompt's own log-probabilities are wanted.
    """

    tokens: list[tuple[Sequence, int]]
    is_prompt: bool
    is_scored: bool


class Scheduler:
    """Queues of requests over one pool.

    All queues are in the order of `order`. A policy of your own is a subclass that overrides
    `order`, `may_admit`, `next_waiting` or `victim`.

    Args:
        pool: where blocks come from.
        max_batch_tokens: tokens a step.
        max_sequences: sequences that run at once.
        prefix_cache: finds blocks of earlier prompts; None for none.
        max_prompt_tokens: tokens of prompts in a step in which some reader waits for a next token;
            None for no such limit. Where no reader waits, a first step takes as many, so that the
            device starts early, and each later one up to four times as many as the one before.
        preemption: "recompute" or "swap". Swapping falls back to recomputing when the host is full.
        swapper: moves the contents of blocks; "swap" needs one.
        max_host_blocks: blocks that the host may hold; None for as many as the pool has.
    """

    def __init__(
        self,
        pool: Pool,
        max_batch_tokens: int,
        max_sequences: int,
        prefix_cache: PrefixCache | None = None,
        *,
        max_prompt_tokens: int | None = None,
        preemption: How = "recompute",
        swapper: Swapper | None = None,
        max_host_blocks: int | None = None,
    ) -> None:
        self.max_batch_tokens = integer("max_batch_tokens", max_batch_tokens, 1)
        self.max_sequences = integer("max_sequences", max_sequences, 1)
        if max_prompt_tokens is None:
            max_prompt_tokens = self.max_batch_tokens
        self.max_prompt_tokens = integer("max_prompt_tokens", max_prompt_tokens, 1)
        self.preemption: How = one_of("preemption", preemption, ("recompute", "swap"))
        if preemption == "swap" and swapper is None:
            raise ValueError("preemption='swap' needs a swapper, which moves the blocks' contents")
        self.pool = pool
        self.prefix_cache = prefix_cache
        # A reader's cache need not have these two.
        self._register_blocks = getattr(prefix_cache, "register", None)
        self._num_shared_blocks = getattr(prefix_cache, "num_shared_blocks", None)
        self.swapper = swapper
        self.max_host_blocks = pool.num_blocks if max_host_blocks is None else max_host_blocks
        self.cached_tokens = 0  # found so far, of prompts admitted
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.plan = Schedule()  # the latest, or the one in the making
        self._budget = Budget(0, 0, 0)
        self._ramp = 1  # prompts may take max_prompt_tokens this many times while no reader waits

    # ------------------------------------------------------------------ what a policy decides

    def order(self, request: Request) -> Any:
        """Requests with a smaller value come first in every queue: first come, first served."""
        return request.request_id

    def may_admit(self, request: Request) -> bool:
        """Whether blocks are free for all its tokens, those that others still have to compute, and
        one a sequence.

        Without the last, a request would be admitted only to be preempted when the next block is
        due.
        """
        size = self.pool.block_size
        running = self._running_sequences()
        still_due = sum(blocks_for(seq.length, size) - len(seq.table.block_ids) for seq in running)
        free = self.pool.num_free - still_due - len(running) - request.num_sequences
        need = request.blocks_now(size)
        return need <= free or need - self._shared_blocks(request) <= free

    def next_waiting(self) -> Request:
        """The request that is considered next.

        A smaller one does not pass one for which blocks are short.
        """
        return self.waiting[0]

    def victim(self) -> Request:
        """The running request that is preempted: the one that arrived last, so that the oldest
        always goes on.
        """
        return self.running[-1]

    # ------------------------------------------------------------------ a step

    def add(self, request: Request) -> None:
        """Queue a request. `ValueError` if it could not run even alone."""
        size = self.pool.block_size
        need = request.blocks_at_most(size)
        if need > self.pool.num_blocks:
            prompt_tokens = request.sequences[0].num_prompt_tokens
            raise ValueError(
                f"the request needs {need} blocks of {size} tokens ({prompt_tokens} prompt tokens, "
                f"up to {request.max_tokens} new ones, {request.num_sequences} sequences) "
                f"and the pool has {self.pool.num_blocks}: lower max_tokens or raise num_blocks"
            )
        limit = min(self.max_sequences, self.max_batch_tokens)
        if request.num_sequences > limit:
            raise ValueError(
                f"{request.num_sequences} sequences of one prompt run side by side and the engine "
                f"takes {limit}: "
                "raise max_sequences and max_batch_tokens"
            )
        insort(self.waiting, request, key=self.order)

    def schedule(self) -> Schedule:
        """Choose the next step's tokens and give them slots.

        The plan is empty only when nothing is left to do.

        If this fails, the caller rewinds `plan`.
        """
        self.plan = Schedule()
        self._budget = self._new_budget()
        self._continue_running()
        if not self.plan.preempted:  # nobody else is preempted from here on
            self._register(self.plan.chunks)
            self._resume_swapped()
            self._admit_waiting()
        self._report_deadlock()
        return self.plan

    def rewind(self, plan: Schedule) -> None:
        """Take back a step that failed: no table may claim KV that was never computed.

        Tables are truncated to where the step began. Requests that it admitted wait again, and so
        do those whose blocks were to be copied and are not. Blocks that it registered are
        forgotten. Doing it twice is harmless.
        """
        self._forget(plan.registered)
        plan.registered = set()
        not_copied = {copy.destination for copy in plan.copies}
        plan.copies = []
        back = list(plan.admitted)
        for chunk in plan.chunks:
            table = chunk.sequence.table
            if not not_copied.isdisjoint(table.block_ids):
                back.append(chunk.request)
            table.truncate(min(chunk.start, table.num_tokens))  # a preempted one has fewer
        for request in back:
            if request in self.running:
                self.running.remove(request)
                self._release(request)
                insort(self.waiting, request, key=self.order)
        self.cached_tokens -= plan.cached_tokens
        plan.cached_tokens = 0

    def remove(self, request: Request) -> None:
        """Take a request out, finished or not, and free its blocks."""
        for queue in (self.running, self.waiting, self.swapped):
            if request in queue:
                queue.remove(request)
        request.swapped_kv = None
        for sequence in request.sequences:
            sequence.table.free()
        if not (self.running or self.waiting or self.swapped):
            self._ramp = 1  # the next step is a first one

    def look_ahead(self, chunks: Seq[Chunk], most: int) -> list[Chunk] | None:
        """Give slots to up to `most` more tokens of each chunk's sequence, whose own tokens may
        still be computed.

        None, with nothing changed, if blocks are short or a request could come in: the next step is
        `schedule`'s then.
        """
        candidates = [*self.swapped[:1], *([self.next_waiting()] if self.waiting else [])]
        if any(self._has_room(request) for request in candidates):
            return None
        further = []
        for request, sequence, _, stop in chunks:
            # the token sampled last is never fed back
            end = sequence.num_prompt_tokens + request.max_tokens - 1
            if sequence.finish_reason is None and stop < end:
                further.append(Chunk(request, sequence, stop, min(stop + most, end)))
        if not self._fits([(sequence, stop - start) for _, sequence, start, stop in further]):
            return None
        for _, sequence, start, stop in further:
            # no copies: its last block is its own since it was last written
            sequence.table.append(stop - start)
        return further

    # ------------------------------------------------------------------ the three phases

    def _new_budget(self) -> Budget:
        prompt_tokens = self.max_prompt_tokens
        if not self._some_reader_waits():
            prompt_tokens *= self._ramp
        self._ramp = min(RAMP * self._ramp, self.max_batch_tokens)
        return Budget(self.max_batch_tokens, prompt_tokens, MAX_SCORED)

    def _some_reader_waits(self) -> bool:
        """Whether somebody reads a running sequence token by token, and its next token is due."""
        for request in self.running:
            if not request.read_at_end and any(
                s.num_uncomputed == 1 + s.num_draft for s in request.to_compute
            ):
                return True
        return False

    def _continue_running(self) -> None:
        """Give slots to the next tokens of running requests, oldest first."""
        for request in tuple(self.running):
            if not self.plan.preempted or request in self.running:
                self._extend(request)

    def _resume_swapped(self) -> None:
        """Swap requests back in, oldest first, while there is room."""
        while self.swapped and not self._budget.is_spent and not self.plan.preempted:
            request = self.swapped[0]
            if self.waiting and self.order(self.waiting[0]) < self.order(request):
                return  # that one was preempted by recompute, and goes first
            if not self._has_room(request):
                return
            self._resume(request)
            self._start(request)

    def _admit_waiting(self) -> None:
        """Admit requests while there is room: none that is younger than one that is swapped out."""
        while self.waiting and not self._budget.is_spent and not self.plan.preempted:
            request = self.next_waiting()
            if self.swapped and self.order(self.swapped[0]) < self.order(request):
                return
            if not self._has_room(request):
                return
            self._admit(request)
            self._start(request)

    def _report_deadlock(self) -> None:
        """Raise `OutOfBlocks` if requests are left and none can go on."""
        queued = self.waiting or self.running or self.swapped
        if (
            not queued
            or self.plan.chunks
            or any(seq.num_ahead for seq in self._running_sequences())
        ):
            return
        raise OutOfBlocks(
            f"no request can go on, with {self.pool.num_free} of {self.pool.num_blocks} blocks "
            "free: release "
            "the blocks that are held outside the engine, or mend a policy that lets nobody in"
        )

    # ------------------------------------------------------------------ slots

    def _extend(self, request: Request) -> None:
        """Give slots to the next tokens of a running request.

        If blocks are short, younger requests are preempted for it, and at last the request itself.
        """
        demand = self._demand(request)
        while not self._fits(demand.tokens):
            victim = self.victim()
            self._preempt(victim)
            if victim is request:
                return
            demand = self._demand(request)
        self._give_slots(request, demand)

    def _start(self, request: Request) -> None:
        """Give slots to a request that was just admitted or resumed.

        If blocks are short, it goes back by itself.
        """
        demand = self._demand(request)
        if self._fits(demand.tokens):
            self._register(self._give_slots(request, demand))
        else:
            self._preempt(request)

    def _demand(self, request: Request) -> Demand:
        """How many tokens each sequence of the request computes in this step, within the budget."""
        sequences = request.sequences
        if len(sequences) > 1:
            self._rejoin(request)
            sequences = request.unfinished
        is_scored = sequences[0].score_from is not None
        # A sequence that is computed again may be there before its siblings, so all of them are
        # asked.
        is_prompt = any(seq.num_uncomputed > 1 + seq.num_draft for seq in sequences)
        return Demand(
            request.next_tokens(self._budget.limit(is_prompt, is_scored)), is_prompt, is_scored
        )

    def _give_slots(self, request: Request, demand: Demand) -> list[Chunk]:
        """Append the tokens to their tables, and note the chunks and the copies in the plan."""
        chunks = []
        for sequence, num_tokens in demand.tokens:
            start = sequence.table.num_tokens
            self.plan.copies += sequence.table.append(num_tokens)
            chunk = Chunk(request, sequence, start, start + num_tokens)
            self.plan.chunks.append(chunk)
            chunks.append(chunk)
            self._budget.spend(num_tokens, demand.is_prompt, demand.is_scored)
        return chunks

    def _fits(self, wanted: list[tuple[Sequence, int]]) -> bool:
        """Whether blocks are free for this many more tokens of each sequence, copies on write
        included.
        """
        size, free = self.pool.block_size, self.pool.num_free
        # A sequence starts two blocks at most beside those it fills: an exact count is needed only
        # where few are free.
        if sum(n // size + 2 for _, n in wanted) <= free:
            return True
        need = 0
        writers = Counter[int]()
        for sequence, n in wanted:
            table = sequence.table
            need += blocks_for(table.num_tokens + n, size) - len(table.block_ids)
            if table.num_tokens % size:
                writers[table.block_ids[-1]] += 1
        for block_id, count in writers.items():
            # The last writer of a shared block finds itself alone and needs no copy.
            need += count - 1 if self.pool.refcount(block_id) == count else count
        return need <= free

    def _register(self, chunks: Iterable[Chunk]) -> None:
        """Let the prefix cache find the blocks that these chunks fill, though this step has yet to
        compute them.

        Nobody is preempted any more, so all of them will be computed. In each layer KV is written
        before it is read.
        """
        if self._register_blocks is None:
            return
        size = self.pool.block_size
        for request, sequence, start, stop in chunks:
            if stop // size == start // size:
                continue
            # a drafted token may be rejected
            known = sequence.token_ids[: min(stop, sequence.num_known)]
            try:
                block_ids = self._register_blocks(sequence.table, known, salt=request.salt)
                self.plan.registered.update(block_ids)
            except BaseException:  # of a reader's cache, which may have registered some of them
                self._forget(sequence.table.block_ids[start // size :])
                raise

    def _forget(self, block_ids: Iterable[int]) -> None:
        """These blocks were registered, and will not be computed."""
        for block_id in block_ids:
            self.pool.forget(block_id)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ moves between the queues

    def _preempt(self, request: Request) -> None:
        """Free the blocks of a running request, all of them, and put it back into a queue."""
        self._withdraw(request)
        how: How = "swap" if self._can_swap(request) else "recompute"
        if how == "swap":
            request.swapped_kv = self._swap_out(request)
        self._release(request)
        self.plan.preempted.append(Preemption(request, how))
        self.running.remove(request)
        queue = self.swapped if how == "swap" else self.waiting
        insort(queue, request, key=self.order)

    def _withdraw(self, request: Request) -> None:
        """Take the request's chunks out of the plan.

        It has some only if a policy preempts an older request.
        """
        for chunk in self.plan.chunks:
            if chunk.request is request:
                chunk.sequence.table.truncate(chunk.start)
                self._budget.tokens += chunk.stop - chunk.start
        self.plan.chunks = [chunk for chunk in self.plan.chunks if chunk.request is not request]

    def _release(self, request: Request) -> None:
        for sequence in request.unfinished:
            sequence.drop_draft()
            sequence.table.free()

    def _can_swap(self, request: Request) -> bool:
        """Whether all of its KV is there to be moved, and the host has room for it."""
        block_ids = _blocks_of(request.unfinished)
        if self.preemption != "swap" or not block_ids:
            return False
        # Copies are done after this: a block that waits for one has nothing yet that could be
        # moved.
        if any(copy.destination in block_ids for copy in self.plan.copies):
            return False
        on_host = sum(other.swapped_kv.num_blocks for other in self.swapped if other.swapped_kv)
        return on_host + len(block_ids) <= self.max_host_blocks

    def _swap_out(self, request: Request) -> SwappedKV:
        """Copy the request's blocks to the host, and note which sequence has which of them."""
        assert self.swapper is not None
        block_ids = _blocks_of(request.unfinished)
        place_of = {block_id: place for place, block_id in enumerate(block_ids)}
        tables = []
        for sequence in request.unfinished:
            places = [place_of[block_id] for block_id in sequence.table.block_ids]
            tables.append((sequence, places, sequence.table.num_tokens))
        return SwappedKV(self.swapper.swap_out(block_ids), len(block_ids), tables)

    def _resume(self, request: Request) -> None:
        """Bring a swapped request back into blocks, other ones perhaps, shared among its sequences
        as they were.
        """
        swapped_kv = request.swapped_kv
        assert swapped_kv is not None
        assert self.swapper is not None
        fresh = dict[int, int]()  # block ids by place
        try:
            for sequence, places, num_tokens in swapped_kv.tables:
                for place in places:
                    fresh[place] = (
                        self.pool.share(fresh[place]) if place in fresh else self.pool.allocate()
                    )
                    # at once: an error further on gives it back
                    sequence.table.block_ids.append(fresh[place])
                sequence.table.num_tokens = num_tokens
            self.swapper.swap_in(
                swapped_kv.contents, [fresh[place] for place in range(swapped_kv.num_blocks)]
            )
        except BaseException:
            for sequence, *_ in swapped_kv.tables:
                sequence.table.free()
            raise
        for sequence, *_ in swapped_kv.tables:
            table = sequence.table
            # less, if a window failed meanwhile
            table.truncate(min(table.num_tokens, sequence.length - 1))
        request.swapped_kv = None
        self.swapped.remove(request)
        insort(self.running, request, key=self.order)
        self.plan.resumed.append(request)

    def _admit(self, request: Request) -> None:
        """Let a waiting request run, on the blocks that the prefix cache has of it."""
        self.waiting.remove(request)
        insort(self.running, request, key=self.order)
        self.plan.admitted.append(request)
        first = request.unfinished[0]
        if (
            self.prefix_cache is not None and first.score_from is None
        ):  # a cached token would give no logits
            # One token at least is left to compute, or there would be no logits to go on from.
            first.table = self.prefix_cache.match(first.token_ids, leave=1, salt=request.salt)
            self.cached_tokens += first.table.num_tokens
            self.plan.cached_tokens += first.table.num_tokens

    def _rejoin(self, request: Request) -> None:
        """Fork the sequences of a request that is computed again from its first, once that has what
        they share.
        """
        first, *others = request.unfinished
        if not self.plan.registered.isdisjoint(first.table.block_ids):
            # a fork may have to copy its last block, and copies are done before anything is
            # computed
            return
        for sequence in others:
            if sequence.table.num_tokens:
                continue
            shared = common_prefix(first, sequence)
            if first.table.num_tokens >= shared:
                sequence.table = first.table.fork()
                sequence.table.truncate(shared)

    # ------------------------------------------------------------------ counts

    def _running_sequences(self) -> list[Sequence]:
        return [sequence for request in self.running for sequence in request.unfinished]

    def _has_room(self, request: Request) -> bool:
        """Whether the request may run beside the others: enough sequences are left, and enough
        blocks.
        """
        if sum(r.num_sequences for r in self.running) + request.num_sequences > self.max_sequences:
            return False
        if not self.running:
            return True
        if request.swapped_kv:
            need = (
                request.swapped_kv.num_blocks
                + len(self._running_sequences())
                + request.num_sequences
            )
            return need <= self.pool.num_free
        return self.may_admit(request)

    def _shared_blocks(self, request: Request) -> int:
        """Blocks that the prefix cache has for the request and that others hold anyway."""
        first = request.unfinished[0]
        if self._num_shared_blocks is None or first.score_from is not None:
            return 0
        return self._num_shared_blocks(first.token_ids, leave=1, salt=request.salt)


def _blocks_of(sequences: Iterable[Sequence]) -> list[int]:
    """The blocks of these sequences, each once, in the order of the tables."""
    tables: Iterable[BlockTable] = (sequence.table for sequence in sequences)
    return list(dict.fromkeys(block_id for table in tables for block_id in table.block_ids))
