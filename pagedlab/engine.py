"""The engine: prompts in, texts out, every key and value in blocks between.

    request -> scheduler (blocks, copies) -> batch (flat tensors) -> model forward -> sampler -> request

A step runs one forward pass over a ragged batch: whole prompts, parts of prompts and single new tokens, one
after the other in one row, with no padding and no loop over requests around the model.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.adapters import check_classes, check_table, make_pool, make_prefix_cache, make_scheduler
from pagedlab.arguments import valid_text, whole
from pagedlab.attention import PagedAttention, fastest_backend, get_backend
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockPool, BlockTable, Pool, blocks_for
from pagedlab.choice import Draw, next_tokens
from pagedlab.interrupts import allowed_interrupts, deferred_interrupts
from pagedlab.model import Model, is_one_prompt, load_model
from pagedlab.outputs import Completion, Job, Stats, Stream, StreamReference
from pagedlab.prefix import PrefixCache
from pagedlab.recovery import Recovery
from pagedlab.sampling import SamplingParams, one_each, request_seed
from pagedlab.scheduler import How, Request, Schedule, Scheduler, Sequence

if TYPE_CHECKING:
    from pagedlab.accelerate.windows import Windows
    from pagedlab.speculative import Drafter, Speculation

MAX_PROMPT_TOKENS = 2_048  # beside others on a GPU: benchmarks/NOTES.md
Prompt = str | list[int] | list[dict[str, str]]
# A step's or window's plan, what `next_tokens` says of it, and whether its blocks are registered.
Computed = tuple[Schedule, list[Draw], list[tuple[Request, torch.Tensor]], bool]


class LLM(AbstractContextManager["LLM"]):
    """A language model whose KV lives in blocks.

    What to run: model is a hub id, folder, .gguf file, or a `Model` already loaded; None for what
    `pagedlab.model.choose_model` says. seed: where requests without a seed take theirs from. tensor_parallel: ranks
    that share the model, ended by `close` or `with`. speculative: who drafts tokens, `PromptLookup(k=4)` or
    `DraftModel(model, k=4)`.

    How much at once: num_blocks, None for what fits. max_batch_tokens: tokens a forward pass, None for 16,384 on a GPU
    and 4,096 on a CPU; max_prompt_tokens: how many of them prompts may take where somebody waits for a next token, and
    in a first step, None for 2,048 on a GPU and no such limit on a CPU. max_sequences: texts at once. prefix_caching:
    keep the blocks of ended texts while there is room, and skip what a new prompt shares with them (off for a pool
    without the verbs for it). preemption: what happens to the KV of a request that gives way when blocks run out,
    "recompute" or "swap".

    Your own: attention_backend takes a name, or a function with `paged_attention`'s parameters; block_pool,
    block_table and scheduler take classes with the verbs of `BlockPool`, `BlockTable` and `Scheduler`; prefix_caching
    one with `PrefixCache`'s match and insert, made over the pool.

    To measure with: cuda_graphs decodes several steps in a row without the host, each one launch; then `step` may
    return several new tokens of a text. fused runs the model's weights in fewer kernels. Both, "auto", are taken where
    they help, see pagedlab/accelerate.
    """

    forward: Callable[..., torch.Tensor]  # `Model.forward`, or a faster one
    windows: Windows | None = None  # who runs several decode steps at once, if anybody does
    speculation: Speculation | None = None  # who proposes tokens, if anybody does

    def __init__(
        self,
        model: Any = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        max_batch_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        max_sequences: int = 256,
        prefix_caching: bool | Callable[[Any], Any] = True,
        preemption: How = "recompute",
        attention_backend: str | PagedAttention = "auto",
        block_pool: type[Any] | None = None,
        block_table: type[BlockTable] = BlockTable,
        scheduler: type[Scheduler] = Scheduler,
        tensor_parallel: int = 1,
        speculative: Drafter | None = None,
        cuda_graphs: bool | Literal["auto"] = "auto",
        fused: bool | Literal["auto"] = "auto",
        seed: int = 0,
        verbose: bool = True,
    ) -> None:
        self.attend = get_backend(attention_backend)
        block_size, max_sequences = whole("block_size", block_size, 1), whole("max_sequences", max_sequences, 1)
        ranks, self.seed = whole("tensor_parallel", tensor_parallel, 1), whole("seed", seed)
        check_classes(block_pool, block_table, prefix_caching, scheduler)
        if ranks > 1:
            from pagedlab.distributed import open_model  # not before: one rank does without all of that folder

            self.model = open_model(model, device, dtype, verbose, ranks, attention_backend)
        else:
            self.model = model if isinstance(model, Model) else load_model(model, device, dtype, verbose)
        if attention_backend == "auto" and self.model.module.dtype != torch.float64:
            self.attend = fastest_backend(self.model.device, verbose)
        cache = self.model.kv_cache(1, block_size)
        if speculative is not None:
            from pagedlab.speculative import Speculation

            self.speculation = Speculation(speculative, self, block_size)
        if num_blocks is None:
            fit = cache.blocks_that_fit()
            fit = self.speculation.share_of(fit, cache.bytes_per_block) if self.speculation else fit
            num_blocks = min(fit, max_sequences * blocks_for(self.model.max_length, block_size))
        self.cache = self.model.kv_cache(num_blocks, block_size)
        self.pool: Pool = make_pool(block_pool, num_blocks, block_size)
        check_table(block_table, self.pool)
        self.prefix_cache = make_prefix_cache(prefix_caching, self.pool, block_table)
        on_gpu = self.model.device.type == "cuda"
        if max_batch_tokens is None:
            max_batch_tokens = 16_384 if on_gpu else 4_096
        limits, how = (max_batch_tokens, max_sequences), dict[str, Any](preemption=preemption, swapper=self.cache)
        if max_prompt_tokens is not None or on_gpu:  # a reader's scheduler need not know it
            how["max_prompt_tokens"] = MAX_PROMPT_TOKENS if max_prompt_tokens is None else max_prompt_tokens
        self.scheduler = make_scheduler(scheduler, self.pool, *limits, self.prefix_cache, **how)
        self.stats = Stats(num_blocks, cache.bytes_per_block)
        self._new_table = block_table
        self._ids = itertools.count()
        self._jobs: dict[int, Job] = {}
        self._owned: set[int] = set()  # requests of a `generate` or `stream`, which hands them out itself
        self._unseen: list[Completion] = []  # finished, and not yet returned by `step`
        self._callbacks: list[Callable[[], None]] = []
        self._streams: set[StreamReference] = set()
        self._abandoned: deque[StreamReference] = deque()  # streams that are gone; the garbage collector appends
        self._to_abort: list[int] = []  # requests that were aborted while a step runs
        self._stepping = False
        ours = (type(self.pool), block_table, type(self.prefix_cache), type(self.scheduler))
        self._trusts_classes = set(ours) <= {BlockPool, BlockTable, PrefixCache, type(None), Scheduler}
        self._recovery = Recovery(self.pool, block_table)
        self.plan = Schedule()  # of the latest step
        self.forward, self._fast = self.model.forward, None
        if find_spec("pagedlab.accelerate"):  # without that folder everything runs as it is
            from pagedlab.accelerate import choose

            self._fast = choose(self, fused=fused, cuda_graphs=cuda_graphs)
            self.forward, self.windows = self._fast

    # ------------------------------------------------------------------ whole texts

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling: SamplingParams | list[SamplingParams] | None = None,
        *,
        salt: str | None = None,
    ) -> list[Completion]:
        """Continue every prompt, all in one ragged batch, and return one completion each, in order.

        A prompt is a text, a list of token ids, or a list of chat messages ({"role": ..., "content": ...}).
        `sampling` is for all of them, or a list with one each. Only prompts with the same salt share cached
        blocks. `ValueError` names the first bad prompt, and then none has been started.
        """
        batch: list[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        params = one_each(sampling, len(batch))
        added: list[Completion] = []
        with deferred_interrupts():  # interrupts come through in the model's forward pass
            try:
                for i, (prompt, p) in enumerate(zip(batch, params, strict=True)):
                    try:
                        added.append(self._own(self.add(prompt, p, salt=salt)))
                        self._jobs[added[-1].request_id].request.read_at_end = True
                    except ValueError as error:
                        raise ValueError(f"prompt {i}: {error}" if len(batch) > 1 else str(error)) from None
                while not all(completion.finished for completion in added):
                    self.step_for_others()
            finally:
                self.drop(added)
        return added

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None, *, salt: str | None = None) -> Stream:
        """Yield the text of one prompt piece by piece. Leaving the loop early aborts the request."""
        params = one_each(sampling, 1)[0]
        if params.num_texts > 1 or params.beam_width:
            raise ValueError("stream yields one text that grows, not several, nor beams: use generate, or add and step")
        with deferred_interrupts():
            stream = Stream(self, self._own(self.add(prompt, params, stream=True, salt=salt)))
            self._streams.add(StreamReference(stream, self._abandoned))
            return stream

    # ------------------------------------------------------------------ step by step

    def add(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, stream: bool = False, salt: str | None = None
    ) -> int:
        """Queue a prompt and return its request id. `ValueError`, with nothing queued, if it cannot be served."""
        params, salt = one_each(sampling, 1)[0], valid_text("salt", salt)
        if self.speculation:
            self.speculation.refuse(params)
        with deferred_interrupts() as deferred:
            self._abort_abandoned()
            with allowed_interrupts():  # a long text takes its time
                ids = self.model.checked_ids(prompt)
            max_tokens = min(params.max_tokens, self.model.max_length - len(ids))
            request_id = next(self._ids)
            seed = request_seed(self.seed, request_id) if params.seed is None else params.seed
            first = Sequence(f"r{request_id}", self._new_table(self.pool), ids, seed, len(ids))
            request = Request(request_id, [first], params.num_texts, max_tokens, salt)
            job = Job(request, params, Completion(request_id, ids[:], [], time.perf_counter()), self.model)
            job.show(first, stream)
            if not self._jobs and not self._trusts_classes:
                self._recovery.note_outside()
            try:
                self.scheduler.add(request)
            except BaseException:
                with suppress(Exception):  # the first error is the one to report
                    self._retire(request)
                raise
            self._jobs[request_id] = job
            if len(self._jobs) == 1:
                self.stats = Stats(self.stats.num_blocks, self.stats.bytes_per_block)
                self.scheduler.cached_tokens = 0
            deferred.on_interrupt = partial(self.abort, request_id)
            return request_id

    def step(self) -> list[Completion]:
        """Run one forward pass and return the completions it touched; `finished` tells which are done.

        With them come those that finished since the last call, in the steps of a `generate` or `stream`.
        If scheduling, the model or the sampler fails or is interrupted, the step has not happened: no token is added,
        and the tables are as before. If the step fails later, the requests in it are aborted.
        """
        with deferred_interrupts() as deferred:
            self._abort_abandoned()
            self._stepping = True
            try:
                touched = self._take_step()
            except BaseException:
                if not self._trusts_classes:
                    self._recover()
                raise
            finally:
                self._stepping = False
                if self.speculation:
                    self.speculation.clear()
                self._abort_abandoned()
            known, self._unseen = self._unseen + touched, []
            deferred.on_interrupt = partial(self._keep, known)
            return known

    def _keep(self, completions: list[Completion]) -> None:
        """For the next `step` to return: those that have finished, but for the ones that others wait for."""
        self._unseen = [c for c in completions if c.finished and c.request_id not in self._owned]

    def step_for_others(self) -> None:
        """A step of `generate` or `stream`: what it finishes of those added by `add` is kept for `step`."""
        self._keep(self.step())

    def _compute(self) -> Computed:
        with allowed_interrupts():
            pass  # an interrupt that waits is raised here, where nothing of this step has happened
        params = {request_id: job.params for request_id, job in self._jobs.items()}
        while True:
            if (plan := self._run_ahead(params)) is not None:
                return self._compute_now(plan, params) if plan.chunks else (plan, [], [], True)
            assert self.windows is not None
            with self._rewound_on_failure(Schedule()):
                collected = self.windows.collect()
            if collected:
                return *collected, [], False

    def _run_ahead(self, params: dict[int, SamplingParams]) -> Schedule | None:
        """Launch windows while there is place for one; a plan that has to be computed now, or is empty, comes back."""
        windows = self.windows
        while windows is None or windows.under_way < windows.at_once:
            under_way = windows is not None and windows.under_way > 0
            if windows and under_way and not windows.take(self.scheduler.running, params):
                return None
            if self.speculation:  # and then nothing is ever under way: it goes on from known tokens
                self.speculation.propose(self.scheduler, params)
            plan = self._schedule()
            if not plan.chunks:
                return None if under_way else plan
            if windows is None or self.speculation or not windows.take((c.request for c in plan.chunks), params):
                if not under_way:
                    return plan
                self.scheduler.rewind(plan)  # it needs to know the tokens in flight
                return None
            with self._rewound_on_failure(plan):
                windows.launch(plan, params)
        return None

    def _schedule(self) -> Schedule:
        """Return the scheduler's next plan, with its copies done. If that fails, the plan has not happened."""
        self.scheduler.plan = Schedule()  # or an error before the first line would rewind the step before
        try:
            plan = self.scheduler.schedule()
            self.cache.copy_blocks(plan.copies)
            plan.copies = []
        except BaseException:
            self._rewind(self.scheduler.plan)
            if self._new_table is not BlockTable:
                self._abort_everything()  # a table may have copied a block on write, and nobody knows which
            raise
        return plan

    @contextmanager
    def _rewound_on_failure(self, plan: Schedule) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._rewind(plan)
            raise

    def _rewind(self, plan: Schedule) -> None:
        """Take back a step, and those that run ahead of the host.

        If a reader's scheduler cannot do that, no table can be trusted: every request is aborted.
        """
        plans = [plan, *(self.windows.abandon() if self.windows else [])]
        try:
            for latest in plans:
                self.scheduler.rewind(latest)
        except BaseException:
            self._abort_everything()
            if isinstance(self.prefix_cache, PrefixCache):
                self.prefix_cache.clear()
            raise

    def _compute_now(self, plan: Schedule, params: dict[int, SamplingParams]) -> Computed:
        with self._rewound_on_failure(plan):
            logits = self.windows.decoder.compute(plan.chunks) if self.windows else None
            if logits is None:
                with allowed_interrupts():
                    logits = self.forward(build_batch(plan.chunks, self.model.device), self.cache, self.attend)
            check = self.speculation.check if self.speculation and self.speculation.drafts else None
            if not check:
                self._remember(plan)  # now, while a GPU computes: who finds the blocks reads them later
            return plan, *next_tokens(logits, [c for c in plan.chunks if c.num_rows], params, check), not check

    def _take_step(self) -> list[Completion]:
        began = time.perf_counter()
        computed = self._compute()
        self.plan = plan = computed[0]
        if not plan.chunks:
            return []
        request_ids = list(dict.fromkeys(chunk.request.request_id for chunk in plan.chunks))
        try:
            completions, new_tokens = self._take_tokens(computed)
        except BaseException:
            self._abort_all(request_ids)
            raise
        try:
            self._retire_finished(completions)
            seconds = time.perf_counter() - began
            drafts = self.speculation.checked if self.speculation else []
            self.stats.record(plan, new_tokens, self.scheduler.cached_tokens, self._used(), seconds, drafts)
        except BaseException:
            self._keep(self._unseen + completions)
            raise
        self._stepping = False  # a callback may abort requests at once
        for callback in tuple(self._callbacks):
            try:
                callback()
            except Exception as error:  # who watches must not break what is watched
                warnings.warn(f"a callback after the step raised {error!r}", stacklevel=2)
        return completions

    def _take_tokens(self, computed: Computed) -> tuple[list[Completion], int]:
        """Add the step's tokens to their sequences. Return the completions touched, and how many tokens are new."""
        plan, draws, searches, registered = computed
        self.stats.blocks_peak = max(self.stats.blocks_peak, self._used())
        jobs = {chunk.request: self._jobs[chunk.request.request_id] for chunk in plan.chunks}
        now = time.perf_counter()
        if self.speculation:
            for draw in draws:
                self.speculation.settle(draw.sequence, len(draw.tokens) - 1)
        if not registered:
            self._remember(plan)
        # All forks first: a text that ends with its first token frees the blocks its siblings start from.
        texts = [jobs[draw.request].fork(draw.sequence) if draw.nth else draw.sequence for draw in draws]
        new_tokens = 0
        for draw, text in zip(draws, texts, strict=True):
            new_tokens += jobs[draw.request].extend(text, draw, now)
        for request, logprobs in searches:
            new_tokens += jobs[request].search(logprobs, now)
        return [job.completion for job in jobs.values()], new_tokens

    def _retire_finished(self, completions: list[Completion]) -> None:
        with ExitStack() as stack:  # all of them, even if a reader's scheduler raises at the first
            for completion in completions:
                if completion.finished:
                    stack.callback(self._retire, self._jobs.pop(completion.request_id).request)

    def warm_up(self) -> None:
        """Compile all kernels and capture all CUDA graphs now, rather than each when it is first needed."""
        self._abort_abandoned()
        if self._jobs:
            raise ValueError(f"warm_up takes an idle engine, and {len(self._jobs)} requests are queued: call it first")
        if self._fast:
            self._fast.warm_up(self)

    @property
    def num_unfinished(self) -> int:
        """Requests that have been added and are not finished."""
        return len(self._jobs)

    def close(self) -> None:
        """End the other ranks, if there are any. Again is harmless."""
        self.model.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def abort(self, request_id: int) -> None:
        """Stop a request wherever it is and free its blocks. Unknown and finished ids are ignored.

        While a step runs, from a subscriber of the pool for one, the request is aborted at the end of the step.
        """
        with deferred_interrupts():
            if self._stepping:
                self._to_abort.append(request_id)
            else:
                self._abort_now(request_id)

    def _abort_now(self, request_id: int) -> None:
        job = self._jobs.pop(request_id, None)
        if job is None:
            return
        for sequence in job.request.unfinished:
            sequence.finish_reason = "abort"
        self._retire(job.request)
        self.stats.blocks_used = self._used()

    def _abort_all(self, request_ids: Iterable[int]) -> None:
        """Abort these requests, all of them, even if a reader's class raises at the first."""
        with ExitStack() as stack:
            for request_id in request_ids:
                stack.callback(self._abort_now, request_id)

    def _abort_everything(self) -> None:
        with suppress(Exception):  # the first error is the one to report
            self._abort_all(list(self._jobs))

    def _abort_abandoned(self) -> None:
        """Abort the requests whose streams are gone, and those that were aborted while a step ran."""
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
        """After a reader's class has failed: release what nobody holds, and abort requests whose tables are wrong."""
        requests = [job.request for job in self._jobs.values()]
        broken = self._recovery.balance(sequence for request in requests for sequence in request.sequences)
        for request in requests:
            if not {*broken}.isdisjoint(request.sequences):
                self._abort_now(request.request_id)

    # ------------------------------------------------------------------ for those who watch

    def on_step(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every step from now on; the function returned stops it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def sequences(self) -> list[Sequence]:
        """The texts that hold blocks now, with `name`, `table` and `token_ids`."""
        return [s for r in self.scheduler.running for s in r.sequences if s.table.block_ids]

    def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens, without special ones."""
        return self.model.decode(token_ids)

    def _remember(self, plan: Schedule) -> None:
        """Register the blocks that this step filled: their KV is computed, or will be before whoever finds it reads."""
        if self.prefix_cache is None:
            return
        size = self.pool.block_size
        for request, sequence, start, stop in plan.chunks:
            if stop // size > start // size and sequence.table.num_tokens >= stop:  # it may have given way since
                self.prefix_cache.insert(sequence.table, sequence.token_ids[:stop], salt=request.salt)

    def _used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    def _own(self, request_id: int) -> Completion:
        self._owned.add(request_id)
        return self._jobs[request_id].completion

    def drop(self, completions: list[Completion]) -> None:
        """Abort requests of `generate` or `stream`, and forget that anybody waits for them."""
        request_ids = [completion.request_id for completion in completions]
        with deferred_interrupts():
            self._owned.difference_update(request_ids)
            self._abort_all(request_ids)
