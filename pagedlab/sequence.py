"""What the scheduler deals in: a request, its sequences, and how many tokens each sequence computes
next.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.blocks import BlockTable, blocks_for


@dataclass(eq=False)
class Sequence:
    """A sequence of tokens that is being generated, and the blocks that hold its KV.

    Args:
        name: what people see, "r0" or "r0.2".
        table: the blocks; they hold the KV of the first `table.num_tokens` tokens.
        token_ids: the prompt, then the new tokens.
        seed: what its tokens are sampled with.
        num_prompt_tokens: how many of the tokens are the prompt's.
        finish_reason: "stop", "length" or "abort"; None while it runs.
        cumulative_logprob: the sum over its new tokens.
        score: of a beam that has ended.
        num_draft: tokens at the end that are only proposed, see speculative/; none between steps.
        num_ahead: tokens after the end that a device samples at the moment, see
            accelerate/run_ahead.py.
        score_from: the prompt's tokens after this position still want a log-probability; None if
            none do.
    """

    name: str
    table: BlockTable
    token_ids: list[int]
    seed: int
    num_prompt_tokens: int
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0
    score: float | None = None
    num_draft: int = 0
    num_ahead: int = 0
    score_from: int | None = None

    @property
    def length(self) -> int:
        """Tokens that it has, with those proposed and those that a device samples at the moment."""
        return len(self.token_ids) + self.num_ahead

    @property
    def num_uncomputed(self) -> int:
        """Tokens that have no KV yet: the rest of the prompt, or the one token sampled last."""
        return self.length - self.table.num_tokens

    @property
    def num_known(self) -> int:
        """Tokens that are certain: all but those that are only proposed."""
        return len(self.token_ids) - self.num_draft

    @property
    def output_ids(self) -> list[int]:
        """The new tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_outputs(self) -> int:
        """How many tokens are new."""
        return len(self.token_ids) - self.num_prompt_tokens

    def roll_back(self, accepted: int = 0) -> None:
        """Drop the drafted tokens but the first `accepted`, and release the slots of the others."""
        del self.token_ids[self.num_known + accepted :]
        self.num_draft = accepted
        self.table.truncate(min(len(self.token_ids), self.table.num_tokens))

    def drop_draft(self) -> list[int]:
        """Take the drafted tokens off the end, and return them. Their slots stay."""
        dropped = self.token_ids[self.num_known :]
        del self.token_ids[self.num_known :]
        self.num_draft = 0
        return dropped


class SwappedKV(NamedTuple):
    """The KV of one request in host memory.

    Args:
        contents: what the swapper returned.
        num_blocks: how many blocks it holds.
        tables: of each sequence, the places of its blocks among these, and its number of tokens.
    """

    contents: Any
    num_blocks: int
    tables: list[tuple[Sequence, list[int], int]]


@dataclass(eq=False)
class Request:
    """One prompt and the sequences that continue it.

    There is one sequence until the prompt is computed.

    Args:
        request_id: counts up, so it says who came first.
        sequences: those that exist now.
        num_sequences: how many there will be.
        max_tokens: new tokens of each sequence, at most.
        salt: only requests with the same salt share cached blocks.
        swapped_kv: its KV, while the request is swapped out.
        read_at_end: the caller waits for the whole answer, not for each token.
    """

    request_id: int
    sequences: list[Sequence]
    num_sequences: int
    max_tokens: int
    salt: str | None = None
    swapped_kv: SwappedKV | None = None
    read_at_end: bool = False

    @property
    def num_to_fork(self) -> int:
        """Sequences that are still to be forked from the first one, once its prompt is computed."""
        return self.num_sequences - len(self.sequences)

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that go on."""
        return [seq for seq in self.sequences if seq.finish_reason is None]

    @property
    def to_compute(self) -> list[Sequence]:
        """Unfinished sequences whose last token is not sampled yet: that one is never fed back."""
        return [seq for seq in self.unfinished if seq.num_outputs + seq.num_ahead < self.max_tokens]

    def blocks_at_most(self, block_size: int) -> int:
        """Blocks in the worst case: the full blocks of the prompt are shared, each sequence has the
        others alone.

        The token sampled last is never fed back, so it needs no slot.
        """
        num_prompt_tokens = self.sequences[0].num_prompt_tokens
        shared = num_prompt_tokens // block_size
        each = blocks_for(num_prompt_tokens + self.max_tokens - 1, block_size)
        return shared + self.num_sequences * (each - shared)

    def blocks_now(self, block_size: int) -> int:
        """Blocks for the tokens that its sequences have now, those not yet computed included."""
        first, *others = self.unfinished
        total = blocks_for(first.length, block_size)
        for seq in others:
            shared = common_prefix(first, seq) // block_size
            total += blocks_for(seq.length, block_size) - shared
        return total

    def next_tokens(self, budget: int) -> list[tuple[Sequence, int]]:
        """How many tokens each sequence computes in the next step.

        The sequences of one request are sampled together: either each computes its last known
        token, or none does.

        Args:
            budget: tokens in all.
        """
        sequences = self.to_compute
        if not budget or not sequences:
            return []
        if len(sequences) == 1:
            seq = sequences[0]
            return [(seq, min(seq.num_uncomputed, budget))]
        if all(seq.num_uncomputed == 1 + seq.num_draft for seq in sequences):
            return self._sample_together(sequences, budget)
        return self._recompute_together(sequences, budget)

    def _sample_together(
        self, sequences: list[Sequence], budget: int
    ) -> list[tuple[Sequence, int]]:
        """All uncomputed tokens of all sequences, or none if the budget is too small."""
        wanted = [(seq, seq.num_uncomputed) for seq in sequences]
        if sum(num_tokens for _, num_tokens in wanted) > budget:
            return []
        return wanted

    def _recompute_together(
        self, sequences: list[Sequence], budget: int
    ) -> list[tuple[Sequence, int]]:
        """After a preemption: each sequence up to its last known token, where it waits for the
        others.
        """
        first = sequences[0]
        wanted = []
        for seq in sequences:
            num_tokens = min(seq.num_uncomputed - 1, budget)
            # the others start as forks of the first
            is_forked = seq is first or seq.table.num_tokens > 0
            if num_tokens and is_forked:
                wanted.append((seq, num_tokens))
                budget -= num_tokens
        return wanted


def common_prefix(a: Sequence, b: Sequence) -> int:
    """Tokens at the start that two sequences have in common.

    The last token of each does not count: it has no KV before the next one is sampled.
    """
    most = min(len(a.token_ids), len(b.token_ids)) - 1
    for i in range(most):
        if a.token_ids[i] != b.token_ids[i]:
            return i
    return most
