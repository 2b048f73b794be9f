"""What a user calls: an engine put together from options, and whole texts from it.

This file alone imports the wings: accelerate/, distributed/ and speculative/. Each is opened when
it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.adapters import (
    check_classes,
    check_table,
    make_pool,
    make_prefix_cache,
    make_scheduler,
)
from pagedlab.attention import PagedAttention, fastest_backend, get_backend
from pagedlab.blocks import BlockTable, blocks_for
from pagedlab.engine import Engine
from pagedlab.interrupts import allowed_interrupts, deferred_interrupts
from pagedlab.model import Model, is_one_prompt, load_model
from pagedlab.outputs import Completion, Stream, StreamReference
from pagedlab.runner import EagerRunner, Forward
from pagedlab.sampling_params import SamplingParams, one_each
from pagedlab.scheduler import How, Scheduler
from pagedlab.validation import integer, valid_text

if TYPE_CHECKING:
    from pagedlab.accelerate.windows import Windows
    from pagedlab.speculative import Drafter, Speculation

MAX_PROMPT_TOKENS = 2_048  # a step, beside others, on a GPU: benchmarks/NOTES.md
GPU_BATCH_TOKENS = 16_384
CPU_BATCH_TOKENS = 4_096
FOLLOW = "pagedlab.accelerate:follow"  # by its name, because other ranks call it
Prompt = str | list[int] | list[dict[str, str]]


class LLM(Engine, AbstractContextManager["LLM"]):
    """A language model with a paged KV cache.

    What to run:
        model: a hub id, folder or .gguf file, or a `Model` already loaded; None for what
            `pagedlab.loading.choose_model` says.
        device: "auto", "cpu", "cuda" or "cuda:1". "auto" is the GPU if there is one.
        dtype: "auto", "float32", "float16", "bfloat16" or "float64". "auto" is bfloat16 on a GPU,
            float32 on a CPU.
        seed: where requests without a seed take theirs from.
        tensor_parallel: ranks that share the model, ended by `close` or `with`.
        speculative: what drafts tokens: `PromptLookup(k=4)` or `DraftModel(model, k=4)`.
        verbose: print which model runs where, and why.

    How much at once:
        block_size: tokens a block.
        num_blocks: blocks of the pool; None for what fits into memory.
        max_batch_tokens: tokens a forward pass; None for 16,384 on a GPU and 4,096 on a CPU.
        max_prompt_tokens: how many of them prompts may take where a reader waits for a next token,
            and in a first step; None for 2,048 on a GPU and no such limit on a CPU.
        max_sequences: sequences at once.
        prefix_caching: keep the blocks of ended texts while there is room, and skip what a new
            prompt shares with them.
        preemption: what happens to the KV of a request that is preempted: "recompute" or "swap".

    Your own classes:
        attention_backend: a name, or a function with `paged_attention`'s parameters.
        block_pool, block_table, scheduler: classes with the methods of `BlockPool`, `BlockTable`
            and `Scheduler`.
        prefix_caching: a class with `PrefixCache`'s match and insert, made over the pool. It is off
            for a pool that cannot keep blocks.

    To measure with:
        cuda_graphs: run several steps without the host, each in one launch. `step` may then return
            several new tokens of a sequence. "auto" is on where it helps.
        fused: run the model's layers in fewer kernels. "auto" is on where it helps.

    Raises:
        ValueError: Of one line, for an argument that makes no sense.

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

    speculation: Speculation | None = None  # proposes tokens, and remembers which were accepted

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
        attend = get_backend(attention_backend)
        block_size = integer("block_size", block_size, 1)
        max_sequences = integer("max_sequences", max_sequences, 1)
        ranks = integer("tensor_parallel", tensor_parallel, 1)
        seed = integer("seed", seed)
        check_classes(block_pool, block_table, prefix_caching, scheduler)

        if ranks > 1:
            from pagedlab.distributed import open_model

            self.model = open_model(model, device, dtype, verbose, ranks, attention_backend, FOLLOW)
        else:
            self.model = (
                model if isinstance(model, Model) else load_model(model, device, dtype, verbose)
            )
        if attention_backend == "auto" and self.model.module.dtype != torch.float64:
            attend = fastest_backend(self.model.device, verbose)
        if speculative is not None:
            from pagedlab.speculative import Speculation

            self.speculation = Speculation(speculative, self, block_size)

        if num_blocks is None:
            num_blocks = self._blocks_that_fit(block_size, max_sequences)
        cache = self.model.kv_cache(num_blocks, block_size)
        pool = make_pool(block_pool, num_blocks, block_size)
        check_table(block_table, pool)
        prefix_cache = make_prefix_cache(prefix_caching, pool, block_table)
        on_gpu = self.model.device.type == "cuda"
        if max_batch_tokens is None:
            max_batch_tokens = GPU_BATCH_TOKENS if on_gpu else CPU_BATCH_TOKENS
        options: dict[str, Any] = {"preemption": preemption, "swapper": cache}
        if max_prompt_tokens is None and on_gpu:
            max_prompt_tokens = MAX_PROMPT_TOKENS
        if max_prompt_tokens is not None:  # a reader's scheduler need not know it
            options["max_prompt_tokens"] = max_prompt_tokens
        planner = make_scheduler(
            scheduler, pool, max_batch_tokens, max_sequences, prefix_cache, **options
        )

        super().__init__(self.model, cache, pool, prefix_cache, planner, block_table, seed)
        self.runner = EagerRunner(self.model, cache, attend, self.params)
        self._fast = None
        if find_spec("pagedlab.accelerate"):  # without that folder everything runs as it is
            from pagedlab.accelerate import choose

            self._fast = choose(self, fused=fused, cuda_graphs=cuda_graphs)
            self.forward, self.windows = self._fast
        if self.speculation is not None:
            self._draft()

    def _blocks_that_fit(self, block_size: int, max_sequences: int) -> int:
        """As many blocks as memory holds, and no more than the sequences could fill."""
        smallest = self.model.kv_cache(1, block_size)
        fit = smallest.blocks_that_fit()
        if self.speculation is not None:
            fit = self.speculation.share_of(fit, smallest.bytes_per_block)
        return min(fit, max_sequences * blocks_for(self.model.max_length, block_size))

    # ------------------------------------------------------------------ the runner's parts

    @property
    def forward(self) -> Forward:
        """The forward pass: `Model.forward`, a faster one, or one of your own."""
        return self._eager.forward

    @forward.setter
    def forward(self, forward: Forward) -> None:
        self._eager.forward = forward

    @property
    def attend(self) -> PagedAttention:
        """The attention function."""
        return self._eager.attend

    @attend.setter
    def attend(self, attend: PagedAttention) -> None:
        self._eager.attend = attend

    @property
    def windows(self) -> Windows | None:
        """What launches several steps ahead of the host; None where every step waits for the one
        before.
        """
        return getattr(self._eager, "windows", None)

    @windows.setter
    def windows(self, windows: Windows | None) -> None:
        before = self._eager
        parts = self.model, self.cache, before.attend, self.params
        if windows is None:
            eager = EagerRunner(*parts)
        else:
            from pagedlab.accelerate.run_ahead import RunAheadRunner

            ahead = self.speculation is None  # a draft goes on from known tokens
            eager = RunAheadRunner(*parts, windows=windows, scheduler=self.scheduler, ahead=ahead)
        eager.forward = before.forward
        self.runner = eager
        if self.speculation is not None:
            self._draft()

    @property
    def _eager(self) -> EagerRunner:
        """The runner below the one that drafts, if one does."""
        return getattr(self.runner, "inner", self.runner)  # type: ignore[arg-type]

    def _draft(self) -> None:
        """Let the speculation propose tokens before each step, and check them in it."""
        from pagedlab.speculative import DraftingRunner

        assert self.speculation is not None
        self.runner = DraftingRunner(self._eager, self.speculation, self.scheduler, self.params)

    # ------------------------------------------------------------------ whole texts

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling: SamplingParams | list[SamplingParams] | None = None,
        *,
        salt: str | None = None,
    ) -> list[Completion]:
        """Continue every prompt, all in one ragged batch, and return one completion each, in order.

        Args:
            prompts: a text, a list of token ids, a list of chat messages ({"role": ..., "content":
                ...}), or a list of any of these.
            sampling: for all prompts, or a list with one each.
            salt: only prompts with the same salt share cached blocks.

        Raises:
            ValueError: Names the first bad prompt, and then none has been started.

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
        added: list[Completion] = []
        with deferred_interrupts():  # a forward pass allows them
            try:
                for number, (prompt, asked) in enumerate(zip(batch, params, strict=True)):
                    try:
                        request_id = self.add(prompt, asked, salt=salt)
                    except ValueError as error:
                        where = f"prompt {number}: " if len(batch) > 1 else ""
                        raise ValueError(f"{where}{error}") from None
                    added.append(self._own(request_id))
                    self._states[request_id].request.read_at_end = True
                while not all(completion.finished for completion in added):
                    self.step_for_others()
            finally:
                self.drop(added)
        return added

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, salt: str | None = None
    ) -> Stream:
        """Return an iterator over the text of one prompt, piece by piece.

        Leaving the loop early aborts the request.

        Args:
            prompt, sampling, salt: as in `generate`, for one prompt and one text.
        """
        params = one_each(sampling, 1)[0]
        if params.num_sequences > 1 or params.beam_width:
            raise ValueError(
                "stream yields one text that grows, not several, nor beams: use generate, or add "
                "and step"
            )
        with deferred_interrupts():
            stream = Stream(self, self._own(self.add(prompt, params, stream=True, salt=salt)))
            self._streams.add(StreamReference(stream, self._abandoned))
            return stream

    def add(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        salt: str | None = None,
    ) -> int:
        """Queue a prompt and return its request id, for `step` and `abort`.

        Args:
            prompt, sampling, salt: as in `generate`, for one prompt.
            stream: whether its outputs hand their texts out in pieces.

        Raises:
            ValueError: With nothing queued, if it cannot be served.
        """
        params = one_each(sampling, 1)[0]
        salt = valid_text("salt", salt)
        if self.speculation:
            self.speculation.refuse(params)
        with deferred_interrupts() as deferred:
            self._abort_abandoned()
            with allowed_interrupts():  # a long text takes its time
                ids = self.model.checked_ids(prompt)
            request_id = self._enqueue(ids, params, stream=stream, salt=salt)
            deferred.on_interrupt = lambda: self.abort(request_id)
            return request_id

    def step_for_others(self) -> None:
        """A step of `generate` or `stream`: what it finishes of those added by `add` is kept for
        `step`.
        """
        self._keep(self.step())

    def drop(self, completions: list[Completion]) -> None:
        """Abort requests of `generate` or `stream`, and forget that anybody waits for them."""
        request_ids = [completion.request_id for completion in completions]
        with deferred_interrupts():
            self._owned.difference_update(request_ids)
            self._abort_all(request_ids)

    def _own(self, request_id: int) -> Completion:
        self._owned.add(request_id)
        return self._states[request_id].completion

    # ------------------------------------------------------------------ beginning and end

    def warm_up(self) -> None:
        """Compile all kernels and capture all CUDA graphs now, rather than each when it is first
        needed.
        """
        self._abort_abandoned()
        if self._states:
            raise ValueError(
                f"warm_up takes an idle engine, and {len(self._states)} requests are queued: call "
                "it first"
            )
        if self._fast:
            self._fast.warm_up(self)

    def close(self) -> None:
        """End the other ranks, if there are any. Again is harmless."""
        self.model.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        blocks = f"{self.pool.num_blocks} blocks of {self.pool.block_size}"
        return f"LLM({self.model.name}, {blocks}, {self.num_unfinished} requests unfinished)"
