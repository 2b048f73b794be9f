"""Figures of a run: blocks, tokens and speed."""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.runner import StepResult


@dataclass
class Stats:
    """Figures from the first `add` of an idle engine until it is idle again.

    Args:
        num_blocks: blocks of the pool.
        bytes_per_block: keys and values of all layers.
        blocks_used: blocks in use now.
        blocks_peak: blocks in use at most.
        steps: forward passes.
        prompt_tokens: prompt tokens that were computed, those of preempted requests again.
        cached_tokens: prompt tokens that the prefix cache had, so they were skipped.
        output_tokens: new tokens.
        preemptions: how often a request was preempted.
        swaps: how often that was by swap.
        drafts: how often a draft was checked.
        drafted_tokens: tokens in those drafts.
        accepted_tokens: tokens of them that the model agreed with.
        seconds: time spent in steps.
    """

    num_blocks: int
    bytes_per_block: int
    blocks_used: int = 0
    blocks_peak: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    seconds: float = 0.0

    def record(self, result: StepResult, new_tokens: int, seconds: float) -> None:
        """Count a step.

        Args:
            result: what it computed.
            new_tokens: how many tokens were added to their sequences.
            seconds: how long it took.
        """
        plan = result.plan
        drafts = result.drafts
        self.steps += plan.passes
        for _, sequence, start, stop in plan.chunks:
            self.prompt_tokens += max(0, min(stop, sequence.num_prompt_tokens) - start)
        self.output_tokens += new_tokens
        self.preemptions += len(plan.preempted)
        self.swaps += sum(how == "swap" for _, how in plan.preempted)
        self.seconds += seconds
        self.drafts += len(drafts)
        self.drafted_tokens += sum(len(draft.tokens) for draft in drafts)
        self.accepted_tokens += sum(draft.accepted for draft in drafts)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step with a draft adds on average: the accepted ones, and one of the
        model's own.
        """
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def bytes_peak(self) -> int:
        """Bytes of the blocks in use, at most."""
        return self.blocks_peak * self.bytes_per_block

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the seconds spent in steps, prompts included."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        said = (
            f"{self.output_tokens} tokens in {self.seconds:.2f} s ({self.tokens_per_second:.1f} "
            "tokens/s, "
            f"{self.steps} steps) after {self.prompt_tokens} prompt tokens computed and "
            f"{self.cached_tokens} cached; "
            f"peak {self.blocks_peak} of {self.num_blocks} blocks ({self.bytes_peak / 2**20:.1f} "
            "MiB), "
            f"now {self.blocks_used} in use"
        )
        if self.preemptions:
            said += f"; {self.preemptions} preemptions, {self.swaps} by swap"
        if self.drafts:
            said += f"; {self.accepted_tokens} of {self.drafted_tokens} drafted tokens accepted"
        return said
