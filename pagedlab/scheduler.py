"""The scheduler: which requests run in the next step, and in which blocks.

It is pure Python: it counts tokens and blocks. The swapper moves the contents of swapped blocks.

A request waits, runs or is swapped out. A running request takes blocks one by one as its sequences
grow. If no block is free, the request that arrived last is preempted: all its blocks are freed for
older requests. Its KV is either dropped and computed again later (recompute), or moved to CPU
memory (swap).

    waiting --admit--> running --finished-->
       ^                |   ^
       |   recompute    |   |  resume
       +----------------+   +------------ swapped
                        +------swap----------^

Every request finishes. `check` refuses one that does not fit alone. A preempted request returns
before a new one is admitted. The oldest request is preempted only if blocks are held outside the
engine, so it advances in every step.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from pagedlab.blocks import BlockCopy, BlockTable, OutOfBlocks, Pool, blocks_for
from pagedlab.prefix import PrefixCache
from pagedlab.sequence import Request, Sequence, SwappedKV, SwappedTable, common_prefix
from pagedlab.validation import counted, integer, one_of

PreemptionMode = Literal["recompute", "swap"]
PREFILL_GROWTH = 4  # each step may have four times the prompt tokens of the step before


class Swapper(Protocol):
    """Moves the contents of blocks between the device and CPU memory. `KVCache` is one."""

    def swap_out(self, block_ids: Seq[int]) -> Any:
        """Copy blocks to CPU memory and return the copies, for `swap_in`."""

    def swap_in(self, contents: Any, block_ids: Seq[int]) -> None:
        """Copy the contents that `swap_out` returned, in order, into these blocks."""


class Chunk(NamedTuple):
    """Tokens start, ..., stop - 1 of a sequence, which a step computes. They have slots already."""

    request: Request
    sequence: Sequence
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows of logits that are sampled: for the last known token, and for each drafted one."""
        return max(0, self.stop - self.sequence.length + self.sequence.num_draft + 1)

    @property
    def is_last(self) -> bool:
        """Whether the chunk reaches the last known token, so that the next one can be sampled."""
        return self.num_rows > 0

    def up_to(self, stop: int) -> Chunk:
        """The same chunk with another end. `_replace` takes twice as long."""
        return Chunk(self.request, self.sequence, self.start, stop)


class Preemption(NamedTuple):
    """A request that was preempted, and whether its KV was dropped or swapped."""

    request: Request
    mode: PreemptionMode


@dataclass
class Schedule:
    """The plan of one step.

    Args:
        chunks: the tokens to compute.
        copies: block copies to execute before the forward pass.
        admitted: requests that run for the first time, or again after a recompute.
        preempted: requests that lost their blocks.
        resumed: requests that were swapped in.
        registered: ids of blocks that the prefix cache can already find, and that this step fills.
        cached: tokens that each admitted request found in the prefix cache, by request id.
        passes: forward passes; more than one if the device runs ahead, see accelerate/run_ahead.py.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    registered: set[int] = field(default_factory=set)
    cached: dict[int, int] = field(default_factory=dict)
    passes: int = 1

    def __repr__(self) -> str:
        tokens = ", ".join(
            f"{chunk.sequence.name}[{chunk.start}:{chunk.stop}]" for chunk in self.chunks
        )
        parts = [f"computes {tokens or 'nothing'}"]
        parts += [f"copies block {copy.source} to {copy.destination}" for copy in self.copies]
        parts += [f"admits r{request.request_id}" for request in self.admitted]
        parts += [f"preempts r{request.request_id} by {mode}" for request, mode in self.preempted]
        parts += [f"resumes r{request.request_id}" for request in self.resumed]
        return f"Schedule({'; '.join(parts)})"


@dataclass
class Budget:
    """The tokens that a step may still compute.

    Args:
        tokens: tokens of any kind.
        prompt_tokens: prompt tokens. A limit keeps the step short for sequences that decode.
    """

    tokens: int
    prompt_tokens: int

    @property
    def is_spent(self) -> bool:
        return self.tokens == 0 or self.prompt_tokens == 0

    def limit(self, is_prompt: bool) -> int:
        """Tokens that one request may compute, at most."""
        return min(self.tokens, self.prompt_tokens) if is_prompt else self.tokens

    def spend(self, num_tokens: int, is_prompt: bool) -> None:
        self.tokens -= num_tokens
        if is_prompt:
            self.prompt_tokens -= num_tokens


class NextTokens(NamedTuple):
    """The tokens that one request computes in this step, if enough blocks are free.

    Args:
        counts: pairs of a sequence and its number of tokens.
        is_prompt: whether some sequence computes more than its next token.
    """

    counts: list[tuple[Sequence, int]]
    is_prompt: bool


class RequestTooLarge(ValueError):
    """A request would not fit even if it ran alone.

    Args:
        problem: what does not fit.
        request_advice: what to change in the request.
        engine_advice: what to change in the engine.
    """

    def __init__(self, problem: str, request_advice: str, engine_advice: str) -> None:
        super().__init__(f"{problem}: {request_advice} or {engine_advice}")
        self.problem = problem
        self.request_advice = request_advice
        self.engine_advice = engine_advice


class Scheduler:
    """Plans steps for the requests over one pool.

    To change the policy, override `order`, `may_admit`, `next_waiting` or `victim` in a subclass.
    All three queues are sorted by `order`.

    Args:
        pool: the block pool.
        max_batch_tokens: tokens per step, at most.
        max_sequences: running sequences, at most.
        prefix_cache: the prefix cache; None if prefix caching is off.
        max_prompt_tokens: prompt tokens per step, at most, while a streaming request decodes; None
            for no limit. While none does, the limit is this number in the first step, so that the
            device starts early, then 4 times, 16 times and so on, until the queues are empty.
        preemption: "recompute" or "swap". If CPU memory is full, "swap" recomputes.
        swapper: moves the contents of blocks; required for "swap".
        max_cpu_blocks: blocks in CPU memory, at most; None for the size of the pool.
    """

    def __init__(
        self,
        pool: Pool,
        max_batch_tokens: int,
        max_sequences: int,
        prefix_cache: PrefixCache | None = None,
        *,
        max_prompt_tokens: int | None = None,
        preemption: PreemptionMode = "recompute",
        swapper: Swapper | None = None,
        max_cpu_blocks: int | None = None,
    ) -> None:
        self.max_batch_tokens = integer("max_batch_tokens", max_batch_tokens, 1)
        self.max_sequences = integer("max_sequences", max_sequences, 1)
        if max_prompt_tokens is None:
            max_prompt_tokens = self.max_batch_tokens
        self.max_prompt_tokens = integer("max_prompt_tokens", max_prompt_tokens, 1)
        self.preemption: PreemptionMode = one_of("preemption", preemption, ("recompute", "swap"))
        if preemption == "swap" and swapper is None:
            raise ValueError("preemption='swap' needs a swapper, which moves the blocks' contents")
        self.pool = pool
        self.prefix_cache = prefix_cache
        # A reader's cache may lack these two methods.
        self._register_blocks = getattr(prefix_cache, "register", None)
        self._num_shared_blocks = getattr(prefix_cache, "num_shared_blocks", None)
        self.swapper = swapper
        self.max_cpu_blocks = pool.num_blocks if max_cpu_blocks is None else max_cpu_blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.plan = Schedule()  # the latest plan
        # Whether a queued request may run now, if there is room. A runner sets it.
        self.accepts: Callable[[Request], bool] = lambda request: True
        self._budget = Budget(0, 0)
        self._promised: int | None = None  # blocks, while requests are admitted, else None
        self._prefill_ramp = 1  # factor on max_prompt_tokens while no streaming request decodes

    # ------------------------------------------------------------------ the policy

    def order(self, request: Request) -> Any:
        """The key that sorts every queue. By default: first come, first served."""
        return request.request_id

    def may_admit(self, request: Request) -> bool:
        """Whether enough blocks are free to admit a waiting request.

        Blocks are needed for all its tokens, for tokens that running sequences have yet to compute,
        and for one more block a sequence. Without the last, the request would be preempted as soon
        as a sequence starts its next block.
        """
        free = self.pool.num_free - self._promised_blocks() - request.num_sequences
        need = request.blocks_now(self.pool.block_size)
        return need <= free or need - self._shared_blocks(request) <= free

    def next_waiting(self) -> Request:
        """The request that is admitted next. No other overtakes it, even if only that one fits."""
        return self.waiting[0]

    def victim(self) -> Request:
        """The running request to preempt: the youngest, so that the oldest always advances."""
        return self.running[-1]

    # ------------------------------------------------------------------ a step

    def check(self, request: Request) -> None:
        """Raise `RequestTooLarge` if the request would not fit even if it ran alone."""
        size = self.pool.block_size
        need = request.blocks_at_most(size)
        if need > self.pool.num_blocks:
            prompt = counted(request.sequences[0].num_prompt_tokens, "prompt token")
            sequences = counted(request.num_sequences, "sequence")
            raise RequestTooLarge(
                f"the request needs {counted(need, 'block')} of {size} tokens ({prompt}, "
                f"up to {request.max_tokens} new ones, {sequences}) "
                f"and the pool has {self.pool.num_blocks}",
                "shorten the prompt, lower max_tokens",
                "raise num_blocks",
            )
        limit = min(self.max_sequences, self.max_batch_tokens)
        if request.num_sequences > limit:
            raise RequestTooLarge(
                f"{request.num_sequences} sequences of one prompt run side by side and the engine "
                f"takes {limit}",
                "ask for fewer",
                "raise max_sequences and max_batch_tokens",
            )

    def add(self, request: Request) -> None:
        """Queue a request that `check` accepts."""
        insort(self.waiting, request, key=self.order)

    def schedule(self) -> Schedule:
        """Plan the next step: choose the tokens to compute and give them slots.

        It has three phases. 1: running requests continue, and preempt younger ones if blocks are
        short. Only if no request was preempted, 2: swapped requests are resumed, and 3: waiting
        requests are admitted.

        Returns:
            The plan. It has no chunks if there is nothing to compute.

        Raises:
            OutOfBlocks: If there are requests, and none of them can advance.
        """
        self.plan = Schedule()
        self._budget = self._new_budget()
        self._continue_running()
        if not self.plan.preempted:  # from here on, no running request is preempted
            self._register(self.plan.chunks)
            self._resume_swapped()
            self._admit_waiting()
        self._raise_if_stuck()
        return self.plan

    def remove(self, request: Request) -> None:
        """Remove a request, finished or not, and free its blocks."""
        for queue in (self.running, self.waiting, self.swapped):
            if request in queue:
                queue.remove(request)
        request.swapped_kv = None
        for sequence in request.sequences:
            sequence.table.free()
        if not (self.running or self.waiting or self.swapped):
            self._prefill_ramp = 1  # the next step is a first step

    def has_room_for_next(self) -> bool:
        """Whether the next swapped or waiting request may run now."""
        candidates = self.swapped[:1]
        if self.waiting:
            candidates = [*candidates, self.next_waiting()]
        return any(self._has_room_for(request) for request in candidates)

    def reserve_ahead(self, chunks: Seq[Chunk], num_tokens: int) -> list[Chunk] | None:
        """Give slots to further tokens of each sequence while its chunk is still being computed.

        Args:
            chunks: the chunks of the plan.
            num_tokens: further tokens of each sequence, at most.

        Returns:
            A chunk for each sequence that continues. None, with nothing changed, if blocks are
            short or if a queued request fits. Then `schedule` must plan the next step.
        """
        if self.has_room_for_next():
            return None
        further = []
        for request, sequence, _, stop in chunks:
            end = sequence.num_prompt_tokens + request.max_tokens - 1  # the last token needs no KV
            if sequence.finish_reason is None and stop < end:
                further.append(Chunk(request, sequence, stop, min(stop + num_tokens, end)))
        if not self._fits([(sequence, stop - start) for _, sequence, start, stop in further]):
            return None
        for _, sequence, start, stop in further:
            sequence.table.append(stop - start)  # no copies: it owns its last block by now
        return further

    # ------------------------------------------------------------------ the three phases

    def _new_budget(self) -> Budget:
        prompt_tokens = self.max_prompt_tokens
        if not self._streaming_request_decodes():
            prompt_tokens *= self._prefill_ramp
        # A larger factor than max_batch_tokens changes nothing.
        self._prefill_ramp = min(PREFILL_GROWTH * self._prefill_ramp, self.max_batch_tokens)
        return Budget(self.max_batch_tokens, prompt_tokens)

    def _streaming_request_decodes(self) -> bool:
        """Whether a running request, whose caller reads token by token, is about to get a token."""
        for request in self.running:
            if request.streaming:
                for seq in request.to_compute:
                    if seq.num_uncomputed == 1 + seq.num_draft:
                        return True
        return False

    def _continue_running(self) -> None:
        """Phase 1: give slots to the next tokens of running requests, oldest first."""
        for request in tuple(self.running):
            was_preempted = bool(self.plan.preempted) and request not in self.running
            if not was_preempted:
                self._extend(request)

    def _resume_swapped(self) -> None:
        """Phase 2: swap requests in while they fit, oldest first."""
        while self.swapped and not self._budget.is_spent and not self.plan.preempted:
            request = self.swapped[0]
            if self.waiting and self.order(self.waiting[0]) < self.order(request):
                return  # an older request was preempted by recompute and returns first
            if not self.accepts(request) or not self._has_room_for(request):
                return
            self._resume(request)
            self._start(request)

    def _admit_waiting(self) -> None:
        """Phase 3: admit waiting requests while they fit.

        The blocks promised to running requests are counted once. Each admitted request's are added.
        """
        if not self.waiting:
            return
        self._promised = self._promised_to(self.running)
        self._admit_while_room()
        self._promised = None

    def _admit_while_room(self) -> None:
        """Admit waiting requests until one does not fit, or the budget is spent.

        No request is admitted before an older swapped one, or after one was preempted.
        """
        while self.waiting and not self._budget.is_spent and not self.plan.preempted:
            request = self.next_waiting()
            if self.swapped and self.order(self.swapped[0]) < self.order(request):
                return
            if not self.accepts(request) or not self._has_room_for(request):
                return
            self._admit(request)
            self._start(request)
            if self._promised is not None:
                self._promised += self._promised_to([request])

    def _raise_if_stuck(self) -> None:
        """Raise `OutOfBlocks` if there are requests and none of them can advance."""
        if self.plan.chunks or not (self.waiting or self.running or self.swapped):
            return
        if any(sequence.num_ahead for sequence in self._running_sequences()):
            return  # the device computes tokens of these: the next step has work
        raise OutOfBlocks(
            f"no request can go on, with {self.pool.num_free} of {self.pool.num_blocks} blocks "
            "free: release the blocks that are held outside the engine, or correct a policy that "
            "admits no request"
        )

    # ------------------------------------------------------------------ slots

    def _extend(self, request: Request) -> None:
        """Give slots to the next tokens of a running request.

        While blocks are short, the youngest request is preempted, in the end the request itself.
        """
        tokens = self._next_tokens(request)
        while not self._fits(tokens.counts):
            victim = self.victim()
            self._preempt(victim)
            if victim is request:
                return
            tokens = self._next_tokens(request)
        self._give_slots(request, tokens)

    def _start(self, request: Request) -> None:
        """Give slots to a request that was just admitted or resumed.

        If blocks are short, the request itself is preempted.
        """
        tokens = self._next_tokens(request)
        if self._fits(tokens.counts):
            self._register(self._give_slots(request, tokens))
        else:
            self._preempt(request)

    def _next_tokens(self, request: Request) -> NextTokens:
        """Choose how many tokens each sequence of the request computes, within the budget."""
        sequences = request.sequences
        if len(sequences) > 1:
            self._fork_again(request)
            sequences = request.unfinished
        # All sequences are asked: one that is recomputed may be ready before the others.
        is_prompt = any(seq.num_uncomputed > 1 + seq.num_draft for seq in sequences)
        counts = request.next_tokens(self._budget.limit(is_prompt))
        return NextTokens(counts, is_prompt)

    def _give_slots(self, request: Request, tokens: NextTokens) -> list[Chunk]:
        """Append the tokens to their tables and add chunks and copies to the plan."""
        chunks = []
        for sequence, num_tokens in tokens.counts:
            start = sequence.table.num_tokens
            self.plan.copies += sequence.table.append(num_tokens)
            chunk = Chunk(request, sequence, start, start + num_tokens)
            self.plan.chunks.append(chunk)
            chunks.append(chunk)
            self._budget.spend(num_tokens, tokens.is_prompt)
        return chunks

    def _fits(self, counts: list[tuple[Sequence, int]]) -> bool:
        """Whether enough blocks are free to append these tokens, with copies on write.

        Args:
            counts: pairs of a sequence and its number of further tokens.
        """
        size, free = self.pool.block_size, self.pool.num_free
        # Quick: a sequence needs at most a block for each `size` tokens, one for the rest of them,
        # and one for the copy of its last block.
        if sum(n // size + 2 for _, n in counts) <= free:
            return True
        return blocks_to_append(self.pool, counts) <= free

    def _register(self, chunks: Iterable[Chunk]) -> None:
        """Register the blocks that these chunks fill, before they are computed.

        Requests that are admitted later in this step can share them. That is safe: no request with
        such blocks is preempted any more, and in each layer the KV of the whole batch is written
        before any of it is read.
        """
        if self._register_blocks is None:
            return
        size = self.pool.block_size
        for request, sequence, start, stop in chunks:
            if stop // size == start // size:
                continue
            known = sequence.token_ids[: min(stop, sequence.num_known)]  # a draft may be rejected
            block_ids = self._register_blocks(sequence.table, known, salt=request.salt)
            self.plan.registered.update(block_ids)

    # ------------------------------------------------------------------ moves between the queues

    def _preempt(self, request: Request) -> None:
        """Free all blocks of a running request and put it back into a queue."""
        self._remove_chunks(request)
        mode: PreemptionMode = "swap" if self._can_swap(request) else "recompute"
        queue = self.swapped if mode == "swap" else self.waiting
        place = self._place_in(queue, request)
        if mode == "swap":
            request.swapped_kv = self._swap_out(request)
        self._free_tables(request)
        self._promised = None  # a policy may preempt while requests are admitted
        # Its copies are not executed: their destinations may be given to other sequences.
        self.plan.copies = [
            copy for copy in self.plan.copies if self.pool.refcount(copy.destination) > 0
        ]
        self.plan.preempted.append(Preemption(request, mode))
        self.running.remove(request)
        queue.insert(place, request)

    def _place_in(self, queue: Seq[Request], request: Request) -> int:
        """Where the request belongs in a queue."""
        return bisect_right(queue, self.order(request), key=self.order)

    def _remove_chunks(self, request: Request) -> None:
        """Remove the request's chunks from the plan.

        It has some only if a policy preempts a request that already got its slots in this step. Its
        prompt tokens stay spent, so the step computes fewer of them, never more.
        """
        for chunk in self.plan.chunks:
            if chunk.request is request:
                chunk.sequence.table.truncate(chunk.start)
                self._budget.tokens += chunk.stop - chunk.start
        self.plan.chunks = [chunk for chunk in self.plan.chunks if chunk.request is not request]

    def _free_tables(self, request: Request) -> None:
        for sequence in request.unfinished:
            sequence.drop_draft()
            sequence.table.free()

    def _can_swap(self, request: Request) -> bool:
        """Whether the request can be swapped out: no copy is pending, and CPU memory has room."""
        block_ids = _blocks_of(request.unfinished)
        if self.preemption != "swap" or not block_ids:
            return False
        # The destination of a pending copy holds nothing yet that could be moved.
        if any(copy.destination in block_ids for copy in self.plan.copies):
            return False
        num_swapped = sum(other.swapped_kv.num_blocks for other in self.swapped if other.swapped_kv)
        return num_swapped + len(block_ids) <= self.max_cpu_blocks

    def _swap_out(self, request: Request) -> SwappedKV:
        """Copy the request's blocks to CPU memory and record its block tables."""
        assert self.swapper is not None
        block_ids = _blocks_of(request.unfinished)
        place_of = {block_id: place for place, block_id in enumerate(block_ids)}
        tables = []
        for sequence in request.unfinished:
            places = [place_of[block_id] for block_id in sequence.table.block_ids]
            tables.append(SwappedTable(sequence, places, sequence.table.num_tokens))
        return SwappedKV(self.swapper.swap_out(block_ids), len(block_ids), tables)

    def _resume(self, request: Request) -> None:
        """Swap a request in. Its blocks have new ids and are shared as they were before."""
        swapped_kv = request.swapped_kv
        assert swapped_kv is not None
        assert self.swapper is not None
        place = self._place_in(self.running, request)
        block_ids = self._restore_tables(swapped_kv)
        self.swapper.swap_in(swapped_kv.contents, block_ids)
        request.swapped_kv = None
        self.swapped.remove(request)
        self.running.insert(place, request)
        self.plan.resumed.append(request)

    def _restore_tables(self, swapped_kv: SwappedKV) -> list[int]:
        """Allocate blocks for swapped tables. Return the new block ids in the swapped order."""
        new_ids: dict[int, int] = {}  # by place among the swapped blocks
        for sequence, places, num_tokens in swapped_kv.tables:
            for place in places:
                if place in new_ids:
                    self.pool.share(new_ids[place])
                else:
                    new_ids[place] = self.pool.allocate()
                sequence.table.block_ids.append(new_ids[place])
            sequence.table.num_tokens = num_tokens
        return [new_ids[place] for place in range(swapped_kv.num_blocks)]

    def _admit(self, request: Request) -> None:
        """Move a waiting request to the running ones, with the blocks that are cached for it."""
        place = self._place_in(self.running, request)
        self.waiting.remove(request)
        self.running.insert(place, request)
        self.plan.admitted.append(request)
        first = request.unfinished[0]
        if self.prefix_cache is not None:
            # The last token is computed in any case: the next one is sampled from its logits.
            first.table = self.prefix_cache.match(first.token_ids, leave=1, salt=request.salt)
            self.plan.cached[request.request_id] = first.table.num_tokens

    def _fork_again(self, request: Request) -> None:
        """Fork a preempted request's sequences again, once the first has their shared tokens."""
        first, *others = request.unfinished
        # A fork may need a copy of its last block, and copies are executed before the forward pass.
        # So the request waits a step if some of its blocks are computed in this one.
        if not self.plan.registered.isdisjoint(first.table.block_ids):
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

    def _promised_blocks(self) -> int:
        """Blocks that running requests will take before any other."""
        if self._promised is None:
            return self._promised_to(self.running)
        return self._promised

    def _promised_to(self, requests: Seq[Request]) -> int:
        """Blocks that these running requests lack for the tokens they have, and one a sequence.

        The one is for tokens that the sequence is about to write. A sequence that is forked later,
        when the prompt has been computed, counts as well.
        """
        size = self.pool.block_size
        sequences = [sequence for request in requests for sequence in request.unfinished]
        lacking = sum(blocks_for(seq.length, size) - len(seq.table.block_ids) for seq in sequences)
        return lacking + len(sequences) + sum(request.num_to_fork for request in requests)

    def _has_room_for(self, request: Request) -> bool:
        """Whether a queued request may run now: enough sequences and blocks are free."""
        running = sum(other.num_sequences for other in self.running)
        if running + request.num_sequences > self.max_sequences:
            return False
        if not self.running:
            return True
        if request.swapped_kv:
            one_more_each = len(self._running_sequences()) + request.num_sequences
            return request.swapped_kv.num_blocks + one_more_each <= self.pool.num_free
        return self.may_admit(request)

    def _shared_blocks(self, request: Request) -> int:
        """Cached blocks that the request would share with running requests."""
        first = request.unfinished[0]
        if self._num_shared_blocks is None:
            return 0
        return self._num_shared_blocks(first.token_ids, leave=1, salt=request.salt)


def blocks_to_append(pool: Pool, counts: list[tuple[Sequence, int]]) -> int:
    """Return how many free blocks it takes to append these tokens, with copies on write.

    Args:
        pool: the block pool.
        counts: pairs of a sequence and its number of further tokens.
    """
    size = pool.block_size
    need = 0
    writers = Counter[int]()  # by block: sequences that append to this partly filled block
    for sequence, n in counts:
        table = sequence.table
        need += blocks_for(table.num_tokens + n, size) - len(table.block_ids)
        if table.num_tokens % size:
            writers[table.block_ids[-1]] += 1
    for block_id, count in writers.items():
        # Two owners of a block that both write need one copy: the second is alone by then.
        need += count - 1 if pool.refcount(block_id) == count else count
    return need


def _blocks_of(sequences: Iterable[Sequence]) -> list[int]:
    """The ids of all blocks of these sequences, each once, in the order of the tables."""
    tables: Iterable[BlockTable] = (sequence.table for sequence in sequences)
    return list(dict.fromkeys(block_id for table in tables for block_id in table.block_ids))
