"""The engine: in each step it schedules, runs the model, samples tokens and updates the requests.

    request -> scheduler (blocks, copies) -> runner (batch, forward pass, sampler) -> request

A step runs one forward pass over a ragged batch. Whole prompts, parts of prompts and single new
tokens follow each other in one row, without padding. No loop over requests surrounds the model.

A step that fails or is interrupted is rewound as a whole. An interrupt waits until a call has
finished its bookkeeping.
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
from pagedlab.validation import a_function, integer, token_id_list


class Engine:
    """Takes requests and returns tokens, one step at a time.

    `LLM` sets `runner` after the engine is made, because the runner reads `params`.

    Args:
        model: the model; it also encodes prompts and decodes tokens.
        cache: the KV cache.
        pool: the block pool; its block ids index the KV cache.
        prefix_cache: the prefix cache; None if prefix caching is off.
        scheduler: the scheduler over the pool.
        new_table: the class of the block tables.
        seed: the engine's seed. A request without a seed gets one that is derived from it.
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
        self.plan = Schedule()  # the plan of the latest step
        self.drafts: list[Any] = []  # the drafts that the latest step checked
        self.params: dict[int, SamplingParams] = {}  # of each unfinished request, by request id
        self._new_table = new_table
        self._ids = itertools.count()
        self._states: dict[int, RequestState] = {}  # of each unfinished request, by request id
        self._owned: set[int] = set()  # requests whose completions `generate` or `stream` returns
        self._unreturned: list[Completion] = []  # finished ones that the next `step` returns
        self._callbacks: list[Callable[[], None]] = []
        self._streams: set[StreamReference] = set()
        self._abandoned: deque[StreamReference] = deque()  # the garbage collector appends to it
        self._to_abort: list[int] = []  # requests that were aborted while a step ran
        self._stepping = False
        self._step_began = 0.0  # seconds
        own_classes = {BlockPool, BlockTable, PrefixCache, type(None), Scheduler}
        classes = {type(pool), new_table, type(prefix_cache), type(scheduler)}
        # Our own classes change everything or nothing. A reader's class may fail half way.
        self._trusts_classes = classes <= own_classes
        self._recovery = Recovery(pool, new_table)

    # ------------------------------------------------------------------ a step

    def step(self) -> list[Completion]:
        """Run one step and return the completions of the requests that it computed.

        `Completion.finished` tells which of them are done. Completions of requests from `add` that
        finished during a `generate` or `stream` call are returned as well.

        If scheduling, the forward pass or sampling fails, or Ctrl-C interrupts the forward pass,
        the step is rewound: no token is added, and no table claims KV that was not computed. If
        tokens cannot be added, the requests of the step are aborted. At any other moment Ctrl-C
        waits until the step ends.
        """
        with deferred_interrupts() as deferred:  # Ctrl-C waits until this block ends
            self._begin_step()
            try:
                result = self._compute()
                touched = self._update(result) if result else []
            except BaseException:
                if not self._trusts_classes:
                    self._recover()
                raise
            finally:
                self._end_step()
            completions = self._unreturned + touched
            self._unreturned = []
            deferred.on_interrupt = lambda: self._keep_finished(completions)
            return completions

    def _begin_step(self) -> None:
        self._abort_abandoned()
        self._stepping = True
        self._step_began = time.perf_counter()

    def _end_step(self) -> None:
        self._stepping = False
        self.runner.finish_step()
        self._abort_abandoned()

    def _compute(self) -> StepResult | None:
        """Schedule, run the forward pass and sample. If any of it fails, rewind the step.

        Returns:
            The result of the oldest step that the runner has; None if there is nothing to do.
        """
        with allowed_interrupts():
            pass  # a pending interrupt is raised here: nothing is scheduled yet
        self.scheduler.plan = Schedule()  # a failure must not rewind the step before
        try:
            while True:  # again only if all sequences of the oldest step have ended meanwhile
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
        """Schedule steps and submit them to the runner while it has room.

        An `EagerRunner` has room for one step. A runner that runs ahead has room for more.
        """
        while self.runner.has_room:
            self.runner.prepare()
            plan = self._schedule()
            if not plan.chunks:
                return
            if not self.runner.submit(plan):
                self.scheduler.rewind(plan)
                return

    def _schedule(self) -> Schedule:
        """Return the scheduler's next plan, after its block copies have been executed."""
        self.scheduler.plan = Schedule()
        try:
            plan = self.scheduler.schedule()
            self.cache.copy_blocks(plan.copies)
        except BaseException:
            if self._new_table is not BlockTable:
                # A reader's table may have replaced a shared block without reporting the copy.
                self._abort_everything()
            raise
        plan.copies = []
        return plan

    def _rewind(self) -> None:
        """Rewind the step that failed and all steps that the runner has not finished.

        If a reader's class fails here too, no table can be trusted and every request is aborted.
        The caller sees the error of the step, not this second one.
        """
        plans = [self.scheduler.plan, *self.runner.abandon()]
        try:
            for plan in plans:
                self.scheduler.rewind(plan)
        except BaseException:
            self._abort_everything()
            if isinstance(self.prefix_cache, PrefixCache):
                self.prefix_cache.clear()

    def _update(self, result: StepResult) -> list[Completion]:
        """Add the sampled tokens to their requests, retire finished ones, return completions."""
        self.plan = result.plan
        self.drafts = result.drafts
        request_ids = list(dict.fromkeys(chunk.request.request_id for chunk in result.plan.chunks))
        try:
            self.stats.blocks_peak = max(self.stats.blocks_peak, self._num_used())
            self._register_blocks(result.plan)
            new_tokens = self._add_tokens(result)
            completions = [self._states[request_id].completion for request_id in request_ids]
        except BaseException:
            self._abort_all(request_ids)
            raise
        try:
            self._retire_finished(completions)
            self._record(result, new_tokens)
            self._stepping = False  # a callback may abort requests at once
            self._call_back()
        except BaseException:
            self._keep_finished(self._unreturned + completions)
            raise
        return completions

    def _register_blocks(self, plan: Schedule) -> None:
        """Register the blocks that this step has filled in the prefix cache.

        The scheduler has registered most of them before the step. A block whose contents are cached
        in another block is exchanged for that one here.
        """
        if self.prefix_cache is None:
            return
        size = self.pool.block_size
        for request, sequence, start, stop in plan.chunks:
            fills_a_block = stop // size > start // size
            is_computed = (
                sequence.table.num_tokens >= stop
            )  # not if a draft was rejected in the step
            if fills_a_block and is_computed:
                computed = sequence.token_ids[:stop]
                self.prefix_cache.insert(sequence.table, computed, salt=request.salt)

    def _add_tokens(self, result: StepResult) -> int:
        """Add the sampled tokens to their sequences and return how many were added."""
        now = time.perf_counter()
        # All forks come first. A sequence that ends with its first token frees its blocks, and its
        # forks share these blocks.
        sequences = []
        for sampled in result.sampled:
            state = self._states[sampled.request.request_id]
            sequences.append(state.fork(sampled.sequence) if sampled.nth else sampled.sequence)
        new_tokens = 0
        for sequence, sampled in zip(sequences, result.sampled, strict=True):
            new_tokens += self._states[sampled.request.request_id].extend(sequence, sampled, now)
        for request, logprobs in result.beam_rows:
            new_tokens += self._states[request.request_id].advance_beams(logprobs, now)
        return new_tokens

    def _retire_finished(self, completions: Iterable[Completion]) -> None:
        with ExitStack() as stack:  # retires all, even if a reader's scheduler raises at the first
            for completion in completions:
                if completion.finished:
                    stack.callback(self._retire, self._pop(completion.request_id).request)

    def _record(self, result: StepResult, new_tokens: int) -> None:
        self.stats.record(result, new_tokens, time.perf_counter() - self._step_began)
        self.stats.cached_tokens = self.scheduler.cached_tokens
        self.stats.blocks_used = self._num_used()

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            call_back("the step", callback)

    def _keep_finished(self, completions: Iterable[Completion]) -> None:
        """Keep the finished completions for the next `step` to return.

        Those of `generate` and `stream` are left out, because these calls return them.
        """
        self._unreturned = [
            completion
            for completion in completions
            if completion.finished and completion.request_id not in self._owned
        ]

    def _num_used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    # ------------------------------------------------------------------ requests

    def _enqueue(
        self, ids: list[int], params: SamplingParams, *, stream: bool, salt: str | None
    ) -> int:
        """Queue a prompt and return its request id.

        Args:
            ids: the token ids of the prompt.
            params: how to continue it.
            stream: whether its output yields the text in pieces.
            salt: the salt of its cached blocks; None for the cache's own.

        Raises:
            ValueError: If the pool is too small for it. Nothing is queued then.
        """
        request_id = next(self._ids)
        max_tokens = min(params.max_tokens, self.model.max_length - len(ids))
        seed = request_seed(self.seed, request_id) if params.seed is None else params.seed
        first = Sequence(f"r{request_id}", self._new_table(self.pool), ids, seed, len(ids))
        request = Request(request_id, [first], params.num_sequences, max_tokens, salt)
        completion = Completion(request_id, ids[:], [], time.perf_counter())
        state = RequestState(request, params, completion, self.model)
        state.add_output(first, stream)
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
        """Abort a request and free its blocks. Nothing happens if the id is unknown or finished.

        During a step, for instance in a subscriber of the pool, the request is aborted when the
        step ends.

        Raises:
            ValueError: If the id is no whole number.
        """
        if type(request_id) is not int:
            request_id = integer("request_id", request_id)
        with deferred_interrupts():
            if self._stepping:
                self._to_abort.append(request_id)
            else:
                self._abort_now(request_id)

    @property
    def num_unfinished(self) -> int:
        """Requests that were added and are not finished."""
        return len(self._states)

    def _pop(self, request_id: int) -> RequestState:
        """Remove a request's state and return it."""
        del self.params[request_id]
        return self._states.pop(request_id)

    def _abort_now(self, request_id: int) -> None:
        if request_id not in self._states:
            return
        state = self._pop(request_id)
        state.abort()
        self._retire(state.request)
        self.stats.blocks_used = self._num_used()

    def _abort_all(self, request_ids: Iterable[int]) -> None:
        """Abort all these requests, even if a reader's class raises at the first."""
        with ExitStack() as stack:
            for request_id in request_ids:
                stack.callback(self._abort_now, request_id)

    def _abort_everything(self) -> None:
        with suppress(Exception):  # the first error is the one to report
            self._abort_all(list(self._states))

    def _abort_abandoned(self) -> None:
        """Abort the requests of abandoned streams and those that were aborted during a step."""
        while self._abandoned:
            reference = self._abandoned.popleft()
            self._streams.discard(reference)
            self._to_abort.append(reference.request_id)
        while self._to_abort:
            request_id = self._to_abort.pop()
            self._owned.discard(request_id)
            self._abort_now(request_id)

    def _retire(self, request: Request) -> None:
        """Remove a request from the scheduler and free its blocks, even if the scheduler raises."""
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
        """Restore the pool's counts after a reader's class has failed.

        References that no table holds are released. Requests whose tables are wrong are aborted.
        """
        requests = [state.request for state in self._states.values()]
        sequences = [sequence for request in requests for sequence in request.sequences]
        broken = set(self._recovery.balance(sequences))
        for request in requests:
            if not broken.isdisjoint(request.sequences):
                self._abort_now(request.request_id)

    # ------------------------------------------------------------------ observers

    def on_step(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every step from now on.

        Returns:
            A function that ends these calls. A second call of it does nothing.

        Raises:
            ValueError: If `callback` is no function.
        """
        a_function("callback", callback, "without arguments")
        self._callbacks.append(callback)
        subscription = ExitStack()
        subscription.callback(self._callbacks.remove, callback)
        return subscription.close

    def sequences(self) -> list[Sequence]:
        """Return the sequences that hold blocks now."""
        running = self.scheduler.running
        sequences = [sequence for request in running for sequence in request.sequences]
        return [sequence for sequence in sequences if sequence.table.block_ids]

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of these tokens, without special tokens.

        Raises:
            ValueError: If they are no list of the model's token ids.
        """
        last = self.model.vocab_size - 1
        return self.model.decode(token_id_list("token_ids", token_ids, last))
