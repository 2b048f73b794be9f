"""The engine's step: schedule, run, sample, update.

    request -> scheduler (blocks, copies) -> runner (batch, forward pass, sampler) -> request

A step runs one forward pass over a ragged batch: whole prompts, parts of prompts and single new
tokens, one after the other in one row, with no padding and no loop over requests around the model.

A step that fails or is interrupted is rewound as a whole. An interrupt waits until the bookkeeping
of a call is done.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab.interrupts import allowed_interrupts, deferred_interrupts
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.outputs import Completion, StreamReference
from pagedlab.prefix import PrefixCache
from pagedlab.recovery import Recovery
from pagedlab.request_state import RequestState
from pagedlab.runner import Runner, StepResult, call_back
from pagedlab.sampling_params import SamplingParams, request_seed
from pagedlab.scheduler import Schedule, Scheduler
from pagedlab.sequence import Request, Sequence
from pagedlab.stats import Stats


class Engine:
    """Requests in, tokens out, one step at a time.

    The runner, which runs the plans, is set afterwards: it reads `params`.

    Args:
        model: whose prompts and tokens these are.
        cache: where keys and values are.
        pool: which blocks of it are whose.
        prefix_cache: finds blocks of earlier prompts; None for none.
        scheduler: plans each step.
        new_table: makes an empty block table over the pool.
        seed: requests without a seed of their own draw with one that is made from this.
    """

    runner: Runner

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        pool: Pool,
        prefix_cache: PrefixCache | None,
        scheduler: Scheduler,
        new_table: type[BlockTable],
        seed: int,
    ) -> None:
        self.model = model
        self.cache = cache
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.scheduler = scheduler
        self.seed = seed
        self.stats = Stats(pool.num_blocks, cache.bytes_per_block)
        self.plan = Schedule()  # of the latest step
        self.drafts: list[Any] = []  # that the latest step checked
        self.params: dict[int, SamplingParams] = {}  # of the requests that are not finished
        self._new_table = new_table
        self._ids = itertools.count()
        self._states: dict[int, RequestState] = {}
        # requests of a `generate` or `stream`, which hands them out itself
        self._owned: set[int] = set()
        self._unseen: list[Completion] = []  # finished, and not yet returned by `step`
        self._callbacks: list[Callable[[], None]] = []
        self._streams: set[StreamReference] = set()
        # streams that are gone; the garbage collector appends
        self._abandoned: deque[StreamReference] = deque()
        self._to_abort: list[int] = []  # requests that were aborted while a step runs
        self._stepping = False
        ours = {BlockPool, BlockTable, PrefixCache, type(None), Scheduler}
        self._trusts_classes = {type(pool), new_table, type(prefix_cache), type(scheduler)} <= ours
        self._recovery = Recovery(pool, new_table)

    # ------------------------------------------------------------------ a step

    def step(self) -> list[Completion]:
        """Run one step and return the completions that it touched; `finished` tells which are done.

        With them come those that finished since the last call, in the steps of a `generate` or
        `stream`. If scheduling, the model or the sampler fails or is interrupted, the step has not
        happened: no token is added, and the tables are as before. If the step fails later, the
        requests in it are aborted.
        """
        with deferred_interrupts() as deferred:
            self._abort_abandoned()
            self._stepping = True
            began = time.perf_counter()
            try:
                result = self._run()
                touched = self._update(result, began) if result else []
            except BaseException:
                if not self._trusts_classes:
                    self._recover()
                raise
            finally:
                self._stepping = False
                self.runner.finish_step()
                self._abort_abandoned()
            known, self._unseen = self._unseen + touched, []
            deferred.on_interrupt = lambda: self._keep(known)
            return known

    def _run(self) -> StepResult | None:
        """Give the runner steps while it has room, and wait for the oldest.

        None if nothing is left to do.
        """
        with allowed_interrupts():
            pass  # a pending interrupt is raised here, where nothing of this step has happened
        # or a failure before the next plan would rewind the step before
        self.scheduler.plan = Schedule()
        try:
            while True:
                self._submit_plans()
                if self.runner.is_idle:
                    return None
                result = self.runner.collect()
                if result is not None:
                    return result
        except BaseException:
            self._rewind()
            raise

    def _submit_plans(self) -> None:
        while self.runner.has_room:
            self.runner.prepare()
            plan = self._schedule()
            if not plan.chunks:
                return
            if not self.runner.submit(plan):
                self.scheduler.rewind(plan)
                return

    def _schedule(self) -> Schedule:
        """Return the scheduler's next plan, with its block copies done."""
        self.scheduler.plan = Schedule()
        try:
            plan = self.scheduler.schedule()
            self.cache.copy_blocks(plan.copies)
        except BaseException:
            if self._new_table is not BlockTable:
                # a reader's table may have copied a block on write, and nobody knows which
                self._abort_everything()
            raise
        plan.copies = []
        return plan

    def _rewind(self) -> None:
        """Take back the step that failed, and those that run ahead of the host.

        If a reader's classes cannot do that, no table can be trusted: every request is aborted. The
        error of the step is the one that the caller sees.
        """
        plans = [self.scheduler.plan, *self.runner.abandon()]
        try:
            for plan in plans:
                self.scheduler.rewind(plan)
        except BaseException:
            self._abort_everything()
            if isinstance(self.prefix_cache, PrefixCache):
                self.prefix_cache.clear()

    def _update(self, result: StepResult, began: float) -> list[Completion]:
        """Add what was computed to the requests; return their completions."""
        self.plan = result.plan
        self.drafts = result.drafts
        request_ids = list(dict.fromkeys(chunk.request.request_id for chunk in result.plan.chunks))
        try:
            self.stats.blocks_peak = max(self.stats.blocks_peak, self._used())
            self._remember(result.plan)
            new_tokens = self._take_tokens(result)
            completions = [self._states[request_id].completion for request_id in request_ids]
        except BaseException:
            self._abort_all(request_ids)
            raise
        try:
            self._retire_finished(completions)
            self.stats.record(result, new_tokens, time.perf_counter() - began)
            self.stats.cached_tokens = self.scheduler.cached_tokens
            self.stats.blocks_used = self._used()
        except BaseException:
            self._keep(self._unseen + completions)
            raise
        self._stepping = False  # a callback may abort requests at once
        self._call_back()
        return completions

    def _take_tokens(self, result: StepResult) -> int:
        """Add the sampled tokens to their sequences, and return how many they are."""
        now = time.perf_counter()
        # All forks first: a sequence that ends with its first token frees the blocks its siblings
        # start from.
        sequences = []
        for sampled in result.sampled:
            state = self._states[sampled.request.request_id]
            sequences.append(state.fork(sampled.sequence) if sampled.nth else sampled.sequence)
        new_tokens = 0
        for sequence, sampled in zip(sequences, result.sampled, strict=True):
            new_tokens += self._states[sampled.request.request_id].extend(sequence, sampled, now)
        for request, logprobs in result.beam_rows:
            new_tokens += self._states[request.request_id].search(logprobs, now)
        return new_tokens

    def _remember(self, plan: Schedule) -> None:
        """Let the prefix cache keep the blocks that this step filled, and exchange those that it
        has already.
        """
        if self.prefix_cache is None:
            return
        size = self.pool.block_size
        for request, sequence, start, stop in plan.chunks:
            fills_a_block = stop // size > start // size
            if (
                fills_a_block and sequence.table.num_tokens >= stop
            ):  # a draft may have been rejected
                self.prefix_cache.insert(
                    sequence.table, sequence.token_ids[:stop], salt=request.salt
                )

    def _retire_finished(self, completions: Iterable[Completion]) -> None:
        with ExitStack() as stack:  # all of them, even if a reader's scheduler raises at the first
            for completion in completions:
                if completion.finished:
                    stack.callback(self._retire, self._pop(completion.request_id).request)

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            call_back("the step", callback)

    def _keep(self, completions: Iterable[Completion]) -> None:
        """For the next `step` to return: those that have finished, but for the ones that others
        wait for.
        """
        self._unseen = [c for c in completions if c.finished and c.request_id not in self._owned]

    def _used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    # ------------------------------------------------------------------ requests come and go

    def _enqueue(
        self, ids: list[int], params: SamplingParams, *, stream: bool, salt: str | None
    ) -> int:
        """Queue a prompt's token ids and return the request id.

        `ValueError`, with nothing queued, if it never fits.
        """
        request_id = next(self._ids)
        max_tokens = min(params.max_tokens, self.model.max_length - len(ids))
        seed = request_seed(self.seed, request_id) if params.seed is None else params.seed
        first = Sequence(f"r{request_id}", self._new_table(self.pool), ids, seed, len(ids))
        request = Request(request_id, [first], params.num_sequences, max_tokens, salt)
        completion = Completion(request_id, ids[:], [], time.perf_counter())
        state = RequestState(request, params, completion, self.model)
        state.show(first, stream)
        if not self._states and not self._trusts_classes:
            self._recovery.note_outside()
        try:
            self.scheduler.add(request)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self._retire(request)
            raise
        self._states[request_id] = state
        self.params[request_id] = params
        if len(self._states) == 1:
            self.stats = Stats(self.stats.num_blocks, self.stats.bytes_per_block)
            self.scheduler.cached_tokens = 0
        return request_id

    def abort(self, request_id: int) -> None:
        """Stop a request wherever it is and free its blocks. Unknown and finished ids are ignored.

        While a step runs, from a subscriber of the pool for one, the request is aborted at the end
        of the step.
        """
        with deferred_interrupts():
            if self._stepping:
                self._to_abort.append(request_id)
            else:
                self._abort_now(request_id)

    @property
    def num_unfinished(self) -> int:
        """Requests that have been added and are not finished."""
        return len(self._states)

    def _pop(self, request_id: int) -> RequestState:
        del self.params[request_id]
        return self._states.pop(request_id)

    def _abort_now(self, request_id: int) -> None:
        if request_id not in self._states:
            return
        request = self._pop(request_id).request
        for sequence in request.unfinished:
            sequence.finish_reason = "abort"
        self._retire(request)
        self.stats.blocks_used = self._used()

    def _abort_all(self, request_ids: Iterable[int]) -> None:
        """Abort these requests, all of them, even if a reader's class raises at the first."""
        with ExitStack() as stack:
            for request_id in request_ids:
                stack.callback(self._abort_now, request_id)

    def _abort_everything(self) -> None:
        with suppress(Exception):  # the first error is the one to report
            self._abort_all(list(self._states))

    def _abort_abandoned(self) -> None:
        """Abort the requests whose streams are gone, and those that were aborted while a step
        ran.
        """
        while self._abandoned:
            reference = self._abandoned.popleft()
            self._streams.discard(reference)
            self._to_abort.append(reference.request_id)
        while self._to_abort:
            request_id = self._to_abort.pop()
            self._owned.discard(request_id)
            self._abort_now(request_id)

    def _retire(self, request: Request) -> None:
        """Take a request out of the scheduler and free its blocks, even if the scheduler raises."""
        try:
            self.scheduler.remove(request)
        except BaseException:
            for queue in (self.scheduler.running, self.scheduler.waiting, self.scheduler.swapped):
                if request in queue:
                    queue.remove(request)
            for sequence in request.sequences:
                self._recovery.empty(sequence)
            self._recover()
            raise

    def _recover(self) -> None:
        """After a reader's class has failed: release what nobody holds, and abort requests whose
        tables are wrong.
        """
        requests = [state.request for state in self._states.values()]
        broken = self._recovery.balance(
            sequence for request in requests for sequence in request.sequences
        )
        for request in requests:
            if not {*broken}.isdisjoint(request.sequences):
                self._abort_now(request.request_id)

    # ------------------------------------------------------------------ for those who watch

    def on_step(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every step from now on; the function returned stops it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def sequences(self) -> list[Sequence]:
        """The sequences that hold blocks now, with `name`, `table` and `token_ids`."""
        return [s for r in self.scheduler.running for s in r.sequences if s.table.block_ids]

    def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens, without special ones."""
        return self.model.decode(token_ids)
