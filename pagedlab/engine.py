"""The engine: in each step it schedules, runs the model, samples, and updates the sequences.

    sequences -> scheduler (blocks, copies) -> runner (batch, forward pass, sampling) -> sequences

A step runs one forward pass over a ragged batch. Whole prompts, parts of prompts and single new
tokens follow each other in one row, without padding. No loop over requests surrounds the model.

A step that fails or is interrupted drops every request, and the next call starts clean. So only a
step changes the pool, the tables and the scheduler. What `add` and `abort` change waits until it
ends.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedlab.arguments import (
    a_function,
    integer,
    optional_integer,
    subclass,
    token_id_list,
    valid_text,
)
from pagedlab.attention import PagedAttention, fastest_backend, get_backend
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockPool, BlockTable, OutOfBlocks, Pool, blocks_for
from pagedlab.callbacks import Callbacks
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model, is_one_prompt, load_model
from pagedlab.outputs import WAS_RESET, Completion, NewTokens, Output, new_output
from pagedlab.prefix import PrefixCache
from pagedlab.sampling import Sampler, sample_chunks, sample_rows
from pagedlab.sampling_params import SamplingParams, one_each, request_seed
from pagedlab.scheduler import Chunk, Plan, Scheduler, Sequence
from pagedlab.stats import Stats

BATCH_TOKENS = {"cuda": 16_384, "cpu": 4_096}  # of a step, at most
CPU_KV_BYTES = 1 << 30  # default size on a CPU; blocks that are never used take no memory
GPU_MEMORY = 0.9  # share of a GPU's free memory for the blocks and the work of a step

Prompt = str | list[int] | list[dict[str, str]]
Sampling = SamplingParams | list[SamplingParams] | None
Forward = Callable[..., Tensor]


class EagerRunner:
    """Runs the plans of an engine, one at a time: `submit` notes a plan, `collect` computes it.

    A faster one may take several plans before one is collected. It computes them in their order.

    Args:
        llm: the engine, with its model, KV cache and attention function.
    """

    def __init__(self, llm: LLM) -> None:
        # The engine owns its runner. In a circle of both, its memory would stay after its last use.
        self.llm: LLM = weakref.proxy(llm)
        self.plan: Plan | None = None

    @property
    def has_room(self) -> bool:
        """Whether another plan may be made and submitted now."""
        return self.plan is None

    def submit(self, plan: Plan) -> None:
        """Accept a plan. Its block copies have been made."""
        self.plan = plan

    def collect(self) -> tuple[Plan, dict[Sequence, NewTokens]] | None:
        """Return the oldest plan and its new tokens; None if there is no plan."""
        plan, self.plan = self.plan, None
        if plan is None:
            return None
        return plan, self.llm.sample(plan, self.compute(plan))

    def compute(self, plan: Plan) -> Tensor:
        """Run the forward pass and return the rows of logits [R, V] that the chunks need."""
        llm = self.llm
        batch = build_batch(plan.chunks, llm.model.device)
        return llm.forward(batch, llm.cache, llm.attend)

    def reset(self) -> None:
        """Forget all plans that were submitted."""
        self.plan = None


class LLM:
    """A language model with a paged KV cache.

    `generate` returns whole answers, and `stream` yields the pieces of one. `add` queues a request,
    `step` computes for all, `abort` ends one, and `reset` ends all. The other methods watch the
    engine, or are for classes that change it.

    Args:
        model: a hub id, a folder, a .gguf file, or a `Model`. None for the model in
            PAGEDLAB_MODEL, else the real Qwen if it was downloaded, else the tiny model.
        device: "auto", "cpu", "cuda" or for instance "cuda:1". "auto" is the GPU if there is one.
        dtype: "auto", "float32", "float16", "bfloat16" or "float64". "auto" is bfloat16 on a GPU
            and float32 on a CPU.
        block_size: tokens per block.
        num_blocks: blocks of the pool; None for as many as the memory holds.
        max_batch_tokens: tokens per step, at most; None for 16,384 on a GPU and 4,096 on a CPU.
        max_sequences: running sequences, at most.
        prefix_caching: keep the blocks of finished requests as long as they are not needed. A new
            prompt that begins alike shares them. Or a subclass of `PrefixCache`.
        attention_backend: the name of a backend, or a function like `paged_attention`.
        block_pool: a subclass of `Pool` or `BlockPool`.
        block_table: a subclass of `BlockTable`.
        scheduler: a subclass of `Scheduler`.
        runner: a class with the methods of `EagerRunner`, or a function that makes one for an
            engine.
        seed: the engine's seed. A request without a seed gets one that is derived from it.
        verbose: print which model runs on which device, and why.

    Attributes:
        model: the `Model`; `model.tokenizer` is its tokenizer.
        block_size, num_blocks, max_batch_tokens, max_sequences, seed: as above, with values for
            what was None.
        cache: the `KVCache`.
        pool: the block pool.
        new_table: the class of the block tables.
        prefix_cache: the `PrefixCache`; None if prefix caching is off.
        scheduler: the scheduler, with its queues `waiting` and `running`.
        runner: runs the steps that the scheduler has planned.
        forward: the forward pass; set another to replace it.
        attend: the attention function; set another to replace it.
        sample_rows: samples a token from each row of logits; set another to replace it.
        stats: the `Stats` since the engine was idle: blocks, tokens and seconds.
        plan: what the latest step computed.
        num_unfinished: requests that were added and are not finished.

    Raises:
        ValueError: If an argument is out of range, or names something that does not exist.

    Examples:
        >>> from pagedlab import LLM, SamplingParams
        >>> llm = LLM(verbose=False)
        >>> [completion] = llm.generate("The old mill", SamplingParams(max_tokens=4))
        >>> len(completion.outputs[0].token_ids)
        4
        >>> pieces = llm.stream("The old mill", SamplingParams(max_tokens=4))
        >>> "".join(pieces) == completion.outputs[0].text
        True
    """

    new_sequence: Callable[..., Sequence] = Sequence
    new_stats: Callable[[int, int], Any] = Stats

    def __init__(  # noqa: PLR0913 - the options of the one class that users make
        self,
        model: Any = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        max_batch_tokens: int | None = None,
        max_sequences: int = 256,
        prefix_caching: bool | type[Any] = True,
        attention_backend: str | PagedAttention = "auto",
        block_pool: type[Any] = BlockPool,
        block_table: type[Any] = BlockTable,
        scheduler: type[Any] = Scheduler,
        runner: Callable[[LLM], EagerRunner] = EagerRunner,
        seed: int = 0,
        verbose: bool = True,
    ) -> None:
        self.attend = get_backend(attention_backend)
        self.block_size = integer("block_size", block_size, 1)
        num_blocks = optional_integer("num_blocks", num_blocks, 1)
        max_batch_tokens = optional_integer("max_batch_tokens", max_batch_tokens, 1)
        self.max_sequences = integer("max_sequences", max_sequences, 1)
        self.seed = integer("seed", seed)
        self._new_pool = subclass("block_pool", block_pool, Pool)
        self.new_table = subclass("block_table", block_table, BlockTable)
        self._new_scheduler = subclass("scheduler", scheduler, Scheduler)
        if prefix_caching is True:
            prefix_caching = PrefixCache
        if prefix_caching is not False:
            subclass("prefix_caching, if it is not True or False,", prefix_caching, PrefixCache)
        self._new_prefix_cache = prefix_caching
        a_function("runner", runner, "that makes a runner for an engine")

        self.model = self.open_model(model, device, dtype, verbose)
        if attention_backend == "auto":
            self.attend = fastest_backend(self.model.device, verbose)
        self.forward: Forward = self.model.forward
        self.sample_rows: Sampler = sample_rows
        self.max_batch_tokens = max_batch_tokens or BATCH_TOKENS[self.model.device.type]
        self.num_blocks = num_blocks or self.blocks_that_fit()
        self.cache: KVCache = self.model.kv_cache(self.num_blocks, self.block_size)
        self.stats: Any = self.new_stats(self.num_blocks, self.cache.bytes_per_block)
        self.plan = Plan()
        self._end_tokens = self.model.eos_token_ids
        self._ids = itertools.count()
        self._inbox = deque[Callable[[], None]]()  # what is called when no step runs
        self._completions: dict[int, Completion] = {}  # of unfinished requests, by request id
        self._outputs: dict[Sequence, Output] = {}  # of unfinished sequences
        self._step_callbacks = Callbacks()
        self._forward_callbacks = Callbacks()
        self._dropped: list[Completion] = []  # by a reset; the next step returns them
        self._pool_callbacks = Callbacks()  # every pool of this engine calls them
        self._is_torn = False  # whether a `with whole()` began, and did not reach its end
        self._inside: object | None = None  # stands for the `with whole()` that runs now
        self._make_parts()
        self.runner = runner(self)

    # ------------------------------------------------------------------ parts

    def open_model(self, model: Any, device: str, dtype: str | torch.dtype, verbose: bool) -> Model:
        """Load the model, unless it is loaded already."""
        if isinstance(model, Model):
            if (device, dtype) != ("auto", "auto"):
                raise ValueError("the model is loaded already: leave device and dtype at 'auto'")
            return model
        return load_model(model, device, dtype, verbose)

    def blocks_that_fit(self) -> int:
        """How many blocks the memory holds, but no more than the sequences can fill.

        Raises:
            ValueError: If the work of a step leaves no room for a block.
        """
        smallest = self.model.kv_cache(1, self.block_size)
        bytes_per_block = smallest.bytes_per_block + self.further_bytes_per_block()
        fit = self.bytes_for_blocks() // bytes_per_block
        if fit < 1:
            raise ValueError(
                f"a step of {self.max_batch_tokens:,} tokens leaves no memory for a block: lower "
                "max_batch_tokens or give num_blocks"
            )
        return min(fit, self.max_sequences * blocks_for(self.model.max_length, self.block_size))

    def bytes_for_blocks(self) -> int:
        """How many bytes the blocks may take: on a GPU, what a step leaves of its free memory."""
        device = self.model.device
        if device.type != "cuda":
            return CPU_KV_BYTES
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + held
        work = self.model.working_bytes(self.max_batch_tokens, self.max_sequences)
        return int(GPU_MEMORY * free) - work

    def further_bytes_per_block(self) -> int:
        """Bytes that a subclass needs for each block, beside the KV cache."""
        return 0

    def _make_parts(self) -> None:
        """Make what the engine plans with: a pool, a prefix cache and a scheduler."""
        self.pool = self._new_pool(self.num_blocks, self.block_size)
        self.pool.callbacks = self._pool_callbacks
        self.prefix_cache = None
        if self._new_prefix_cache and self.pool.can_cache:
            self.prefix_cache = self._new_prefix_cache(self.pool, self.new_table)
        self.scheduler = self.make_scheduler()

    def make_scheduler(self) -> Any:
        """Make a scheduler over the pool."""
        limits = self.max_batch_tokens, self.max_sequences
        return self._new_scheduler(self.pool, *limits, self.prefix_cache)

    # ------------------------------------------------------------------ a step

    def step(self) -> list[Completion]:
        """Run one step and return the completions of the requests that it computed.

        `Completion.finished` tells which of them are done. If the step fails, or Ctrl-C interrupts
        it, the next call drops all requests: their outputs end with the reason "error", and the
        next step returns them, too.
        """
        completions = self._step()
        dropped, self._dropped = self._dropped, []
        return dropped + completions

    def _step(self) -> list[Completion]:
        """Run one step, as `generate` and `stream` do. Who calls `step` hears what was dropped."""
        began = time.perf_counter()
        with self.whole():
            completions = self.advance()
        self.stats.seconds += time.perf_counter() - began
        if self._inbox:
            self.catch_up()
        if completions:
            self._step_callbacks.call()
        return completions

    def advance(self) -> list[Completion]:
        """Plan, compute and sample, and return the completions of the requests that it computed.

        Raises:
            OutOfBlocks: If there are requests, and none of them can go on.
        """
        self._submit_plans()
        result = self.runner.collect()
        if result is not None:
            return self.update(*result)
        if self._outputs:
            raise OutOfBlocks(
                f"no request can go on, with {self.pool.num_free} of {self.num_blocks} blocks "
                "free: release the blocks that are held outside the engine, or correct a policy "
                "that admits no request"
            )
        return []

    def _submit_plans(self) -> None:
        """Plan steps and submit them while the runner has room. An `EagerRunner` takes one."""
        while self.runner.has_room:
            plan = self.make_plan()
            for operation in plan.operations:
                operation(self.cache)
            self.cache.copy_blocks(plan.copies)
            if not plan.chunks:
                return
            self.runner.submit(plan)

    def make_plan(self) -> Plan:
        """Plan the next step."""
        return self.scheduler.schedule()

    def sample(self, plan: Plan, logits: Tensor) -> dict[Sequence, NewTokens]:
        """Sample the next tokens of a step from its rows of logits [R, V]."""
        self._forward_callbacks.call(plan, logits)
        return sample_chunks(logits, plan.chunks, self.sample_rows)

    def update(self, plan: Plan, sampled: dict[Sequence, NewTokens]) -> list[Completion]:
        """Give the sequences of a step their tokens, and return the completions of its requests."""
        self.plan = plan
        self.stats.blocks_peak = max(self.stats.blocks_peak, self.pool.num_used)
        request_ids = dict.fromkeys(chunk.sequence.request_id for chunk in plan.chunks)
        completions = [self._completions[request_id] for request_id in request_ids]
        # All forks come first. A sequence that ends with its first token frees its blocks, and its
        # forks share these blocks.
        for sequence in sampled:
            if sequence.forks:
                self.scheduler.fork(sequence)
        now = time.perf_counter()
        new_tokens = sum(self._extend(sequence, new, now) for sequence, new in sampled.items())
        self.stats.record(plan, new_tokens)
        return completions

    def _extend(self, sequence: Sequence, new: NewTokens, now: float) -> int:
        """Add new tokens to a sequence up to one that ends it. Return how many were added."""
        output = self._outputs[sequence]
        ends = frozenset[int]() if sequence.params.ignore_eos else self._end_tokens
        count = output.extend(new, ends, sequence.max_tokens)
        sequence.token_ids += new.token_ids[:count]
        # The samples of a prompt share one list: the first to reach a token notes its time.
        times = self._completions[sequence.request_id].times
        times += [now] * (sequence.num_outputs - len(times))
        if output.finish_reason is not None:
            self._finish(sequence, output.finish_reason)
        return count

    def _finish(self, sequence: Sequence, reason: str) -> None:
        """End a sequence and its output, and free its blocks."""
        output = self._outputs.pop(sequence)
        sequence.finish_reason = output.finish_reason = reason
        if reason == "error":
            # Its KV may be NaN too. No other may share it: 0 * NaN is NaN, even where a token that
            # is not seen has weight 0.
            for block_id in sequence.table.block_ids:
                self.pool.forget(block_id)
        else:
            # The KV of the last token is never computed.
            num_computed = min(sequence.table.num_tokens, len(sequence.token_ids) - 1)
            self.scheduler.register(Chunk(sequence, 0, num_computed))
        self.scheduler.remove(sequence)
        if self._completions[sequence.request_id].finished:
            del self._completions[sequence.request_id]

    # ------------------------------------------------------------------ what waits for a step's end

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within `with whole()`, pool, tables and scheduler may change.

        What was to be called `soon` is called first. The engine counts as torn until the end is
        reached. So after an error or Ctrl-C, the next `with whole()` begins with new parts and no
        requests.

        Raises:
            RuntimeError: If another one ran inside this one.
        """
        this = self._inside = object()
        try:
            if self._is_torn:
                self._renew()
            self._is_torn = True
            while self._inbox:
                self._inbox.popleft()()
            yield
            self._is_torn = False
        finally:
            inside, self._inside = self._inside, None
            if inside is not this:
                self._is_torn = True
                raise RuntimeError("a step is running: call step, generate and score between steps")

    def catch_up(self) -> None:
        """Do what waits for the end of a step: a reset after a failure, and calls of `soon`."""
        with self.whole():
            pass

    def soon(self, function: Callable[[], None]) -> None:
        """Call a function that changes pool, tables or scheduler: at once, or when the step ends.

        The garbage collector may end a stream at any line. So this may be called at any line.
        """
        self._inbox.append(function)
        if self._inside is None:
            self.catch_up()

    def reset(self) -> None:
        """Drop all requests and all cached blocks. Outputs that are open end with "error"."""
        self.soon(self._renew)

    def _renew(self) -> None:
        """Plan with new parts, in which nothing is left of a step that failed.

        The KV cache needs nothing: no table names its blocks any more. Subscribers of the pool get
        the events of the new one.
        """
        self._make_parts()
        self.runner.reset()
        for sequence, output in self._outputs.items():
            sequence.table = self.new_table(self.pool)
            sequence.finish_reason = output.finish_reason = "error"
            output.error = WAS_RESET
        self._dropped += self._completions.values()
        self._outputs.clear()
        self._completions.clear()

    # ------------------------------------------------------------------ requests

    def add(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        salt: str | None = None,
    ) -> int:
        """Queue a prompt and return its request id. `step` computes it, `abort` ends it.

        Args:
            prompt: a text, a list of token ids, or a list of chat messages.
            sampling: the parameters.
            salt: as in `generate`.

        Raises:
            ValueError: If the prompt cannot be served. Nothing is queued then.
        """
        sequences, completion = self._new_request(prompt, one_each(sampling, 1)[0], salt)
        self.soon(partial(self._start, sequences, completion))
        return completion.request_id

    def abort(self, request_id: int) -> None:
        """Abort a request and free its blocks. Nothing happens if the id is unknown or finished.

        During a step, for instance in a subscriber of the pool, the request is aborted when the
        step ends.

        Raises:
            ValueError: If the id is no whole number.
        """
        self.soon(partial(self._abort, integer("request_id", request_id)))

    def _abort(self, request_id: int) -> None:
        """End the sequences of a request that have not ended yet."""
        for sequence in [each for each in self._outputs if each.request_id == request_id]:
            self._finish(sequence, "abort")

    @property
    def num_unfinished(self) -> int:
        """Requests that were added and are not finished."""
        return len(self._completions)

    def _new_request(
        self, prompt: Any, params: SamplingParams, salt: str | None
    ) -> tuple[list[Sequence], Completion]:
        """Return the sequences of a request, one a sample, and its completion. None is queued yet.

        Raises:
            ValueError: If the prompt cannot be served.
        """
        salt = valid_text("salt", salt)
        ids = self.model.checked_ids(prompt)
        request_id = next(self._ids)
        first = self.new_sequence(
            request_id,
            self.new_table(self.pool),
            ids,
            num_prompt_tokens=len(ids),
            params=params,
            max_tokens=min(params.max_tokens, self.model.max_length - len(ids)),
            seed=request_seed(self.seed, request_id) if params.seed is None else params.seed,
            salt=salt,
        )
        self.scheduler.check(first)
        first.forks = [
            replace(first, token_ids=ids[:], seed=first.seed + nth, nth=nth)
            for nth in range(1, params.n)
        ]
        sequences = [first, *first.forks]
        outputs = [new_output(each, self.model.tokenizer) for each in sequences]
        return sequences, Completion(request_id, ids[:], outputs, time.perf_counter())

    def _start(self, sequences: list[Sequence], completion: Completion) -> None:
        """Give a request to the scheduler. Its first sequence computes the prompt for all."""
        if not self._completions:
            self.stats = self.new_stats(self.num_blocks, self.cache.bytes_per_block)
        self._completions[completion.request_id] = completion
        for sequence, output in zip(sequences, completion.outputs, strict=True):
            self._outputs[sequence] = output
            # A reset may have made another pool since.
            sequence.table = self.new_table(self.pool)
        self.scheduler.add(sequences[0])

    # ------------------------------------------------------------------ texts

    def generate(
        self, prompts: Prompt | list[Prompt], sampling: Sampling = None, *, salt: str | None = None
    ) -> list[Completion]:
        """Continue all prompts in one ragged batch and return their completions, in order.

        Args:
            prompts: a text, a list of token ids, a list of chat messages ({"role": ..., "content":
                ...}), or a list of any of these.
            sampling: parameters for all prompts, or a list with one entry for each prompt.
            salt: prompts share cached blocks only with prompts of the same salt.

        Returns:
            A `Completion` for each prompt. Its `.outputs[0].text` is the new text, without the
            prompt; with n above 1, `.outputs` has an entry for each sequence.

        Raises:
            ValueError: If a prompt cannot be served. The message names the first such prompt, and
                no prompt is queued.

        Examples:
            >>> from pagedlab import LLM, SamplingParams
            >>> llm = LLM(verbose=False)
            >>> params = SamplingParams(max_tokens=3, ignore_eos=True)
            >>> completions = llm.generate(["The old mill", [5, 6, 7]], params)
            >>> [len(completion.outputs[0].token_ids) for completion in completions]
            [3, 3]
        """
        batch: list[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        params = one_each(sampling, len(batch))
        requests = []
        for number, (each, asked) in enumerate(zip(batch, params, strict=True)):
            try:
                requests.append(self._new_request(each, asked, salt))
            except ValueError as error:
                where = f"prompt {number}: " if len(batch) > 1 else ""
                raise ValueError(f"{where}{error}") from None
        completions = [completion for _, completion in requests]
        try:
            for request in requests:
                self.soon(partial(self._start, *request))
            for completion in completions:
                while not completion.finished:
                    self._step()
                _raise_if_dropped(completion)
        finally:
            for completion in completions:
                self.abort(completion.request_id)
        return completions

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, salt: str | None = None
    ) -> Iterator[str]:
        """Yield the new text of one prompt, piece by piece.

        If the loop over it ends early, the request is aborted.

        Args:
            prompt: a text, a list of token ids, or a list of chat messages.
            sampling: the parameters, for one sequence.
            salt: as in `generate`.

        Raises:
            ValueError: If the prompt cannot be served, or if several sequences are requested.
            RuntimeError: If the engine was reset.
            FloatingPointError: If a logit is NaN or inf.
        """
        params = one_each(sampling, 1)[0]
        if params.n > 1:
            raise ValueError(
                "stream yields one text that grows, not several: use generate, or add and step"
            )
        sequences, completion = self._new_request(prompt, params, salt)
        [output] = completion.outputs
        try:
            self.soon(partial(self._start, sequences, completion))
            while not completion.finished:
                self._step()
                if piece := output.take():
                    yield piece
            if rest := output.take():  # steps of others may have finished it
                yield rest
            _raise_if_dropped(completion)
            if output.error:
                raise FloatingPointError(output.error)
        finally:
            self.abort(completion.request_id)

    # ------------------------------------------------------------------ observers

    def on_step(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every step that computes something; the result ends these calls."""
        return self._step_callbacks.subscribe(callback)

    def on_forward(self, callback: Callable[[Plan, Tensor], None]) -> Callable[[], None]:
        """Call `callback` after every forward pass; the function returned stops it.

        It gets the step's plan and the logits [R, V], before tokens are sampled. Steps that run
        ahead of the host have no logits to show, and are left out.
        """
        return self._forward_callbacks.subscribe(callback)

    def sequences(self) -> list[Sequence]:
        """Return the sequences that hold blocks now."""
        return [each for each in self.scheduler.running if each.table.block_ids]

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of these tokens, without special tokens.

        Raises:
            ValueError: If they are no list of the model's token ids.
        """
        last = self.model.vocab_size - 1
        return self.model.decode(token_id_list("token_ids", token_ids, last))

    def __repr__(self) -> str:
        blocks = f"{self.pool.num_blocks} blocks of {self.pool.block_size}"
        return f"LLM({self.model.name}, {blocks}, {self.num_unfinished} requests unfinished)"


def _raise_if_dropped(completion: Completion) -> None:
    """Raise `RuntimeError` if a reset has ended the request."""
    if any(output.error == WAS_RESET for output in completion.outputs):
        raise RuntimeError(WAS_RESET)
