"""Who runs in the next step, and in which blocks. Pure Python: it sees numbers of tokens, never a tensor.

A request waits, runs, or is swapped out. Whoever runs takes blocks one by one as the text grows; when none is
left, the request that came last gives way, whole, and its blocks go to those that came before it. Either its
KV is thrown away and computed again later (recompute), or it is parked in host memory (swap).

Nobody waits for ever: the oldest request is never asked to give way, `add` refuses what would not fit alone,
and who gave way comes back before anybody new. So the oldest goes on in every step until it is done.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol

from pagedlab.arguments import one_of, whole
from pagedlab.blocks import BlockCopy, OutOfBlocks, Pool, blocks_for
from pagedlab.interrupts import atomic
from pagedlab.prefix import PrefixCache
from pagedlab.request import Parked, Request, Sequence, common_prefix

How = Literal["recompute", "swap"]
_arrival = attrgetter("request_id")
MOST_SCORED = 1024  # prompt tokens a step whose rows of logits are kept; of Qwen's in fp32 that is 620 MB


class Swapper(Protocol):
    """Moves the contents of blocks, at once: `KVCache` in the engine."""

    def swap_out(self, block_ids: Seq[int]) -> Any:
        """Copy blocks to host memory and return what `swap_in` needs to bring them back."""

    def swap_in(self, parked: Any, block_ids: Seq[int]) -> None:
        """Write what was parked, in order, into `block_ids`."""


class Chunk(NamedTuple):
    """In this step, compute tokens start, ..., stop - 1 of the sequence; they have their slots."""

    request: Request
    sequence: Sequence
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows of logits that are wanted, up to the end: the next ones, and those that score the prompt."""
        first = self.sequence.score_from
        return self.num_next if first is None else max(0, self.stop - max(self.start, first))

    @property
    def num_next(self) -> int:
        """Rows that next tokens come from: at the last known token, if it is here, and each drafted one behind it."""
        return max(0, self.stop - self.sequence.length + self.sequence.num_draft + 1)

    @property
    def is_last(self) -> bool:
        """Whether the text is computed to its end with this chunk, so that its next token can be chosen."""
        return self.num_next > 0


class Preemption(NamedTuple):
    """`request` gave way, and what it had computed will be computed again or is parked in host memory."""

    request: Request
    how: How


@dataclass
class Schedule:
    """One step's work: the chunks of the batch, and the block copies to do before it. And who came and went."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)  # swapped back in
    making: dict[int, Request] = field(default_factory=dict)  # who fills which block that can be found already
    passes: int = 1  # of the model: several if its texts run ahead, see accelerate/windows.py


class Scheduler:
    """Queues of requests over one pool, at most `max_sequences` texts and `max_batch_tokens` tokens a step.

    max_prompt_tokens: tokens of prompts in a step in which somebody waits for a next token (None for no such limit);
    where nobody does, a first step takes as many, so that the device starts early, the next four times that, and so on.
    preemption: how a request gives way. "swap" needs a swapper, and falls back to "recompute" when the host holds
    `host_blocks` already (None for as many as the pool has). All queues are in order of arrival. A policy of your
    own is a subclass that overrides `may_admit`, `next_waiting` or `victim`.
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
        host_blocks: int | None = None,
    ) -> None:
        self.max_batch_tokens = whole("max_batch_tokens", max_batch_tokens, 1)
        self.max_sequences = whole("max_sequences", max_sequences, 1)
        most = self.max_batch_tokens if max_prompt_tokens is None else max_prompt_tokens
        self.max_prompt_tokens = whole("max_prompt_tokens", most, 1)
        self.preemption: How = one_of("preemption", preemption, ("recompute", "swap"))
        if preemption == "swap" and swapper is None:
            raise ValueError("preemption='swap' needs a swapper, which moves the blocks' contents")
        self.pool, self.prefix_cache, self.swapper = pool, prefix_cache, swapper
        self.host_blocks = pool.num_blocks if host_blocks is None else host_blocks
        self.cached_tokens = 0  # found so far, of prompts admitted
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.plan = Schedule()  # the latest, or the one in the making
        self._budget = self._prompts = self._scored = 0  # what the plan may still take: tokens; of prompts; with logits
        self._times = 1  # max_prompt_tokens so often is what prompts may take where nobody waits: see `schedule`
        self._owed: list[BlockCopy] = []  # copies that a failed step left: the tables have their new blocks already

    # ------------------------------------------------------------------ what a policy decides

    def may_admit(self, request: Request) -> bool:
        """Whether there is room for all its tokens, those that others still have to compute, and one block a text.

        Without the last, a request would be let in only to be thrown out when the next block is due.
        """
        size, texts = self.pool.block_size, self._texts()
        to_come = sum(blocks_for(text.length, size) - len(text.table.block_ids) for text in texts)
        room = self.pool.num_free - to_come - len(texts) - request.num_texts
        need = request.blocks_now(size)
        return need <= room or need - self._shared_blocks(request) <= room

    def next_waiting(self) -> Request:
        """Who is considered next: first come, first served. Who would fit does not pass by who would not."""
        return self.waiting[0]

    def victim(self) -> Request:
        """Who of `running` gives way: who came last, so that the oldest always goes on."""
        return self.running[-1]

    # ------------------------------------------------------------------ a step

    def add(self, request: Request) -> None:
        """Queue a request. `ValueError` if it could not run even alone."""
        have, size, texts = self.pool.num_blocks, self.pool.block_size, f"{request.num_texts} texts"
        need = request.blocks_at_most(size)
        if need > have:
            prompt = f"{request.sequences[0].num_prompt_tokens} prompt tokens"
            needs = f"{need} blocks of {size} tokens ({prompt}, up to {request.max_tokens} new ones, {texts})"
            raise ValueError(f"the request needs {needs} and the pool has {have}: lower max_tokens or raise num_blocks")
        limit = min(self.max_sequences, self.max_batch_tokens)
        if request.num_texts > limit:
            takes = f"run side by side and the engine takes {limit}"
            raise ValueError(f"{texts} of one prompt {takes}: raise max_sequences and max_batch_tokens")
        self.waiting.append(request)

    @atomic(lambda scheduler, plan: scheduler.undo(plan))
    def schedule(self) -> Schedule:
        """Choose the next step's tokens and give them slots. Empty only when nothing is left to do, or to be told.

        Who runs goes on; if nobody had to give way, others come in: nobody new before all who gave way are back.
        """
        self.plan = plan = Schedule(copies=self._owed)
        self._owed, self._budget, self._scored = [], self.max_batch_tokens, MOST_SCORED
        read = [request for request in self.running if not request.read_at_end]
        waits = any(t.num_uncomputed == 1 + t.num_draft for request in read for t in request.to_compute)
        self._prompts = self.max_prompt_tokens * (1 if waits else self._times)
        self._times = min(4 * self._times, self.max_batch_tokens)  # small steps come first
        try:
            for request in tuple(self.running):
                if not plan.preempted or request in self.running:  # it may have given way to one before it
                    self._extend(request)
            while not plan.preempted and (self.swapped or self.waiting) and self._budget and self._prompts:
                # Who gave way by recompute may be older than who was swapped.
                request = min(self._in_line(), key=_arrival)
                if not self._has_room(request):
                    break
                (self._resume if request.parked else self._admit)(request)
                self._extend(request)
            queued = self.waiting or self.running or self.swapped
            if queued and not plan.chunks and not any(text.num_ahead for text in self._texts()):
                raise OutOfBlocks(
                    f"no request can go on, with {self.pool.num_free} of {self.pool.num_blocks} blocks free: release "
                    "the blocks that are held outside the engine, or mend a policy that lets nobody in"
                )
        except BaseException:
            self.undo(plan)
            raise
        return plan

    def look_ahead(self, chunks: Seq[Chunk], most: int) -> list[Chunk] | None:
        """Slots for up to `most` more tokens behind each of `chunks`, whose own may still be in the making.

        None, with nothing changed, if blocks are short or somebody could come in: the next step is `schedule`'s then.
        """
        if any(self._has_room(request) for request in self._in_line()):
            return None
        further = []
        for request, text, _, stop in chunks:
            end = text.num_prompt_tokens + request.max_tokens - 1  # the token sampled last is never fed back
            if text.finish_reason is None and stop < end:
                further.append(Chunk(request, text, stop, min(stop + most, end)))
        if not self._fits([(text, stop - start) for _, text, start, stop in further]):
            return None
        for _, text, start, stop in further:
            text.table.append(stop - start)  # no copies: its last block is its own since it was last written
        return further

    def undo(self, plan: Schedule) -> None:
        """Take back the slots of a step that failed: no table may claim KV that was never computed.

        Who came or went stays so. Copies that are still in the plan stay due; whoever has done them takes them out,
        since the blocks that they were made from may have been written since.
        """
        for chunk in plan.chunks:
            table = chunk.sequence.table
            table.truncate(min(chunk.start, table.num_tokens))  # who gave way since has none left
        self._give_up(plan, set(plan.making))
        self._owed = self._still_due(dict.fromkeys([*self._owed, *plan.copies]))

    def remove(self, request: Request) -> None:
        """Take a request out, finished or not, and free its blocks."""
        for queue in (self.running, self.waiting, self.swapped):
            if request in queue:
                queue.remove(request)
        request.parked = None
        for sequence in request.sequences:
            sequence.table.free()
        self._owed = self._still_due(self._owed)
        if not (self.running or self.waiting or self.swapped):
            self._times = 1  # the next step is a first one

    # ------------------------------------------------------------------ moves

    def _extend(self, request: Request) -> None:
        """Give slots to the next tokens of a running request; others give way to it, or it does itself."""
        if len(request.sequences) > 1:
            self._rejoin(request)
        first = request.sequences[0] if len(request.sequences) == 1 else request.unfinished[0]
        scored, is_prompt = first.score_from is not None, first.num_uncomputed > 1 + first.num_draft
        if len(request.sequences) > 1 and not is_prompt:  # one that is computed again may be there before the others
            is_prompt = any(text.num_uncomputed > 1 + text.num_draft for text in request.unfinished)
        most = min(self._budget, self._scored if scored else self._budget, self._prompts if is_prompt else self._budget)
        while not self._fits(wanted := request.next_tokens(most)):
            victim = self.victim()
            self._preempt(victim)
            if victim is request:
                return
        size, announce = self.pool.block_size, getattr(self.prefix_cache, "announce", None)
        for text, n in wanted:
            start, stop = text.table.num_tokens, text.table.num_tokens + n
            self.plan.copies += text.table.append(n)
            self.plan.chunks.append(Chunk(request, text, start, stop))
            self._budget -= n
            self._scored -= n * scored
            self._prompts -= n * is_prompt
            if announce and stop // size > start // size:  # a reader's cache need not have it
                known = text.token_ids[: min(stop, text.num_known)]  # what is drafted may be wiped
                try:
                    announced = announce(text.table, known, salt=request.salt)
                except BaseException:  # of a reader's cache, which may have registered some of them
                    for block_id in text.table.block_ids[start // size :]:
                        self.pool.forget(block_id)  # type: ignore[attr-defined]
                    raise
                self.plan.making |= dict.fromkeys(announced, request)

    def _give_up(self, plan: Schedule, gone: set[int]) -> None:
        """These blocks of `plan.making` will not be computed: forget them, and what was built on them in this plan.

        Only who was admitted in this plan can have found one. It goes back to before it.
        """
        while gone:
            assert self.prefix_cache is not None
            for block_id in gone:
                del plan.making[block_id]
                self.prefix_cache.pool.forget(block_id)
            back = [r for r in plan.admitted if not gone.isdisjoint(r.unfinished[0].table.block_ids)]
            self._take_back(plan, back)
            for request in back:
                table = request.unfinished[0].table
                before = next(i for i, block_id in enumerate(table.block_ids) if block_id in gone)
                self.cached_tokens -= table.num_tokens - before * self.pool.block_size
                table.truncate(before * self.pool.block_size)
            gone = {block_id for block_id, maker in plan.making.items() if maker in back}

    def _take_back(self, plan: Schedule, requests: Seq[Request]) -> None:
        """Take these requests' chunks out of the plan again, and the slots that they were given."""
        for chunk in plan.chunks:
            if chunk.request in requests:
                chunk.sequence.table.truncate(chunk.start)
                self._budget += chunk.stop - chunk.start
        plan.chunks = [chunk for chunk in plan.chunks if chunk.request not in requests]

    def _preempt(self, request: Request) -> None:
        """Free the blocks of a running request, all of them, and put it back in line."""
        plan, texts = self.plan, request.unfinished
        self._take_back(plan, [request])  # it has some only if a policy makes an older request give way
        blocks = list(dict.fromkeys(block_id for text in texts for block_id in text.table.block_ids))
        # Copies are done after this: a block that waits for one has nothing yet that could be swapped out.
        complete = not any(copy.destination in blocks for copy in plan.copies) and not plan.making.keys() & blocks
        on_host = sum(other.parked.num_blocks for other in self.swapped if other.parked)
        how: How = "recompute"
        if self.preemption == "swap" and blocks and complete and on_host + len(blocks) <= self.host_blocks:
            assert self.swapper is not None
            tables = [(t, [blocks.index(b) for b in t.table.block_ids], t.table.num_tokens) for t in texts]
            request.parked = Parked(self.swapper.swap_out(blocks), len(blocks), tables)
            how = "swap"
        for text in texts:
            text.drop_draft()
            text.table.free()
        self._give_up(plan, {block_id for block_id, maker in plan.making.items() if maker is request})
        plan.copies = self._still_due(plan.copies)
        plan.preempted.append(Preemption(request, how))
        self.running.remove(request)
        insort(self.swapped if how == "swap" else self.waiting, request, key=_arrival)

    def _resume(self, request: Request) -> None:
        """Bring a swapped request back into blocks, other ones perhaps, shared among its texts as they were."""
        parked, fresh = request.parked, dict[int, int]()  # block ids by place
        assert parked is not None
        assert self.swapper is not None
        try:
            for text, places, num_tokens in parked.tables:
                for place in places:
                    fresh[place] = self.pool.share(fresh[place]) if place in fresh else self.pool.allocate()
                    text.table.block_ids.append(fresh[place])  # at once: an error further on gives it back
                text.table.num_tokens = num_tokens
            self.swapper.swap_in(parked.contents, [fresh[place] for place in range(parked.num_blocks)])
        except BaseException:
            for text, *_ in parked.tables:
                text.table.free()
            raise
        for text, *_ in parked.tables:
            text.table.truncate(min(text.table.num_tokens, text.length - 1))  # less, if a window failed meanwhile
        request.parked = None
        self.swapped.remove(request)
        insort(self.running, request, key=_arrival)
        self.plan.resumed.append(request)

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        insort(self.running, request, key=_arrival)
        self.plan.admitted.append(request)
        first = request.unfinished[0]
        if self.prefix_cache is not None and first.score_from is None:  # what is found would give no logits
            # One token at least is left to compute, or there would be no logits to go on from.
            first.table = self.prefix_cache.match(first.token_ids, leave=1, salt=request.salt)
            self.cached_tokens += first.table.num_tokens

    def _rejoin(self, request: Request) -> None:
        """Fork the texts of a request that is computed again from its first, once that has what they share."""
        first, *others = request.unfinished
        if not self.plan.making.keys().isdisjoint(first.table.block_ids):
            return  # a fork may have to copy its last block, and copies are done before anything is computed
        for text in others:
            if not text.table.num_tokens and first.table.num_tokens >= (shared := common_prefix(first, text)):
                text.table = first.table.fork()
                text.table.truncate(shared)

    def _texts(self) -> list[Sequence]:
        return [text for request in self.running for text in request.unfinished]

    def _in_line(self) -> list[Request]:
        """Who could come in next, of those swapped out and of those waiting."""
        return [*self.swapped[:1], *([self.next_waiting()] if self.waiting else [])]

    def _shared_blocks(self, request: Request) -> int:
        """Blocks that the prefix cache has for the request and that others hold anyway."""
        first, in_use = request.unfinished[0], getattr(self.prefix_cache, "in_use", None)  # a reader's need not have it
        return in_use(first.token_ids, leave=1, salt=request.salt) if in_use and first.score_from is None else 0

    def _has_room(self, request: Request) -> bool:
        if sum(r.num_texts for r in self.running) + request.num_texts > self.max_sequences:
            return False
        if not self.running:
            return True
        if request.parked:
            return request.parked.num_blocks + len(self._texts()) + request.num_texts <= self.pool.num_free
        return self.may_admit(request)

    def _fits(self, wanted: list[tuple[Sequence, int]]) -> bool:
        """Whether blocks are free for that many more tokens of each text, copies on write included."""
        size, free = self.pool.block_size, self.pool.num_free
        # A text starts two blocks at most beside those it fills: only where free ones are few is an exact count needed.
        if sum(n // size + 2 for _, n in wanted) <= free:
            return True
        need, writers = 0, Counter[int]()
        for text, n in wanted:
            need += blocks_for(text.table.num_tokens + n, size) - len(text.table.block_ids)
            if text.table.num_tokens % size:
                writers[text.table.block_ids[-1]] += 1
        # Of those that share a block, the last to write finds itself alone and needs no copy.
        return need + sum(n - (self.pool.refcount(block_id) == n) for block_id, n in writers.items()) <= free

    def _still_due(self, copies: Iterable[BlockCopy]) -> list[BlockCopy]:
        """Without the copies into blocks that were freed since: they may be somebody else's by now."""
        return [copy for copy in copies if self.pool.refcount(copy.destination)]
