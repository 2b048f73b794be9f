"""What the engine hands back: texts as they grow, and the figures of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pagedlab.detokenizer import Detokenizer
from pagedlab.scheduler import Schedule, Sequence
from pagedlab.speculative import Checked


@dataclass
class Output:
    """One text. It grows while its request runs; `finish_reason` is then None, and later says why it ended.

    "stop": the model ended it, or a stop string did. "length": max_tokens or the model's context is used up.
    "abort": somebody called `abort`. cumulative_logprob: sum of the tokens' log-probabilities (natural log).
    score: of a beam that has ended, its log-probability over its length to the power of length_penalty.
    detokenizer: hands the text out in pieces; None where nobody asked for that, and there are no stop strings.
    """

    _sequence: Sequence
    detokenizer: Detokenizer | None
    _decode: Callable[[list[int]], str]

    @property
    def token_ids(self) -> list[int]:
        """The new tokens, the end-of-text token included if the model wrote one."""
        return self._sequence.output_ids

    @property
    def text(self) -> str:
        """The new text, without special tokens, cut before the stop string that ended it."""
        return self.detokenizer.text if self.detokenizer else self._decode(self.token_ids)

    @property
    def finish_reason(self) -> str | None:
        return self._sequence.finish_reason

    @property
    def cumulative_logprob(self) -> float:
        return self._sequence.cumulative_logprob

    @property
    def score(self) -> float | None:
        return self._sequence.score

    def __repr__(self) -> str:
        return f"Output({self.text!r}, {len(self.token_ids)} tokens, finish_reason={self.finish_reason!r})"


@dataclass
class Completion:
    """What came of one prompt: `n` outputs, or the beams with the best first. `finished` once every one of them is.

    added and times: when the request came, and when its texts took their first, second, ... token, on the clock of
    `time.perf_counter`. So the time to first token is `times[0] - added`.
    """

    request_id: int
    prompt_token_ids: list[int]
    outputs: list[Output]
    added: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)


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

    def record(self, plan: Schedule, new_tokens: int, cached_tokens: int, blocks_used: int, seconds: float) -> None:
        """Count a step of that plan. cached_tokens and blocks_used are the totals after it."""
        self.steps += plan.passes
        for _, sequence, start, stop in plan.chunks:
            self.prompt_tokens += max(0, min(stop, sequence.num_prompt_tokens) - start)
        self.output_tokens += new_tokens
        self.preemptions += len(plan.preempted)
        self.swaps += sum(how == "swap" for _, how in plan.preempted)
        self.cached_tokens, self.blocks_used = cached_tokens, blocks_used
        self.seconds += seconds

    def record_drafts(self, checked: list[Checked]) -> None:
        """Count the drafts that a step checked."""
        self.drafts += len(checked)
        self.drafted_tokens += sum(len(draft.tokens) for draft in checked)
        self.accepted_tokens += sum(draft.accepted for draft in checked)

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
