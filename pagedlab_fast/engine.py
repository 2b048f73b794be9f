"""The engine whose steps are fast."""

from __future__ import annotations

from typing import Any, Literal

from pagedlab.arguments import one_of, optional_integer
from pagedlab.engine import EagerRunner, Runner
from pagedlab.kernels import compiles_for
from pagedlab.outputs import Completion
from pagedlab.recipes.ranks import Ranked
from pagedlab.recipes.speculative import Drafter, SpeculativeLLM
from pagedlab_fast.choose import choose
from pagedlab_fast.run_ahead import RunAhead
from pagedlab_fast.runner import FastRunner
from pagedlab_fast.scheduler import FastScheduler, FastSequence
from pagedlab_fast.warm_up import warm_up

GPU_PROMPT_TOKENS = 2_048  # default of max_prompt_tokens on a GPU, see benchmarks/NOTES.md
Wanted = bool | Literal["auto"]


class LLM(SpeculativeLLM, Ranked):
    """A language model that gives the answers of `pagedlab.LLM` sooner.

    Args:
        model: as for `pagedlab.LLM`.
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

    follow = "pagedlab_fast.choose:follow"  # by its name, because other ranks call it

    def __init__(
        self,
        model: Any = None,
        *,
        cuda_graphs: Wanted = "auto",
        fused: Wanted = "auto",
        max_prompt_tokens: int | None = None,
        drafter: Drafter | None = None,
        ranks: int = 1,
        **options: Any,
    ) -> None:
        one_of("cuda_graphs", cuda_graphs, (True, False, "auto"))
        one_of("fused", fused, (True, False, "auto"))
        self._cuda_graphs = cuda_graphs
        self._fused = fused
        self._streams = True  # whether new sequences are read token by token
        self._max_prompt_tokens = optional_integer("max_prompt_tokens", max_prompt_tokens, 1)
        given = {"scheduler": FastScheduler, "runner": self._make_runner} | options
        super().__init__(model, drafter=drafter, ranks=ranks, **given)
        if compiles_for(self.model.device):
            from pagedlab_fast.sampling import sample_rows  # needs Triton

            self.sample_rows = sample_rows

    def new_sequence(self, *fields: Any, **options: Any) -> FastSequence:
        """Make a sequence. That of a text of `generate` is read when it is complete."""
        return FastSequence(*fields, **options | {"streaming": self._streams})

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
        is_on_gpu = self.model.device.type == "cuda"
        limit = self._max_prompt_tokens or (GPU_PROMPT_TOKENS if is_on_gpu else None)
        if isinstance(scheduler, FastScheduler) and limit is not None:
            scheduler.max_prompt_tokens = limit
        return scheduler

    @staticmethod
    def _make_runner(llm: LLM) -> Runner:
        """Take a faster forward pass and steps that run ahead, as far as they suit the device."""
        chosen = choose(
            llm.model,
            llm.cache,
            llm.attend,
            llm.scheduler,
            fused=llm._fused,
            cuda_graphs=llm._cuda_graphs,
        )
        llm.forward = chosen.forward
        if chosen.run_ahead is None:
            return EagerRunner(llm)
        # a drafter needs to know the tokens before
        return FastRunner(llm, chosen.run_ahead, launches=llm.drafter is None)

    @property
    def run_ahead(self) -> RunAhead | None:
        """Launches several steps ahead of the host; None if each step waits for the one before."""
        return self.runner.run_ahead if isinstance(self.runner, FastRunner) else None

    def warm_up(self) -> None:
        """Compile all kernels and capture CUDA graphs now, and not at their first use.

        Graphs of steps with penalties are captured at their second use.
        """
        if self.num_unfinished:
            raise ValueError(
                f"warm_up takes an idle engine, and {self.num_unfinished} requests are queued: "
                "call it first"
            )
        warm_up(self)
