"""LLM: the class that a user calls. It builds an engine from options and returns texts.

This is the only file that imports the wings accelerate/, distributed/ and speculative/, each of
them when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.adapters import Classes
from pagedlab.attention import (
    PagedAttention,
    check_arguments,
    fastest_backend,
    get_backend,
)
from pagedlab.blocks import BlockTable, blocks_for
from pagedlab.engine import Engine
from pagedlab.garbage import full_collections_postponed
from pagedlab.loading import where_to_run
from pagedlab.model import Model, is_one_prompt, load_model
from pagedlab.outputs import Completion
from pagedlab.request_state import RequestState
from pagedlab.runner import EagerRunner, Forward, OnForward
from pagedlab.sampling_params import SamplingParams, one_each
from pagedlab.scheduler import PreemptionMode, Scheduler
from pagedlab.validation import (
    a_function,
    integer,
    one_of,
    optional_integer,
    real,
    valid_text,
)

if TYPE_CHECKING:
    from pagedlab.accelerate.run_ahead import RunAhead
    from pagedlab.speculative import Drafter, Speculation

GPU_PROMPT_TOKENS = 2_048  # default of max_prompt_tokens on a GPU, see benchmarks/NOTES.md
GPU_BATCH_TOKENS = 16_384
CPU_BATCH_TOKENS = 4_096
FOLLOW = "pagedlab.accelerate:follow"  # by its name, because other ranks call it
CHOICES: dict[str, tuple[Any, ...]] = {
    "preemption": ("recompute", "swap"),
    "cuda_graphs": (True, False, "auto"),
    "fused": (True, False, "auto"),
    "verbose": (True, False),
}
Prompt = str | list[int] | list[dict[str, str]]


class LLM(Engine, AbstractContextManager["LLM"]):
    """A language model with a paged KV cache.

    What to run:
        model: a hub id, a folder, a .gguf file, or a `Model`. None for the model in
            PAGEDLAB_MODEL, else the real Qwen if it was downloaded, else the tiny model.
        device: "auto", "cpu", "cuda" or for instance "cuda:1". "auto" is the GPU if there is one.
        dtype: "auto", "float32", "float16", "bfloat16" or "float64". "auto" is bfloat16 on a GPU
            and float32 on a CPU.
        seed: the engine's seed. A request without a seed gets one that is derived from it.
        tensor_parallel: processes that share the model. `close` or a `with` block ends them.
        speculative: the drafter, `PromptLookup(k=4)` or `DraftModel(model, k=4)`, from
            `pagedlab.speculative`; None for none.
        verbose: print which model runs on which device, and why.

    Limits:
        block_size: tokens per block.
        num_blocks: blocks of the pool; None for as many as the memory holds.
        free_gpu_memory_fraction: where num_blocks is None, the share of a GPU's free memory, beside
            the weights, that the blocks and the work of a step take together.
        max_batch_tokens: tokens per step, at most; None for 16,384 on a GPU and 4,096 on a CPU.
        max_prompt_tokens: prompt tokens per step, at most, while other requests stream, and in
            the first step. None is 2,048 on a GPU and no limit on a CPU.
        max_sequences: running sequences, at most.
        prefix_caching: keep the blocks of finished requests as long as they are not needed. A new
            prompt that begins alike shares them.
        preemption: "recompute" drops the KV of a preempted request, "swap" moves it to host memory.

    Your own classes:
        attention_backend: the name of a backend, or a function like `paged_attention`.
        block_pool: a class with the methods of `BlockPool`.
        block_table: a class with the methods of `BlockTable`.
        scheduler: a class with the methods of `Scheduler`.
        prefix_caching: a class with the methods `match` and `insert` of `PrefixCache`. It is not
            used if the block pool cannot keep unused blocks.

    Speed:
        cuda_graphs: run several steps in one launch, without the host. Then `step` may return
            several new tokens of a sequence. "auto" turns it on where it helps.
        fused: run the model's layers in fewer kernels. "auto" turns it on where it helps.

    Attributes:
        model: the `Model`; `model.tokenizer` is its tokenizer.
        cache: the `KVCache`.
        pool: the block pool.
        new_table: the class of the block tables.
        prefix_cache: the `PrefixCache`; None if prefix caching is off.
        scheduler: the scheduler, with its queues `waiting`, `running` and `swapped`.
        runner: runs the forward passes that the scheduler has planned.
        forward: the forward pass; set another to replace it.
        attend: the attention function; set another to replace it.
        run_ahead: launches several steps ahead of the host; None if each step waits for the last.
        speculation: drafts tokens, and counts those that were accepted; None without a drafter.
        seed: the engine's seed.
        stats: the `Stats` since the engine was idle: blocks, tokens and seconds.
        plan: what the latest step computed.
        drafts: the drafts that the latest step checked.
        params: the `SamplingParams` of each unfinished request, by request id.
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

    speculation: Speculation | None = None  # drafts tokens, and counts which were accepted

    def __init__(  # noqa: PLR0913 - the options of the one class that users make
        self,
        model: Any = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        free_gpu_memory_fraction: float = 0.9,
        max_batch_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        max_sequences: int = 256,
        prefix_caching: bool | Callable[[Any], Any] = True,
        preemption: PreemptionMode = "recompute",
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
        check_arguments(attention_backend)
        block_size = integer("block_size", block_size, 1)
        num_blocks = optional_integer("num_blocks", num_blocks, 1)
        fraction = real("free_gpu_memory_fraction", free_gpu_memory_fraction, 0, 1, above=True)
        max_batch_tokens = optional_integer("max_batch_tokens", max_batch_tokens, 1)
        max_prompt_tokens = optional_integer("max_prompt_tokens", max_prompt_tokens, 1)
        max_sequences = integer("max_sequences", max_sequences, 1)
        ranks = integer("tensor_parallel", tensor_parallel, 1)
        seed = integer("seed", seed)
        _check_choices(preemption=preemption, cuda_graphs=cuda_graphs, fused=fused, verbose=verbose)
        classes = Classes(block_pool, block_table, prefix_caching, scheduler)
        if speculative is not None:
            from pagedlab.speculative import Speculation, check_drafter  # a wing: for drafts alone

            check_drafter(speculative)

        self.model = _open_model(model, device, dtype, verbose, ranks, attention_backend)
        if attention_backend == "auto":
            is_double = self.model.module.dtype == torch.float64
            attend = fastest_backend(self.model.device, verbose, is_double)
        if speculative is not None:
            self.speculation = Speculation(speculative, self, block_size)

        max_batch_tokens = max_batch_tokens or (
            GPU_BATCH_TOKENS if self._is_on_gpu else CPU_BATCH_TOKENS
        )
        if num_blocks is None:
            num_blocks = self._blocks_that_fit(
                block_size, max_sequences, max_batch_tokens, fraction
            )
        cache = self.model.kv_cache(num_blocks, block_size)
        new_parts = partial(
            classes.make,
            num_blocks,
            block_size,
            max_batch_tokens,
            max_sequences,
            preemption=preemption,
            swapper=cache,
            # A reader's scheduler need not have this option.
            max_prompt_tokens=max_prompt_tokens or (GPU_PROMPT_TOKENS if self._is_on_gpu else None),
        )
        super().__init__(self.model, cache, new_parts, block_table, seed)
        self.runner = EagerRunner(self.model, cache, attend, self.params)
        if find_spec("pagedlab.accelerate"):
            self._accelerate(fused, cuda_graphs)
        if self.speculation is not None:
            self._draft()

    def _accelerate(
        self, fused: bool | Literal["auto"], cuda_graphs: bool | Literal["auto"]
    ) -> None:
        """Take a faster forward pass and steps that run ahead, as far as they suit the device."""
        from pagedlab.accelerate import choose  # a wing: without it, all steps run eagerly

        chosen = choose(
            self.model,
            self.cache,
            self.attend,
            self.scheduler,
            fused=fused,
            cuda_graphs=cuda_graphs,
        )
        self.forward = chosen.forward
        self.run_ahead = chosen.run_ahead

    @property
    def _is_on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def _blocks_that_fit(
        self, block_size: int, max_sequences: int, max_batch_tokens: int, fraction: float
    ) -> int:
        """How many blocks the memory holds, but no more than the sequences can fill.

        Args:
            block_size: tokens a block.
            max_sequences: running sequences, at most.
            max_batch_tokens: tokens of a step, at most.
            fraction: share of a GPU's free memory for the blocks and the work of a step.

        Raises:
            ValueError: If the work of a step leaves no room for a block.
        """
        smallest = self.model.kv_cache(1, block_size)
        bytes_per_block = smallest.bytes_per_block
        memory = free = smallest.free_bytes()
        if self._is_on_gpu:
            work = self.model.working_bytes(max_batch_tokens, max_sequences)
            memory = int(fraction * free) - work
            if memory < bytes_per_block:
                raise ValueError(
                    f"{fraction:g} of the {free / 2**30:.1f} GiB that are free on the GPU leave no "
                    f"room for a block: a step of {max_batch_tokens:,} tokens takes about "
                    f"{work / 2**30:.1f} GiB. Lower max_batch_tokens, raise "
                    f"free_gpu_memory_fraction or give num_blocks"
                )
        fit = max(1, memory // bytes_per_block)
        if self.speculation is not None:
            fit = self.speculation.share_of(fit, bytes_per_block)
        return min(fit, max_sequences * blocks_for(self.model.max_length, block_size))

    # ------------------------------------------------------------------ the runner's parts

    @property
    def forward(self) -> Forward:
        """The forward pass: `Model.forward`, a faster one, or one that you set."""
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
    def run_ahead(self) -> RunAhead | None:
        """Launches several steps ahead of the host; None if each step waits for the one before."""
        return getattr(self._eager, "run_ahead", None)

    @run_ahead.setter
    def run_ahead(self, run_ahead: RunAhead | None) -> None:
        if self.num_unfinished:
            raise ValueError(f"{self.num_unfinished} requests are unfinished: set run_ahead later")
        before = self._eager
        parts = self.model, self.cache, before.attend, self.params
        if run_ahead is None:
            eager = EagerRunner(*parts)
        else:
            from pagedlab.accelerate.runner import RunAheadRunner

            launches = self.speculation is None  # a drafter needs to know the tokens before
            eager = RunAheadRunner(*parts, run_ahead, launches)
        eager.reset(self.scheduler)
        eager.forward = before.forward
        eager.callbacks = before.callbacks
        self.runner = eager
        if self.speculation is not None:
            self._draft()

    def on_forward(self, callback: OnForward) -> Callable[[], None]:
        """Call `callback` after every forward pass; the function returned stops it.

        It gets the step's plan and the logits [R, V], before tokens are sampled. Steps that run
        ahead of the host have no logits to show, and are left out.

        Raises:
            ValueError: If `callback` is no function.
        """
        a_function("callback", callback, "that takes a plan and logits")
        callbacks = self._eager.callbacks
        callbacks.append(callback)
        subscription = ExitStack()
        subscription.callback(callbacks.remove, callback)
        return subscription.close

    @property
    def _eager(self) -> EagerRunner:
        """The runner itself, or the one inside a `DraftingRunner`."""
        return getattr(self.runner, "inner", self.runner)  # type: ignore[arg-type]

    def _draft(self) -> None:
        """Draft tokens before each step and check them in it."""
        from pagedlab.speculative import DraftingRunner  # a wing: only drafting needs it

        assert self.speculation is not None
        self.runner = DraftingRunner(self._eager, self.speculation, self.scheduler, self.params)

    # ------------------------------------------------------------------ texts

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling: SamplingParams | list[SamplingParams] | None = None,
        *,
        salt: str | None = None,
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
                no prompt is started.

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
        with full_collections_postponed():
            requests = []
            for number, (prompt, asked) in enumerate(zip(batch, params, strict=True)):
                try:
                    requests.append(self._checked(prompt, asked, salt=salt))
                except ValueError as error:
                    where = f"prompt {number}: " if len(batch) > 1 else ""
                    raise ValueError(f"{where}{error}") from None
            for state in requests:
                state.request.streaming = False
            return self._run(requests)

    def _run(self, requests: list[RequestState]) -> list[Completion]:
        """Run steps until these requests are finished. If that fails, they are aborted."""

        def start() -> None:
            for state in requests:
                self._start(state)

        try:
            self.soon(start)
            for state in requests:
                while not state.completion.finished:
                    self.step()
                state.raise_if_dropped()
        finally:
            for state in requests:
                if not state.completion.finished:
                    self.abort(state.request.request_id)
        return [state.completion for state in requests]

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, salt: str | None = None
    ) -> Iterator[str]:
        """Return an iterator over the new text of one prompt, piece by piece.

        If the loop over it ends early, the request is aborted.

        Args:
            prompt: a text, a list of token ids, or a list of chat messages.
            sampling: the parameters, for one sequence.
            salt: as in `generate`.

        Raises:
            ValueError: If the prompt cannot be served, or if several sequences are requested.
        """
        params = one_each(sampling, 1)[0]
        if params.n > 1:
            raise ValueError(
                "stream yields one text that grows, not several: use generate, or add and step"
            )
        return self._pieces(self._checked(prompt, params, stream=True, salt=salt))

    def _pieces(self, state: RequestState) -> Iterator[str]:
        """Run a request and yield its text. It is aborted if the caller stops early."""
        detokenizer = state.completion.outputs[0].detokenizer
        assert detokenizer is not None  # each output that streams has one
        try:
            self.soon(partial(self._start, state))
            while not state.completion.finished:
                self.step()
                piece = detokenizer.take(state.completion.finished)
                if piece:
                    yield piece
            state.raise_if_dropped()
            if error := state.completion.outputs[0].error:
                raise FloatingPointError(error)
        finally:
            self.abort(state.request.request_id)

    def add(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        salt: str | None = None,
    ) -> int:
        """Queue a prompt and return its request id. `step` computes it, `abort` ends it.

        Args:
            prompt: a text, a list of token ids, or a list of chat messages.
            sampling: the parameters.
            stream: whether its outputs yield their texts in pieces.
            salt: as in `generate`.

        Raises:
            ValueError: If the prompt cannot be served. Nothing is queued then.
        """
        params = one_each(sampling, 1)[0]
        one_of("stream", stream, (True, False))
        state = self._checked(prompt, params, stream=stream, salt=salt)
        self.soon(partial(self._start, state))
        return state.request.request_id

    def _checked(
        self, prompt: Prompt, params: SamplingParams, *, stream: bool = False, salt: str | None
    ) -> RequestState:
        """Return a request for a prompt that can be served; raise `ValueError` if it cannot."""
        salt = valid_text("salt", salt)
        return self._new_request(self.model.checked_ids(prompt), params, stream=stream, salt=salt)

    # ------------------------------------------------------------------ start and end

    def warm_up(self) -> None:
        """Compile all kernels and capture CUDA graphs now, and not at their first use.

        Graphs of steps with penalties are captured at their second use.
        """
        if self.num_unfinished:
            raise ValueError(
                f"warm_up takes an idle engine, and {self.num_unfinished} requests are queued: "
                "call it first"
            )
        if find_spec("pagedlab.accelerate"):
            from pagedlab.accelerate import warm_up

            warm_up(self)

    def close(self) -> None:
        """End the other ranks, if there are any. A second call does nothing."""
        self.model.close()

    def __exit__(self, *_: object) -> None:
        """End the other ranks at the end of a `with` block, as `close` does."""
        self.close()

    def __repr__(self) -> str:
        blocks = f"{self.pool.num_blocks} blocks of {self.pool.block_size}"
        return f"LLM({self.model.name}, {blocks}, {self.num_unfinished} requests unfinished)"


def _check_choices(**given: Any) -> None:
    """Check the arguments that have few values, before the model is loaded."""
    for name, value in given.items():
        one_of(name, value, CHOICES[name])


def _check_as_loaded(model: Model, device: str, dtype: str | torch.dtype) -> None:
    """Check that a loaded model is not asked to be on another device or in another dtype."""
    target, kind = where_to_run(device, dtype)
    here = model.device
    is_there = device == "auto" or (target.type == here.type and target.index in (None, here.index))
    if not is_there or (dtype != "auto" and kind != model.module.dtype):
        loaded = f"on {here} in {str(model.module.dtype).removeprefix('torch.')}"
        raise ValueError(f"the model is loaded already, {loaded}: leave device and dtype at 'auto'")


def _open_model(
    model: Any,
    device: str,
    dtype: str | torch.dtype,
    verbose: bool,
    ranks: int,
    attention_backend: str | PagedAttention,
) -> Model:
    """Load the model, unless it is loaded already, and share it among the ranks."""
    if ranks > 1:
        from pagedlab.distributed import open_model  # a wing: only several ranks need it

        return open_model(model, device, dtype, verbose, ranks, attention_backend, FOLLOW)
    if isinstance(model, Model):
        _check_as_loaded(model, device, dtype)
        return model
    return load_model(model, device, dtype, verbose)
