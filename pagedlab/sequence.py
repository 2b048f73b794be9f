"""Sequences and requests, for which the scheduler plans, and the tokens that each computes next."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.blocks import BlockTable, blocks_for


@dataclass(eq=False)
class Sequence:
    """A sequence of tokens that is being generated, and the blocks that hold its KV.

    Args:
        name: the name that users see, "r0" or "r0.2".
        table: the block table; it holds the KV of the first `table.num_tokens` tokens.
        token_ids: the prompt, then the new tokens.
        seed: the seed of its samples.
        num_prompt_tokens: tokens of the prompt.
        finish_reason: "stop", "length", "abort" or "error"; None while the sequence is unfinished.
        cumulative_logprob: the sum of the new tokens' log-probabilities (natural log).
        num_draft: drafted tokens at the end of `token_ids`, see speculative/; 0 between steps.
        num_ahead: tokens after the end that the device samples now, see accelerate/run_ahead.py.
    """

    name: str
    table: BlockTable
    token_ids: list[int]
    seed: int
    num_prompt_tokens: int
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0
    num_draft: int = 0
    num_ahead: int = 0

    @property
    def length(self) -> int:
        """Tokens of the sequence, with drafted tokens and those that the device samples now."""
        return len(self.token_ids) + self.num_ahead

    @property
    def num_uncomputed(self) -> int:
        """Tokens without KV: the rest of the prompt, or the token that was sampled last."""
        return self.length - self.table.num_tokens

    @property
    def num_known(self) -> int:
        """Tokens that are final: all of `token_ids` except the drafted ones."""
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
        """Drop the drafted tokens after the first `accepted`, and free their slots."""
        del self.token_ids[self.num_known + accepted :]
        self.num_draft = accepted
        self.table.truncate(min(len(self.token_ids), self.table.num_tokens))

    def drop_draft(self) -> list[int]:
        """Remove the drafted tokens and return them. The table keeps their slots."""
        dropped = self.token_ids[self.num_known :]
        del self.token_ids[self.num_known :]
        self.num_draft = 0
        return dropped


class SwappedTable(NamedTuple):
    """The block table of one sequence that is swapped out.

    Args:
        sequence: the sequence.
        places: for each of its blocks, the index among the swapped blocks.
        num_tokens: tokens in the table.
    """

    sequence: Sequence
    places: list[int]
    num_tokens: int


class SwappedKV(NamedTuple):
    """The KV of one request in CPU memory.

    Args:
        contents: the blocks' contents, as `Swapper.swap_out` returned them.
        num_blocks: how many blocks these are.
        tables: the block tables of the request's sequences.
    """

    contents: Any
    num_blocks: int
    tables: list[SwappedTable]


@dataclass(eq=False)
class Request:
    """One prompt and the sequences that continue it.

    There is one sequence until the prompt has been computed.

    Args:
        request_id: a running number, so the order of arrival.
        sequences: the sequences that exist now.
        num_sequences: sequences that the request asks for.
        max_tokens: new tokens of each sequence, at most.
        salt: requests share cached blocks only with requests of the same salt.
        swapped_kv: the KV in CPU memory while the request is swapped out.
        streaming: whether the caller reads each token at once. It is False for `generate`, which
            returns all tokens at the end.
    """

    request_id: int
    sequences: list[Sequence]
    num_sequences: int
    max_tokens: int
    salt: str | None = None
    swapped_kv: SwappedKV | None = None
    streaming: bool = True

    @property
    def num_to_fork(self) -> int:
        """Sequences that are forked from the first one when its prompt has been computed."""
        return self.num_sequences - len(self.sequences)

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that are not finished."""
        return [seq for seq in self.sequences if seq.finish_reason is None]

    @property
    def to_compute(self) -> list[Sequence]:
        """The unfinished sequences that still need tokens.

        A sequence that has its last token is left out: that token's KV is never needed.
        """
        return [seq for seq in self.unfinished if seq.num_outputs + seq.num_ahead < self.max_tokens]

    def blocks_at_most(self, block_size: int) -> int:
        """Blocks that the request needs at its end, if no sequence ends early.

        The sequences share the full blocks of the prompt. The last token needs no slot, because its
        KV is never needed.
        """
        num_prompt_tokens = self.sequences[0].num_prompt_tokens
        shared = num_prompt_tokens // block_size
        each = blocks_for(num_prompt_tokens + self.max_tokens - 1, block_size)
        return shared + self.num_sequences * (each - shared)

    def blocks_now(self, block_size: int) -> int:
        """Blocks for all tokens that the sequences have now, computed or not."""
        first, *others = self.unfinished
        total = blocks_for(first.length, block_size)
        for seq in others:
            shared = common_prefix(first, seq) // block_size
            total += blocks_for(seq.length, block_size) - shared
        return total

    def next_tokens(self, budget: int) -> list[tuple[Sequence, int]]:
        """Return how many tokens each sequence computes in the next step.

        The sequences of a request are sampled in the same step: either all compute their last known
        token, or none does.

        Args:
            budget: tokens for all sequences together.
        """
        sequences = self.to_compute
        if not budget or not sequences:
            return []
        if len(sequences) == 1:
            seq = sequences[0]
            return [(seq, min(seq.num_uncomputed, budget))]
        if all(seq.num_uncomputed == 1 + seq.num_draft for seq in sequences):
            return self._decode_together(sequences, budget)
        return self._recompute_together(sequences, budget)

    def _decode_together(
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
        """Recompute preempted sequences, each up to the token before its last known one.

        There it waits for the others, so that all are sampled in the same step.
        """
        first = sequences[0]
        wanted = []
        for seq in sequences:
            num_tokens = min(seq.num_uncomputed - 1, budget)
            is_forked = seq is first or seq.table.num_tokens > 0  # the others fork from the first
            if num_tokens and is_forked:
                wanted.append((seq, num_tokens))
                budget -= num_tokens
        return wanted


def common_prefix(a: Sequence, b: Sequence) -> int:
    """Number of tokens at the start that are equal in both sequences.

    The last token of each is not counted, because it has no KV yet.
    """
    most = min(len(a.token_ids), len(b.token_ids)) - 1
    for i in range(most):
        if a.token_ids[i] != b.token_ids[i]:
            return i
    return most
