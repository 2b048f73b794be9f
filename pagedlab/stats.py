"""Figures of a run: blocks, tokens and speed."""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.scheduler import Plan


@dataclass
class Stats:
    """Figures of an engine, from the first `add` while it is idle until it is idle again.

    Args:
        num_blocks: blocks of the pool.
        bytes_per_block: bytes of a block's keys and values in all layers.
        blocks_peak: the largest number of blocks in use.
        steps: forward passes.
        prompt_tokens: prompt tokens that were computed; recomputed ones count again.
        cached_tokens: prompt tokens that were found in the prefix cache and not computed.
        output_tokens: new tokens.
        preemptions: preemptions of a sequence.
        seconds: time spent in steps.
    """

    num_blocks: int
    bytes_per_block: int
    blocks_peak: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    seconds: float = 0.0

    def record(self, plan: Plan, new_tokens: int) -> None:
        """Count a step.

        Args:
            plan: what the step computed.
            new_tokens: how many tokens were added to their sequences.
        """
        self.steps += 1
        for chunk in plan.chunks:
            num_prompt_tokens = chunk.sequence.num_prompt_tokens
            self.prompt_tokens += max(0, min(chunk.stop, num_prompt_tokens) - chunk.start)
        self.cached_tokens += sum(plan.admitted.values())
        self.output_tokens += new_tokens
        self.preemptions += len(plan.preempted)

    @property
    def bytes_peak(self) -> int:
        """Bytes of `blocks_peak` blocks."""
        return self.blocks_peak * self.bytes_per_block

    @property
    def tokens_per_second(self) -> float:
        """New tokens over all seconds spent in steps, those of prompts included."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.output_tokens} tokens in {self.seconds:.2f} s "
            f"({self.tokens_per_second:.1f} tokens/s, {self.steps} steps) "
            f"after {self.prompt_tokens} prompt tokens computed and {self.cached_tokens} cached; "
            f"peak {self.blocks_peak} of {self.num_blocks} blocks, "
            f"{self.preemptions} preemptions"
        )
