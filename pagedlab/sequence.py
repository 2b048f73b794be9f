"""What the scheduler deals in: a request, the texts that answer it, and how many tokens each should compute next."""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from pagedlab.blocks import BlockTable, blocks_for


@dataclass(eq=False)
class Sequence:
    """One text being written: its tokens, and the blocks that hold the KV of the first `table.num_tokens`."""

    name: str
    table: BlockTable
    token_ids: list[int]
    seed: int
    num_prompt_tokens: int
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0
    score: float | None = None  # of a beam that has ended
    num_draft: int = 0  # tokens at the end that are only proposed, see speculative/; none between steps
    num_ahead: int = 0  # tokens behind the end that a device is drawing, see accelerate/windows.py
    score_from: int | None = None  # the prompt's tokens behind this position still want a log-probability

    @property
    def length(self) -> int:
        """Tokens that it has, proposed ones and those under way included."""
        return len(self.token_ids) + self.num_ahead

    @property
    def num_uncomputed(self) -> int:
        """Tokens that have no KV yet: the rest of the prompt, or the one token sampled last."""
        return self.length - self.table.num_tokens

    @property
    def num_known(self) -> int:
        """Tokens that stand, as against those that are only proposed."""
        return len(self.token_ids) - self.num_draft

    def roll_back(self, accepted: int = 0) -> None:
        """Forget the drafted tokens but the first `accepted`, and the slots that they had."""
        del self.token_ids[self.num_known + accepted :]
        self.num_draft = accepted
        self.table.truncate(min(len(self.token_ids), self.table.num_tokens))

    def drop_draft(self) -> list[int]:
        """Take the drafted tokens off the end, and return them; their slots stay."""
        dropped, self.token_ids[self.num_known :] = self.token_ids[self.num_known :], []
        self.num_draft = 0
        return dropped

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


class Parked(NamedTuple):
    """A request's KV in host memory. Each table is (text, places of its blocks among the parked ones, tokens)."""

    contents: Any
    num_blocks: int
    tables: list[tuple[Sequence, list[int], int]]


@dataclass(eq=False)
class Request:
    """One prompt and the `num_texts` texts that continue it. They are one sequence until the prompt is computed."""

    request_id: int
    sequences: list[Sequence]
    num_texts: int
    max_tokens: int
    salt: str | None = None  # only requests with the same salt share cached blocks
    parked: Parked | None = None  # while it is swapped out
    read_at_end: bool = False  # nobody waits for its next token, only for all of it

    def blocks_at_most(self, block_size: int) -> int:
        """Blocks in the worst case: the full blocks of the prompt are shared, the others each text's own.

        The token sampled last is never fed back, so it needs no slot.
        """
        prompt = self.sequences[0].num_prompt_tokens
        shared = prompt // block_size
        return shared + self.num_texts * (blocks_for(prompt + self.max_tokens - 1, block_size) - shared)

    def blocks_now(self, block_size: int) -> int:
        """Blocks for the tokens that its texts have now, those not yet computed included."""
        first, *others = self.unfinished
        own = (blocks_for(text.length, block_size) - common_prefix(first, text) // block_size for text in others)
        return blocks_for(first.length, block_size) + sum(own)

    @property
    def texts_to_fork(self) -> int:
        """Texts that are still to be forked from the first one, once its prompt is computed."""
        return self.num_texts - len(self.sequences)

    @property
    def unfinished(self) -> list[Sequence]:
        return [s for s in self.sequences if s.finish_reason is None]

    @property
    def to_compute(self) -> list[Sequence]:
        """Unfinished texts but those whose last token is under way: it is never fed back."""
        most = self.max_tokens
        texts = [t for t in self.sequences if len(t.token_ids) + t.num_ahead - t.num_prompt_tokens < most]
        return [text for text in texts if text.finish_reason is None]

    def next_tokens(self, budget: int) -> list[tuple[Sequence, int]]:
        """How many tokens each text should compute in the next step, `budget` in all at most.

        Texts of one request are sampled together. If they gave way and are computed again, each stops before its
        last token until all are there.
        """
        texts = self.to_compute
        if not budget or not texts:
            return []
        if len(texts) == 1:
            return [(texts[0], min(texts[0].num_uncomputed, budget))]
        if all(text.num_uncomputed == 1 + text.num_draft for text in texts):
            wanted = [(text, text.num_uncomputed) for text in texts]
            return wanted if sum(n for _, n in wanted) <= budget else []
        wanted = []
        for text in texts:
            n = min(text.num_uncomputed - 1, budget)
            if n and (text.table.num_tokens or text is texts[0]):  # the others start as forks of the first
                wanted.append((text, n))
                budget -= n
        return wanted


def common_prefix(a: Sequence, b: Sequence) -> int:
    """Tokens that two texts begin with alike, but for the last of each, which has no KV before it is sampled from."""
    pairs = zip(a.token_ids[:-1], b.token_ids[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
