"""The engine whose steps are fast."""

from __future__ import annotations

import atexit
import gc
from typing import Any

from pagedlab.arguments import one_of, optional_integer
from pagedlab.blocks import BlockCopy
from pagedlab.engine import EagerRunner
from pagedlab.kernels import compiles_for
from pagedlab.loading import no_collections
from pagedlab.outputs import Completion
from pagedlab.recipes.penalties import Penalties
from pagedlab.recipes.ranks import TensorParallelLLM
from pagedlab.recipes.speculative import Drafter, SpeculativeLLM
from pagedlab.sampling_params import SamplingParams
from pagedlab_fast.choose import (
    Wanted,
    choose_fused,
    is_on_gpu,
    make_runner,
    ranks_of,
    takes_graphs,
)
from pagedlab_fast.cpu_linear import is_faster, with_cpu_linear
from pagedlab_fast.runner import FastRunner
from pagedlab_fast.scheduler import FastScheduler, FastSequence
from pagedlab_fast.shapes import StepShape

GPU_PROMPT_TOKENS = 2_048  # default of max_prompt_tokens on a GPU, see benchmarks/NOTES.md


class LLM(SpeculativeLLM, TensorParallelLLM):
    """A language model that gives the answers of `pagedlab.LLM` sooner.

    Args:
        model: as for `pagedlab.LLM`. Several engines may share a `Model`.
        cuda_graphs: run several steps in one launch, without the host. Then `step` may return
            several new tokens of a sequence. "auto" turns it on where it helps.
        fused: run the model's layers in fewer kernels. "auto" turns it on where it helps.
        max_prompt_tokens: prompt tokens per step, at most, while other requests stream, and in the
            first step. None is 2,048 on a GPU and no limit on a CPU.
        drafter: proposes tokens, which the model checks; None for none.
        ranks: processes that share the model. `close` or a `with` block ends them.
        options: those of `pagedlab.LLM`, but for `runner`.

    Raises:
        ValueError: If an argument is out of range, or names something that does not exist.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        cuda_graphs: Wanted = "auto",
        fused: Wanted = "auto",
        max_prompt_tokens: int | None = None,
        drafter: Drafter | None = None,
        ranks: Any = 1,
        **options: Any,
    ) -> None:
        one_of("cuda_graphs", cuda_graphs, (True, False, "auto"))
        one_of("fused", fused, (True, False, "auto"))
        self._cuda_graphs = cuda_graphs
        self._fused = fused
        self._max_prompt_tokens = optional_integer("max_prompt_tokens", max_prompt_tokens, 1)
        self._streams = True  # whether new sequences are read token by token
        given = {"scheduler": FastScheduler, "runner": self._make_runner} | options
        super().__init__(model, drafter=drafter, ranks=ranks, **given)
        if compiles_for(self.model.device):
            from pagedlab_fast.sampling import sample_rows  # needs Triton

            self.sample_rows = sample_rows

    def shared_options(self) -> dict[str, Any]:
        """Options that the other ranks' engines get, too."""
        own = {"cuda_graphs": self._cuda_graphs, "fused": self._fused}
        return super().shared_options() | own

    def follow(self, copies: list[BlockCopy], inputs: Any) -> None:
        """On a rank other than 0: do this rank's part of a step, or of a window."""
        if isinstance(self.runner, FastRunner) and isinstance(inputs[0], StepShape):
            self.cache.copy_blocks(copies)
            self.runner.decoder.play(inputs)
        else:
            super().follow(copies, inputs)

    def new_sequence(self, *fields: Any, **options: Any) -> FastSequence:
        """Make a sequence. That of a text of `generate` is read when it is complete."""
        return FastSequence(*fields, **options | {"streaming": self._streams})

    # A full collection looks at every token of every prompt, and takes up to 0.1 s.
    @no_collections()
    def generate(self, *arguments: Any, **options: Any) -> list[Completion]:
        """Continue prompts, as `pagedlab.LLM.generate` does."""
        self._streams = False
        try:
            return super().generate(*arguments, **options)
        finally:
            self._streams = True

    def make_scheduler(self) -> Any:
        """Make a scheduler over the pool, with the limit of prompt tokens."""
        scheduler = super().make_scheduler()
        is_cuda = self.model.device.type == "cuda"
        limit = self._max_prompt_tokens or (GPU_PROMPT_TOKENS if is_cuda else None)
        if limit and isinstance(scheduler, FastScheduler):
            scheduler.max_prompt_tokens = limit
        return scheduler

    @staticmethod
    def _make_runner(llm: LLM) -> EagerRunner:
        """Take a faster forward pass and steps that run ahead, as far as they suit the device."""
        model = llm.model
        has_graphs = takes_graphs(llm._cuda_graphs, model, llm.attend, llm.scheduler)
        ranks = ranks_of(llm)
        fused = choose_fused(model, llm._fused, is_on_gpu(model, llm.attend), ranks)
        if fused is not None and ranks is None:
            llm.forward = fused.forward
        elif fused is None and llm._fused and is_faster(model):
            llm.forward = with_cpu_linear(model).forward
        return make_runner(llm, fused) if has_graphs else EagerRunner(llm)

    def warm_up(self) -> None:
        """Compile all kernels and capture CUDA graphs now, and not at their first use.

        Graphs of steps with penalties are captured at their second use.
        """
        if self.num_unfinished:
            raise ValueError(
                f"warm_up takes an idle engine, and {self.num_unfinished} requests are queued: "
                "call it first"
            )
        if isinstance(self.runner, FastRunner):
            with self.whole():  # if a rank is lost, the next call drops what is cached
                self.runner.warm_up()
        for num_tokens in [16] if self.model.device.type == "cpu" else [16, 1024]:
            self._run_requests(num_tokens)
        gc.collect()
        atexit.register(gc.unfreeze)  # else nanobind, Triton's binding, reports leaks
        gc.freeze()  # what is there stays: the collector need not look through it between steps

    def _run_requests(self, num_tokens: int) -> None:
        """Run requests for what is no part of a graph: sampling by the host, copies of blocks.

        Their prompts have this many tokens, or as many as fit. A tiny pool takes none.
        """
        fit = self.num_blocks * self.block_size // 4
        length = min(num_tokens - 1, self.max_batch_tokens, self.model.max_length, fit) - 4
        if length < 1:
            return
        asked: list[dict[str, Any]] = [
            {},
            {"logprobs": 0},
            {"n": min(2, self.max_sequences), "temperature": 1.0},  # copies a block
            {"adjust": Penalties(repetition=1.1)},
        ]
        requests = [SamplingParams(max_tokens=4, **each) for each in asked]
        # One request that needs the host brings the others to the host, too.
        for batch in requests[:3], requests[3:]:
            self.generate([[i] * length for i in range(len(batch))], batch)
