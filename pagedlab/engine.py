"""The engine: in each step it schedules, runs the model, samples tokens and updates the requests.

    request -> scheduler (blocks, copies) -> runner (batch, forward pass, sampler) -> request

A step runs one forward pass over a ragged batch. Whole prompts, parts of prompts and single new
tokens follow each other in one row, without padding. No loop over requests surrounds the model.

A step that fails or is interrupted drops every request, and the next call starts clean. So only a
step changes the pool, the tables and the scheduler. What `add` and `abort` change waits until it
ends.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from pagedlab.adapters import Parts
from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.outputs import Completion
from pagedlab.request_state import RequestState
from pagedlab.runner import Runner, StepResult, call_back
from pagedlab.sampling_params import SamplingParams, request_seed
from pagedlab.scheduler import Schedule
from pagedlab.sequence import Request, Sequence
from pagedlab.stats import Stats
from pagedlab.validation import a_function, integer, token_id_list


class Engine:
    """Takes requests and returns tokens, one step at a time.

    Args:
        model: the model; it also encodes prompts and decodes tokens.
        cache: the KV cache.
        new_parts: makes a pool, whose block ids index the KV cache, a prefix cache and a scheduler.
        new_table: the class of the block tables.
        seed: the engine's seed. A request without a seed gets one that is derived from it.
    """

    runner: Runner

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        new_parts: Callable[[], Parts],
        new_table: type[BlockTable],
        seed: int,
    ) -> None:
        self.model = model
        self.cache = cache
        self.new_table = new_table
        self.seed = seed
        self.pool, self.prefix_cache, self.scheduler = new_parts()
        self.stats = Stats(self.pool.num_blocks, cache.bytes_per_block)
        self.plan = Schedule()  # the plan of the latest step
        self.drafts: list[Any] = []  # the drafts that the latest step checked
        self.params: dict[int, SamplingParams] = {}  # of each unfinished request, by request id
        self._new_parts = new_parts
        self._ids = itertools.count()
        self._inbox = deque[Callable[[], None]]()  # what is called when no step runs
        self._states: dict[int, RequestState] = {}  # of each request that was started, by its id
        self._callbacks: list[Callable[[], None]] = []
        self._dropped: list[Completion] = []  # by a reset; the next step returns them
        self._is_torn = False  # whether a `whole` block began and did not end, or runs now
        self._is_inside = False  # whether one runs now
        self._block = object()  # the one that began last

    # ------------------------------------------------------------------ a step

    def step(self) -> list[Completion]:
        """Run one step and return the completions of the requests that it computed.

        `Completion.finished` tells which of them are done. If the step fails, or Ctrl-C interrupts
        it, the next call drops all requests: their outputs end with the reason "error", and the
        next step returns them, too.
        """
        began = time.perf_counter()
        with self.whole():
            result = self._compute()
            completions = self._update(result, began) if result else []
        if self._inbox:
            self.catch_up()
        if result:
            self._call_back()
        dropped, self._dropped = self._dropped, []
        return dropped + completions

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within this block, pool, tables and scheduler may change.

        What was to be called `soon` is called first. If the block fails or is interrupted, the next
        one begins with new parts and no requests.

        Raises:
            RuntimeError: If another such block ran inside this one.
        """
        self._is_inside = True
        block = self._block = object()
        try:
            if self._is_torn:
                self._renew()
            self._is_torn = True
            while self._inbox:
                self._inbox.popleft()()
            yield
            if self._block is not block:
                raise RuntimeError("a step is running: call step, generate and score between steps")
            self.stats.blocks_used = self._num_used()
            self._is_torn = False
        finally:
            self._is_torn = self._is_torn or self._block is not block
            self._is_inside = False

    def catch_up(self) -> None:
        """Do what waits for the end of a step: a reset after a failure, and calls of `soon`."""
        with self.whole():
            pass

    def reset(self) -> None:
        """Drop all requests and all cached blocks. Outputs that are open end with "error"."""
        self.soon(self._renew)

    def _renew(self) -> None:
        """Plan with new parts, in which nothing is left of a step that failed.

        The KV cache needs nothing: no table names its blocks any more. Subscribers of the pool get
        the events of the new one.
        """
        pool, self.prefix_cache, self.scheduler = self._new_parts()
        if isinstance(pool, BlockPool) and isinstance(self.pool, BlockPool):
            pool.callbacks, self.pool.callbacks = self.pool.callbacks, []
        self.pool = pool
        self.runner.reset(self.scheduler)
        for state in self._states.values():
            state.drop(partial(self.new_table, pool))
            self._dropped.append(state.completion)
        self._states.clear()
        self.params.clear()

    def soon(self, function: Callable[[], None]) -> None:
        """Call a function that changes pool, tables or scheduler: at once, or when the step ends.

        The garbage collector may end a stream at any line. So this may be called at any line.
        """
        self._inbox.append(function)
        if not self._is_inside:
            self.catch_up()

    def _compute(self) -> StepResult | None:
        """Schedule, run the forward pass and sample.

        Returns:
            The result of the oldest step that the runner has; None if there is nothing to do.
        """
        while True:  # again only if all sequences of the oldest step have ended meanwhile
            self._submit_plans()
            if self.runner.is_idle:
                self._check_idle()
                return None
            result = self.runner.collect()
            if result is not None:
                return result

    def _check_idle(self) -> None:
        """Raise `RuntimeError` if there are requests for which the scheduler planned nothing."""
        if self._states:
            name = type(self.scheduler).__name__
            raise RuntimeError(
                f"{name}.schedule planned nothing, and {len(self._states)} requests are unfinished"
            )

    def _submit_plans(self) -> None:
        """Schedule steps and submit them to the runner while it has room.

        An `EagerRunner` has room for one step. A runner that runs ahead has room for more.
        """
        while self.runner.has_room:
            self.runner.prepare()
            plan = self.scheduler.schedule()
            self.cache.copy_blocks(plan.copies)
            if not plan.chunks:
                return
            self.runner.submit(plan)

    def _update(self, result: StepResult, began: float) -> list[Completion]:
        """Add the sampled tokens to their requests, retire finished ones, return completions.

        Args:
            result: the result of the step.
            began: when the step began, in seconds.
        """
        self.plan = result.plan
        self.drafts = result.drafts
        self.stats.blocks_peak = max(self.stats.blocks_peak, self._num_used())
        self._register_blocks(result.plan)
        new_tokens = self._add_tokens(result)
        request_ids = dict.fromkeys(chunk.request.request_id for chunk in result.plan.chunks)
        completions = [self._states[request_id].completion for request_id in request_ids]
        for completion in completions:
            if completion.finished:
                self._retire(completion.request_id)
        self.stats.record(result, new_tokens, time.perf_counter() - began)
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
            # It has fewer if a draft was rejected in the step.
            is_computed = sequence.table.num_tokens >= stop
            if fills_a_block and is_computed:
                computed = sequence.token_ids[:stop]
                self.prefix_cache.insert(sequence.table, computed, salt=request.salt)

    def _forget(self, table: BlockTable) -> None:
        """Have the prefix cache forget the blocks of a sequence whose logits are not finite.

        Their KV need not be finite either: attention multiplies what a token does not see by 0, and
        0 * NaN is NaN. So all tokens that were computed together may be affected.
        """
        if self.prefix_cache is not None and isinstance(self.pool, BlockPool):
            for block_id in table.block_ids:
                self.pool.forget(block_id)

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
        return new_tokens

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            call_back("the step", callback)

    def _num_used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    # ------------------------------------------------------------------ requests

    def _new_request(
        self, ids: list[int], params: SamplingParams, *, stream: bool, salt: str | None
    ) -> RequestState:
        """Return a request for a prompt. It is not queued yet.

        Args:
            ids: the token ids of the prompt.
            params: how to continue it.
            stream: whether its output yields the text in pieces.
            salt: the salt of its cached blocks; None for the cache's own.

        Raises:
            ValueError: If the pool is too small for it.
        """
        request_id = next(self._ids)
        max_tokens = min(params.max_tokens, self.model.max_length - len(ids))
        seed = request_seed(self.seed, request_id) if params.seed is None else params.seed
        first = Sequence(f"r{request_id}", self.new_table(self.pool), ids, seed, len(ids))
        request = Request(request_id, [first], params.n, max_tokens, salt)
        completion = Completion(request_id, ids[:], [], time.perf_counter())
        state = RequestState(request, params, completion, self.model, self._forget)
        state.add_output(first, stream)
        self.scheduler.check(request)
        return state

    def abort(self, request_id: int) -> None:
        """Abort a request and free its blocks. Nothing happens if the id is unknown or finished.

        During a step, for instance in a subscriber of the pool, the request is aborted when the
        step ends.

        Raises:
            ValueError: If the id is no whole number.
        """
        self.soon(partial(self._end, integer("request_id", request_id)))

    @property
    def num_unfinished(self) -> int:
        """Requests that were added and are not finished."""
        return len(self._states)

    def _start(self, state: RequestState) -> None:
        """Queue a request."""
        request = state.request
        if not self._states:
            self.stats = Stats(self.stats.num_blocks, self.stats.bytes_per_block)
        self._states[request.request_id] = state
        self.params[request.request_id] = state.params
        # A reset may have made another pool since.
        request.sequences[0].table = self.new_table(self.pool)
        self.scheduler.add(request)

    def _end(self, request_id: int) -> None:
        """Abort a request, if it is not finished."""
        if request_id in self._states:
            self._states[request_id].end("abort")
            self._retire(request_id)

    def _retire(self, request_id: int) -> None:
        """Remove a request from the scheduler, which frees its blocks."""
        self.scheduler.remove(self._states[request_id].request)
        del self._states[request_id]
        del self.params[request_id]

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
