"""Drafters: `PromptLookup` looks tokens up in the sequence, `DraftModel` runs a smaller model."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks
from pagedlab.model import Model, load_model
from pagedlab.prefix import hash_chain
from pagedlab.sampler import sample_step
from pagedlab.sampling import NO_TOKEN, probabilities
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Chunk, Request, Sequence
from pagedlab.validation import integer

# Random numbers for one token must not depend on each other, so each use has its own stream.
DRAFT_STREAM = 0x5851F42D4C957F2D
ACCEPT_STREAM = 0x14057B7EF767814F


class Draft(NamedTuple):
    """Proposed tokens.

    Args:
        tokens: n token ids.
        probs: [n, V], the distributions that they were sampled from; None if they are certain.
    """

    tokens: list[int]
    probs: torch.Tensor | None = None


class Ask(NamedTuple):
    """A request for a draft.

    Args:
        request: the request of the sequence.
        sequence: the sequence. All its tokens but the last are computed.
        params: the parameters of the request.
        limit: how many tokens may be proposed, at least 1.
    """

    request: Request
    sequence: Sequence
    params: SamplingParams
    limit: int


class Drafter(Protocol):
    """Proposes tokens: `PromptLookup`, `DraftModel`, or your own class with these three members."""

    k: int

    def attach(self, llm: Any, block_size: int) -> int:
        """Prepare for an engine, before its pool is made.

        Args:
            llm: the engine.
            block_size: tokens a block.

        Returns:
            The bytes of memory that the drafter needs for each of the engine's blocks.
        """
        return 0

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """Return one draft for each ask, in order. A draft may be empty."""


class Checked(NamedTuple):
    """A draft that a step has checked.

    Args:
        name: the name of the sequence.
        position: the position of the first drafted token.
        tokens: the drafted tokens.
        accepted: how many of them were accepted.
    """

    name: str
    position: int
    tokens: list[int]
    accepted: int


class PromptLookup(Drafter):
    """Proposes the k tokens that followed the latest earlier place that looks like the end.

    It compares the last max_ngram tokens first, then fewer, down to min_ngram. It needs no model
    and no memory, and is good if the answer copies from the prompt or repeats itself.

    Args:
        k: tokens of a draft.
        max_ngram, min_ngram: how many of the last tokens are compared.
    """

    def __init__(self, k: int = 4, max_ngram: int = 3, min_ngram: int = 1) -> None:
        self.k = integer("k, the tokens of a draft,", k, 1)
        self.min_ngram = integer("min_ngram", min_ngram, 1)
        self.max_ngram = integer("max_ngram", max_ngram, self.min_ngram)

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """Look up a draft for each sequence."""
        return [Draft(self.look_up(ask.sequence.token_ids, ask.limit)) for ask in asks]

    def look_up(self, token_ids: list[int], limit: int) -> list[int]:
        """Return `limit` tokens, or none if the last tokens were not seen before.

        Args:
            token_ids: the tokens of a sequence.
            limit: how many tokens to return.
        """
        # One character a token: Python searches a string of 2,000 in 12 us, and a list in 400.
        text = array("I", token_ids).tobytes().decode("utf-32-le", "surrogatepass")
        for n in range(min(self.max_ngram, len(text) - 1), self.min_ngram - 1, -1):
            start = text.rfind(text[-n:], 0, -1)  # the latest place before the end itself
            if start >= 0:
                found = token_ids[start + n :]
                while len(found) < limit:  # it reached the end: go on with the draft itself
                    found = found + found
                return found[:limit]
        return []


@dataclass
class Branch:
    """A fork of a sequence, to which the draft model appends tokens.

    Args:
        ask: the request for the draft.
        sequence: the fork.
        probs: the distribution [V] of each appended token, if it was sampled.
    """

    ask: Ask
    sequence: Sequence
    probs: list[torch.Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The tokens that were appended."""
        return self.sequence.token_ids[len(self.ask.sequence.token_ids) :]

    def draft(self) -> Draft:
        return Draft(self.tokens, torch.stack(self.probs) if self.probs else None)


class DraftModel(Drafter):
    """Proposes k tokens that a smaller model with the same tokenizer writes, one by one.

    The model has its own KV cache, which is addressed by the engine's block ids. To propose tokens,
    it forks the sequence's table, writes into fresh blocks, and frees the fork. The KV of full
    blocks stays, and their hashes tell which are still valid, as in prefix.py. Later tokens are
    computed again each time.

    Args:
        model: hub id, folder or `Model`, as for `LLM`.
        k: tokens of a draft.
    """

    def __init__(self, model: Any, k: int = 4) -> None:
        self.k = integer("k, the tokens of a draft,", k, 1)
        self._source = model

    def attach(self, llm: Any, block_size: int) -> int:
        """Load the model. `ValueError` if its vocabulary is not the one of the engine's model."""
        self.model = self._source
        if not isinstance(self.model, Model):
            device = str(llm.model.device)
            self.model = load_model(self._source, device, llm.model.module.dtype, False)
        if self.model.tokenizer.get_vocab() != llm.model.tokenizer.get_vocab():
            why = "their vocabularies differ, so a token id means something else to each"
            advice = "take a smaller model of the same family"
            raise ValueError(
                f"{self.model.name} cannot draft for {llm.model.name}: {why}; {advice}"
            )
        self._llm = llm
        self._cache = self.model.kv_cache(1, block_size)
        self._pool: Any = None  # whose block ids address the cache
        self._held: dict[int, bytes] = {}  # block id -> hash of the tokens whose KV it holds here
        return self._cache.bytes_per_block

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """Run up to k forward passes over all sequences at once.

        A sequence for which there are not enough blocks gets an empty draft.
        """
        if self._pool is not self._llm.pool:
            self._begin(self._llm.pool)
        branches: dict[Sequence, Branch] = {}
        for ask in asks:
            fork = self._fork(ask.sequence)
            branches[fork] = Branch(ask, fork)
        chunks = self._first_chunks(branches.values())
        while chunks:
            chunks = self._extend(branches, chunks, self._forward(chunks))
        for fork in branches:
            fork.table.free()
        return [branch.draft() for branch in branches.values()]

    def _begin(self, pool: Any) -> None:
        """Use a new pool of the engine. Of what was computed before, nothing is taken."""
        self._held.clear()
        if self._cache.keys.shape[1] != pool.num_blocks:
            self._cache = self.model.kv_cache(pool.num_blocks, pool.block_size)
        self._pool = pool

    def _fork(self, sequence: Sequence) -> Sequence:
        """Return a fork that shares the full blocks of a sequence."""
        size = sequence.table.pool.block_size
        table = sequence.table.fork()
        table.truncate(sequence.table.num_tokens // size * size)
        return Sequence(
            f"{sequence.name}'",
            table,
            sequence.token_ids[:],
            sequence.seed ^ DRAFT_STREAM,
            sequence.num_prompt_tokens,
        )

    def _first_chunks(self, branches: Iterable[Branch]) -> list[Chunk]:
        """Return the tokens that the model has to compute before it can propose one."""
        budget = self._llm.scheduler.max_batch_tokens
        chunks = []
        for branch in branches:
            chunk = self._catch_up(branch, budget)
            if chunk:
                chunks.append(chunk)
                budget -= chunk.stop - chunk.start
        return chunks

    def _catch_up(self, branch: Branch, budget: int) -> Chunk | None:
        """Return the uncomputed tokens of a branch, or None if it gets no draft in this step.

        A long prompt takes several steps.
        """
        sequence = branch.sequence
        table = sequence.table
        size = self._llm.pool.block_size
        hashes = hash_chain(sequence.token_ids[: table.num_tokens], size)
        num_valid = 0
        while num_valid < len(hashes) and self._holds(
            table.block_ids[num_valid], hashes[num_valid]
        ):
            num_valid += 1
        start = num_valid * size
        stop = min(len(sequence.token_ids), start + budget)
        if stop <= start or len(sequence.token_ids) + branch.ask.limit > self.model.max_length:
            return None
        if not self._append(sequence):
            return None
        # Siblings may use these blocks in the same step: a layer writes all KV before it attends.
        for i in range(num_valid, min(len(hashes), stop // size)):
            self._held[table.block_ids[i]] = hashes[i]
        return Chunk(branch.ask.request, sequence, start, stop)

    def _holds(self, block_id: int, block_hash: bytes) -> bool:
        return self._held.get(block_id) == block_hash

    def _append(self, sequence: Sequence) -> bool:
        """Append slots for the uncomputed tokens of a fork. False if there are no blocks."""
        before = len(sequence.table.block_ids)
        try:
            sequence.table.append(sequence.num_uncomputed)
        except OutOfBlocks:
            return False
        for block_id in sequence.table.block_ids[before:]:
            self._held.pop(block_id, None)  # it is overwritten
        return True

    def _forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Return the logits [R, V] of the chunks, with V of the engine's model.

        Models of a family pad their vocabularies differently.
        """
        batch = build_batch(chunks, self.model.device)
        logits = self.model.forward(batch, self._cache, self._llm.attend)
        missing = self._llm.model.vocab_size - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)

    def _extend(
        self, branches: dict[Sequence, Branch], chunks: list[Chunk], logits: torch.Tensor
    ) -> list[Chunk]:
        """Append a sampled token to each branch, and return the chunks of the next forward pass."""
        params = {b.ask.request.request_id: b.ask.params for b in branches.values()}
        results = sample_step(logits, [chunk for chunk in chunks if chunk.is_last], params)
        extended = {  # by the row; a draft ends where this model's logits are not finite
            row: branches[result.sequence]
            for row, result in enumerate(results)
            if result.tokens != [NO_TOKEN]
        }
        random = [row for row, b in extended.items() if b.ask.params.temperature > 0]
        probs = probabilities(logits[random], [extended[row].ask.params for row in random])
        for row, q in zip(random, probs, strict=True):
            extended[row].probs.append(q)
        following = []
        for row, branch in extended.items():
            result = results[row]
            sequence = branch.sequence
            sequence.token_ids += result.tokens
            if len(branch.tokens) < branch.ask.limit and self._append(sequence):
                length = len(sequence.token_ids)
                following.append(Chunk(branch.ask.request, sequence, length - 1, length))
        return following
