"""The engine: prompts in, texts out, every key and value in blocks between.

    request -> scheduler (blocks, copies) -> batch (flat tensors) -> model forward -> sampler -> request

A step runs one forward pass over a ragged batch: whole prompts, parts of prompts and single new tokens, one
after the other in one row, with no padding and no loop over requests around the model.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.attention import PagedAttention, fastest_backend, get_backend
from pagedlab.batch import build_batch
from pagedlab.beam import BeamSearch, advance_beams
from pagedlab.blocks import BlockPool, BlockTable, Pool, blocks_for
from pagedlab.choice import Draw, next_tokens
from pagedlab.detokenizer import Detokenizer
from pagedlab.model import Model, is_one_prompt, load_model
from pagedlab.outputs import Completion, Output, Stats
from pagedlab.prefix import PrefixCache
from pagedlab.sampling import SamplingParams, is_whole, one_each
from pagedlab.scheduler import Chunk, How, Request, Schedule, Scheduler, Sequence
from pagedlab.speculative import Drafter, Speculation

if TYPE_CHECKING:
    from typing_extensions import Self

    from pagedlab.accelerate import Fast

CPU_TOKENS, GPU_TOKENS = 4096, 16384  # of a forward pass
Prompt = str | list[int] | list[dict[str, str]]


@dataclass
class _Job:
    """A request that is not finished, with what was asked of it and what is handed out."""

    request: Request
    params: SamplingParams
    completion: Completion
    beams: BeamSearch | None
    ends: frozenset[int]  # tokens that end a text


class LLM:
    """A language model whose KV lives in blocks.

    What to run: model is a hub id, folder, .gguf file, or a `Model` already loaded; None for what
    `pagedlab.model.choose_model` says. seed: where requests without a seed take theirs from. tensor_parallel: ranks
    that share the model, ended by `close` or `with`. speculative: who drafts tokens, `PromptLookup(k=4)` or
    `DraftModel(model, k=4)`.

    How much at once: num_blocks, None for what fits. max_batch_tokens: tokens a forward pass, None for 16,384 on a GPU
    and 4,096 on a CPU. max_sequences: texts at once. prefix_caching: keep the blocks of ended texts while there is
    room, and skip what a new prompt shares with them (off for a pool without the verbs for it). preemption: what
    happens to the KV of a request that gives way when blocks run out, "recompute" or "swap".

    Your own: attention_backend takes a name, or a function with `paged_attention`'s parameters; block_pool,
    block_table and scheduler take classes with the verbs of `BlockPool`, `BlockTable` and `Scheduler`; prefix_caching
    one with `PrefixCache`'s match and insert, made over the pool.

    To measure with: cuda_graphs decodes several steps in a row without the host, each one launch; then `step` may
    return several new tokens of a text. fused runs the model's weights in fewer kernels. Both, "auto", are taken where
    they help, see pagedlab/accelerate.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        max_batch_tokens: int | None = None,
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
        BlockPool(1, block_size)  # says what is wrong with a block size, before a model is loaded
        if not is_whole(tensor_parallel, 1):
            raise ValueError(f"tensor_parallel is a number of ranks, 1 or more, got {tensor_parallel!r}")
        if tensor_parallel > 1:
            from pagedlab.distributed import open_model  # not before: one rank does without all of that folder

            self.model = open_model(model, device, dtype, verbose, tensor_parallel, attention_backend)
        else:
            self.model = model if isinstance(model, Model) else load_model(model, device, dtype, verbose)
        if attention_backend == "auto" and self.model.module.dtype != torch.float64:
            self.attend = fastest_backend(self.model.device, verbose)
        cache = self.model.kv_cache(1, block_size)
        self.speculation = Speculation(speculative, self, block_size)
        if num_blocks is None:
            useful = max_sequences * blocks_for(self.model.max_length, block_size)
            num_blocks = min(useful, self.speculation.share_of(cache.blocks_that_fit(), cache.bytes_per_block))
        self.pool: Pool = (block_pool or BlockPool)(num_blocks, block_size)
        verbs = ("num_blocks", "block_size", "num_free", "allocate", "share", "release", "refcount")
        missing = [verb for verb in verbs if not hasattr(self.pool, verb)]
        if missing:
            raise ValueError(f"{type(self.pool).__name__} cannot serve as a block pool: it lacks {', '.join(missing)}")
        self.cache = self.model.kv_cache(num_blocks, block_size)
        if max_batch_tokens is None:
            max_batch_tokens = GPU_TOKENS if self.model.device.type == "cuda" else CPU_TOKENS
        new_cache = prefix_caching if callable(prefix_caching) else partial(PrefixCache, block_table=block_table)
        can_cache = prefix_caching and hasattr(self.pool, "attach")
        self.prefix_cache = new_cache(self.pool) if can_cache else None
        limits = max_batch_tokens, max_sequences
        self.scheduler = scheduler(self.pool, *limits, self.prefix_cache, preemption=preemption, swapper=self.cache)
        self.stats = Stats(num_blocks, cache.bytes_per_block)
        self.seed = seed
        self._new_table = block_table
        self._ids = itertools.count()
        self._jobs: dict[int, _Job] = {}
        self._cached_before = 0
        self._owned: set[int] = set()  # requests of a `generate` or `stream`, which hands them out itself
        self._unseen: list[Completion] = []  # finished, and not yet returned by `step`
        self._callbacks: list[Callable[[], None]] = []
        self.plan = Schedule()  # of the latest step
        self._fast: Fast | None = None
        if find_spec("pagedlab.accelerate"):  # without that folder everything runs as it is
            from pagedlab.accelerate import choose

            self._fast = choose(self, fused=fused, cuda_graphs=cuda_graphs)
        self.forward = self._fast.forward if self._fast else self.model.forward
        self.windows = self._fast.windows if self._fast else None

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
        added: list[Completion] = []
        try:
            for i, (prompt, p) in enumerate(zip(batch, one_each(sampling, len(batch)), strict=True)):
                try:
                    added.append(self._own(self.add(prompt, p, salt=salt)))
                except ValueError as error:
                    raise ValueError(f"prompt {i}: {error}" if len(batch) > 1 else str(error)) from None
            while not all(completion.finished for completion in added):
                self._step_for_others()
        finally:
            self._abort_all(added)
        return added

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Iterator[str]:
        """Yield the text of one prompt piece by piece. Leaving the loop early aborts the request."""
        params = sampling or SamplingParams()
        if params.num_texts > 1:
            raise ValueError(
                f"stream yields one text and {params.num_texts} are asked for: use generate, or add and step"
            )
        pieces = self._pieces(self._own(self.add(prompt, params, stream=True)))
        next(pieces)  # into its try block: a stream that nobody reads still aborts its request when it is dropped
        return pieces

    def _pieces(self, completion: Completion) -> Iterator[str]:
        (output,) = completion.outputs
        detokenizer = output.detokenizer
        assert detokenizer is not None
        try:
            yield ""
            while not completion.finished:
                self._step_for_others()
                if piece := detokenizer.take(completion.finished):
                    yield piece
            if piece := detokenizer.take(finished=True):  # written in somebody else's steps
                yield piece
        finally:
            self._abort_all([completion])

    # ------------------------------------------------------------------ step by step

    def add(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        salt: str | None = None,
    ) -> int:
        """Queue a prompt and return its request id. `ValueError`, with nothing queued, if it cannot be served."""
        params = sampling or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling must be SamplingParams, got {params!r}")
        self.speculation.refuse(params)
        ids = self.model.checked_ids(prompt)
        max_tokens = min(params.max_tokens, self.model.max_length - len(ids))
        request_id = next(self._ids)
        # Text i of a request draws with seed + i: other requests must start further off than that.
        seed = params.seed if params.seed is not None else (self.seed << 40) + (request_id << 20)
        first = Sequence(f"r{request_id}", self._new_table(self.pool), ids, seed, len(ids))
        request = Request(request_id, [first], params.num_texts, max_tokens, salt)
        beams, ends = None, frozenset() if params.ignore_eos else self.model.eos_token_ids
        if params.beam_width:
            beams = BeamSearch(params.beam_width, max_tokens, ends, params.length_penalty, params.early_stopping)
        completion = Completion(request_id, ids[:], [self._output(first, params, stream)], time.perf_counter())
        job = _Job(request, params, completion, beams, ends)
        self.scheduler.add(request)
        self._jobs[request_id] = job  # at once: a request in the queue without a job would stop every step
        if len(self._jobs) == 1:
            self.stats = Stats(self.stats.num_blocks, self.stats.bytes_per_block)
            self._cached_before = self.scheduler.cached_tokens
        return request_id

    def step(self) -> list[Completion]:
        """Run one forward pass and return the completions it touched; `finished` tells which are done.

        With them come those that finished since the last call, in the steps of a `generate` or `stream`. If the
        model or the choice of tokens fails, the step has not happened: no token is added, and the tables are as
        before. If it fails while texts take their tokens, the requests in it are aborted.
        """
        try:
            touched = self._forward()
        finally:
            self.speculation.clear()
        unseen, self._unseen = self._unseen, []
        return unseen + touched

    def _step_for_others(self) -> None:
        """A step of `generate` or `stream`: what it finishes of those added by `add` is kept for `step`."""
        self._unseen = [c for c in self.step() if c.finished and c.request_id not in self._owned]

    def _drawn(self) -> tuple[Schedule, list[Chunk], list[Draw], list[tuple[Request, torch.Tensor]], bool]:
        """A step's or window's plan, the chunks whose texts go on, `next_tokens`, and if its blocks are registered."""
        going = self.windows.next() if self.windows else None
        if going is None:
            params = {request_id: job.params for request_id, job in self._jobs.items()}
            self.speculation.propose(self.scheduler, params)
            plan = self.scheduler.schedule()
            if not plan.chunks:
                return plan, [], [], [], True
            try:
                self.cache.copy_blocks(plan.copies)
                if self.windows is None or not self.windows.start(plan, params):
                    speaking = [chunk for chunk in plan.chunks if chunk.is_last]
                    logits = self.forward(build_batch(plan.chunks, self.model.device), self.cache, self.attend)
                    drafts = self.speculation.drafts
                    if not drafts:
                        self._remember(plan)  # now, while a GPU computes: who finds the blocks reads them later
                    return plan, speaking, *next_tokens(logits, speaking, params, drafts), not drafts
                going = self.windows.next()
                assert going is not None
            except BaseException:
                self.scheduler.undo(plan)
                raise
        plan, drawn = going
        return plan, plan.chunks, drawn, [], False

    def _forward(self) -> list[Completion]:
        began = time.perf_counter()
        plan, speaking, drawn, searches, registered = self._drawn()
        self.plan = plan
        if not plan.chunks:
            return []
        self.stats.blocks_peak = max(self.stats.blocks_peak, self._used())
        completions = [self._jobs[i].completion for i in dict.fromkeys(c.request.request_id for c in plan.chunks)]
        try:
            for draw in drawn:
                self.speculation.settle(draw.sequence, len(draw.tokens) - 1)
            if not registered:
                self._remember(plan)
            num_new = 0
            # All forks first: a text that ends with its first token frees the blocks its siblings start from.
            texts = [self._fork(d.request, d.sequence) if d.nth else d.sequence for d in drawn]
            for draw, sequence in zip(drawn, texts, strict=True):
                sequence.drop_draft()  # accepted tokens come back one by one: any of them may end the text
                for token, logprob in zip(draw.tokens, draw.logprobs, strict=True):
                    if sequence.finish_reason is None:
                        self._extend(draw.request, sequence, token, logprob)
                        num_new += 1
            for request, logprobs in searches:
                self._replace_beams(request, logprobs)
        except BaseException:
            self._abort_all(completions)
            raise
        now = time.perf_counter()
        for request_id in dict.fromkeys(chunk.request.request_id for chunk in speaking):
            done = self._jobs[request_id].completion
            longest = max(text.num_outputs for text in self._jobs[request_id].request.sequences)
            done.times += [now] * max(1, longest - len(done.times))
        for completion in completions:
            if completion.finished:
                self.scheduler.remove(self._jobs.pop(completion.request_id).request)
        cached = self.scheduler.cached_tokens - self._cached_before
        num_new += sum(len(request.sequences) for request, _ in searches)
        self.stats.record_drafts(self.speculation.checked)
        self.stats.record(plan, num_new, cached, self._used(), now - began)
        for callback in tuple(self._callbacks):
            callback()
        return completions

    def warm_up(self) -> None:
        """Compile all kernels and capture all CUDA graphs now, rather than each when it is first needed."""
        if self._jobs:
            queued = f"{len(self._jobs)} requests are queued"
            raise ValueError(f"warm_up takes an idle engine, and {queued}: call it before them")
        if self._fast:
            self._fast.warm_up(self)

    @property
    def num_unfinished(self) -> int:
        """Requests that have been added and are not finished."""
        return len(self._jobs)

    def close(self) -> None:
        """End the other ranks, if there are any. Again is harmless."""
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abort(self, request_id: int) -> None:
        """Stop a request wherever it is and free its blocks. Unknown and finished ids are ignored."""
        if request_id not in self._jobs:
            return
        request = self._jobs.pop(request_id).request
        for sequence in request.unfinished:
            sequence.finish_reason = "abort"
        self.scheduler.remove(request)
        self.stats.blocks_used = self._used()

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

    # ------------------------------------------------------------------ inside a step

    def _remember(self, plan: Schedule) -> None:
        """Register the blocks that this step filled: their KV is computed, or will be before whoever finds it reads."""
        if self.prefix_cache is None:
            return
        size = self.pool.block_size
        for request, sequence, start, stop in plan.chunks:
            if stop // size > start // size:
                self.prefix_cache.insert(sequence.table, sequence.token_ids[:stop], salt=request.salt)

    def _fork(self, request: Request, first: Sequence) -> Sequence:
        """One more text that continues the same prompt, over the same blocks."""
        job, nth = self._jobs[request.request_id], len(request.sequences)
        fork = Sequence(
            f"{first.name}.{nth}", first.table.fork(), first.token_ids[:], first.seed + nth, first.num_prompt_tokens
        )
        request.sequences.append(fork)
        job.completion.outputs.append(self._output(fork, job.params, stream=False))
        return fork

    def _extend(self, request: Request, sequence: Sequence, token: int, logprob: float) -> None:
        """Add the new token to its text, and end the text if that was its last."""
        job = self._jobs[request.request_id]
        detokenizer = job.completion.outputs[request.sequences.index(sequence)].detokenizer
        sequence.token_ids.append(token)
        sequence.cumulative_logprob += logprob
        ended = token in job.ends
        if detokenizer and not ended:
            detokenizer.push(token)
            ended = detokenizer.stopped
        if ended:
            sequence.finish_reason = "stop"
        elif sequence.num_outputs >= request.max_tokens:
            sequence.finish_reason = "length"
        if sequence.finish_reason:
            if detokenizer:
                detokenizer.finish(self.decode(sequence.output_ids))
            sequence.table.free()

    def _replace_beams(self, request: Request, logprobs: torch.Tensor) -> None:
        """Move a beam search on by one token. Its outputs are then the beams that go on, or the best that ended."""
        job = self._jobs[request.request_id]
        assert job.beams is not None
        advance_beams(request, job.beams, logprobs)
        job.completion.outputs[:] = [self._output(text, job.params, stream=False) for text in request.sequences]

    # ------------------------------------------------------------------ small things

    def _output(self, sequence: Sequence, params: SamplingParams, stream: bool) -> Output:
        needs_text = stream or params.stop
        detokenizer = Detokenizer(self.model.tokenizer, tuple(params.stop)) if needs_text else None
        return Output(sequence, detokenizer, self.decode)

    def _used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    def _own(self, request_id: int) -> Completion:
        self._owned.add(request_id)
        return self._jobs[request_id].completion

    def _abort_all(self, completions: list[Completion]) -> None:
        self._owned.difference_update(completion.request_id for completion in completions)
        with ExitStack() as stack:  # all of them, even if a pool that is broken raises at the first
            for completion in completions:
                stack.callback(self.abort, completion.request_id)
