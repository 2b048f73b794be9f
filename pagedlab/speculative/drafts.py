"""Who proposes: what a drafter is asked and answers, and two of them, by looking up and by a
smaller model.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Protocol

import torch

from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks
from pagedlab.interrupts import allowed_interrupts
from pagedlab.model import Model, load_model
from pagedlab.prefix import hash_chain
from pagedlab.sampler import sample_step
from pagedlab.sampling import probabilities
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Chunk, Request, Sequence
from pagedlab.validation import integer

# Draws for one token must not depend on each other, so each kind has a stream of its own beside the
# plain one.
DRAFT_STREAM, ACCEPT_STREAM = 0x5851F42D4C957F2D, 0x14057B7EF767814F


class Draft(NamedTuple):
    """Proposed tokens, and the distributions [n, V] that they were drawn from; None if they are
    certain.
    """

    tokens: list[int]
    probs: torch.Tensor | None = None


class Ask(NamedTuple):
    """Propose up to `limit` tokens, at least one, behind a text of which all but the last token is
    computed.
    """

    request: Request
    text: Sequence
    params: SamplingParams
    limit: int


class Drafter(Protocol):
    """Who proposes: `PromptLookup`, `DraftModel`, or a class of your own with these three."""

    k: int

    def attach(self, llm: Any, block_size: int) -> int:
        """Take note of the engine, before its pool is made; return the bytes that each block of it
        costs here.
        """
        return 0  # nothing to prepare, and no memory

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """One draft an ask, in order; empty ones are fine."""


class Checked(NamedTuple):
    """A draft that a step checked: its tokens, the first at `position`, and how many of them were
    accepted.
    """

    text: str
    position: int
    tokens: list[int]
    accepted: int


class PromptLookup(Drafter):
    """Proposes what came last time: the k tokens behind the latest earlier place that ends like the
    text does now.

    Tries endings of max_ngram tokens first, then shorter ones, down to min_ngram. No model, no
    memory; good where the answer copies from the prompt or repeats itself.
    """

    def __init__(self, k: int = 4, max_ngram: int = 3, min_ngram: int = 1) -> None:
        self.k = integer("k, the tokens of a draft,", k, 1)
        self.min_ngram = integer("min_ngram", min_ngram, 1)
        self.max_ngram = integer("max_ngram", max_ngram, self.min_ngram)

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """What followed the latest place that looks like the end of each text."""
        return [Draft(self.look_up(ask.text.token_ids, ask.limit)) for ask in asks]

    def look_up(self, token_ids: list[int], limit: int) -> list[int]:
        """Up to `limit` tokens, none if no ending was seen before."""
        # A character a token: Python searches a string of 2,000 in 12 us, and takes 400 for a list
        # of them.
        text = array("I", token_ids).tobytes().decode("utf-32-le", "surrogatepass")
        for n in range(min(self.max_ngram, len(text) - 1), self.min_ngram - 1, -1):
            start = text.rfind(text[-n:], 0, -1)  # the latest place but the end itself
            if start >= 0:
                # What follows may reach the end of the text; there it goes on with the draft
                # itself.
                longer = token_ids[start + n :]
                while len(longer) < limit:
                    longer = longer + longer
                return longer[:limit]
        return []


class DraftModel(Drafter):
    """Proposes what a smaller model with the same tokenizer would write, k tokens one by one.

    it forks the text's table, writes behind it in fresh blocks, and frees the fork. What stays is
    its KV of full blocks, found again by their names as in prefix.py; the tokens behind them are
    read anew each time.

    Args:
        model: what `LLM` takes. Its KV lies in a cache of its own that is addressed by the engine's
            block ids. To propose,
    """

    def __init__(self, model: Any, k: int = 4) -> None:
        self.k = integer("k, the tokens of a draft,", k, 1)
        self._source = model

    def attach(self, llm: Any, block_size: int) -> int:
        """Load the model and see that it speaks the engine's language: `ValueError` if it
        does not.
        """
        source, device = self._source, str(llm.model.device)
        self.model = (
            source
            if isinstance(source, Model)
            else load_model(source, device, llm.model.module.dtype, False)
        )
        if self.model.tokenizer.get_vocab() != llm.model.tokenizer.get_vocab():
            why = "their vocabularies differ, so a token id means something else to each"
            advice = "take a smaller model of the same family"
            raise ValueError(
                f"{self.model.name} cannot draft for {llm.model.name}: {why}; {advice}"
            )
        self._llm = llm
        self._cache = self.model.kv_cache(1, block_size)
        self._held: dict[int, bytes] = {}  # the name of what each block holds in this cache
        return self._cache.bytes_per_block

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """k passes of the draft model over all texts at once; a text for which blocks are short
        gets none.
        """
        llm, budget = self._llm, self._llm.scheduler.max_batch_tokens
        if self._cache.keys.shape[1] != llm.pool.num_blocks:
            self._cache = self.model.kv_cache(llm.pool.num_blocks, llm.pool.block_size)
        params = {ask.request.request_id: ask.params for ask in asks}
        branches: dict[Sequence, Ask] = {}
        probs: dict[Sequence, list[torch.Tensor]] = defaultdict(list)
        chunks: list[Chunk] = []
        try:
            for ask in asks:
                branch = self._fork(ask.text)
                branches[branch] = ask
                if chunk := self._catch_up(ask, branch, budget):
                    chunks.append(chunk)
                    budget -= chunk.stop - chunk.start
            while chunks:
                with allowed_interrupts():
                    logits = self.model.forward(
                        build_batch(chunks, self.model.device), self._cache, llm.attend
                    )
                # Models of a family pad their vocabularies differently: no draft goes beyond the
                # target's.
                logits = torch.nn.functional.pad(
                    logits, (0, llm.model.vocab_size - logits.shape[1]), value=-torch.inf
                )
                draws, _ = sample_step(logits, [chunk for chunk in chunks if chunk.is_last], params)
                asked = [branches[draw.sequence].params for draw in draws]
                warm = [row for row, p in enumerate(asked) if p.temperature > 0]
                for row, q in zip(
                    warm, probabilities(logits[warm], [asked[row] for row in warm]), strict=True
                ):
                    probs[draws[row].sequence].append(q)
                chunks = []
                for draw in draws:
                    branch = draw.sequence
                    branch.token_ids += draw.tokens
                    length, ask = len(branch.token_ids), branches[branch]
                    if length - len(ask.text.token_ids) < ask.limit and self._room(branch):
                        chunks.append(Chunk(draw.request, branch, length - 1, length))
        except BaseException:
            self._held.clear()  # it says of some blocks that they are filled, and they may not be
            raise
        finally:
            for branch in branches:
                branch.table.free()
        stacked = {branch: torch.stack(each) for branch, each in probs.items()}
        return [
            Draft(b.token_ids[len(ask.text.token_ids) :], stacked.get(b))
            for b, ask in branches.items()
        ]

    def _fork(self, text: Sequence) -> Sequence:
        """A branch of the text: its full blocks are shared, and what the draft writes goes into
        blocks of its own.
        """
        table = text.table.fork()
        table.truncate(text.table.num_tokens // table.pool.block_size * table.pool.block_size)
        return Sequence(
            f"{text.name}'",
            table,
            text.token_ids[:],
            text.seed ^ DRAFT_STREAM,
            text.num_prompt_tokens,
        )

    def _catch_up(self, ask: Ask, branch: Sequence, budget: int) -> Chunk | None:
        """What the draft model has to read before it can go on; a long prompt takes several
        steps.
        """
        table, size = branch.table, self._llm.pool.block_size
        names = hash_chain(branch.token_ids[: table.num_tokens], size)
        read = next(
            (i for i, name in enumerate(names) if self._held.get(table.block_ids[i]) != name),
            len(names),
        )
        stop = min(len(branch.token_ids), read * size + budget)
        if (
            len(branch.token_ids) + ask.limit > self.model.max_length
            or stop <= read * size
            or not self._room(branch)
        ):
            return None
        for i in range(read, min(len(names), stop // size)):
            # From now on, for the siblings too: a layer's KV of all texts is written before anybody
            # attends to it.
            self._held[table.block_ids[i]] = names[i]
        return Chunk(ask.request, branch, read * size, stop)

    def _room(self, branch: Sequence) -> bool:
        """Give slots to the branch's tokens, if there are blocks for them."""
        before = len(branch.table.block_ids)
        try:
            branch.table.append(branch.num_uncomputed)
        except OutOfBlocks:
            return False
        for block_id in branch.table.block_ids[before:]:
            self._held.pop(block_id, None)  # about to be written over
        return True
