"""Figures of a run: blocks, tokens, speed."""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.runner import StepResult


@dataclass
class Stats:
    """Blocks and speed of the current busy spell, or of the last one: from the first `add` until idle again.

    prompt_tokens are those computed, again for requests that gave way; cached_tokens were found in the prefix
    cache and skipped. preemptions: how often a request gave way, and swaps: how often by swap. drafts: how often a
    draft was checked; drafted_tokens were looked at in them, and accepted_tokens agreed with.
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
        """Count a step: what it computed, how many tokens were new to their texts, and how long it took."""
        plan, drafts = result.plan, result.drafts
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
        """Tokens that a text gets from a step with a draft, on average: those accepted, and the model's own."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def bytes_peak(self) -> int:
        return self.blocks_peak * self.bytes_per_block

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the seconds spent in steps, prompts included."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.output_tokens} tokens in {self.seconds:.2f} s ({self.tokens_per_second:.1f} tokens/s, "
            f"{self.steps} steps) after {self.prompt_tokens} prompt tokens computed and {self.cached_tokens} cached; "
            f"peak {self.blocks_peak} of {self.num_blocks} blocks ({self.bytes_peak / 2**20:.1f} MiB), "
            f"now {self.blocks_used} in use"
            + (f"; {self.preemptions} times a request gave way, {self.swaps} by swap" if self.preemptions else "")
            + (f"; {self.accepted_tokens} of {self.drafted_tokens} drafted tokens accepted" if self.drafts else "")
        )
