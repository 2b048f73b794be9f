"""Speculative decoding: a cheap drafter proposes k tokens, and the model checks them in one step.

    sequence   ... the old mill |                  the KV of the last token is not computed yet
    draft                         by the red door  k tokens, which the step's chunk gets as guesses
    one step   rows of logits  ^  ^  ^   ^   ^     at each row the model samples its own token
    kept                          by the | river   the longest equal prefix, and one more token

The block table is truncated after the tokens that are kept, so the KV of rejected tokens is not
used again. A draft only takes tokens of the step's budget, and blocks, that nobody else needs.

The output is the one of plain decoding if the drafter is certain of its tokens, as `PromptLookup`
always is, and with any drafter at temperature 0. The model samples its own token at each position,
and the draft is kept as far as it is equal.

A draft model may also sample from a distribution q. Then a token x is accepted with probability
min(1, p(x) / q(x)). If it is rejected, a token is sampled from the positive part of p - q,
normalised. The result is distributed as p (Leviathan, Kalman, Matias, 2023, appendix A.1).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pagedlab.arguments import integer
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.engine import LLM
from pagedlab.model import Model, load_model
from pagedlab.sampling import NO_TOKEN, Sampled, invert, probabilities, sample_chunks, uniform
from pagedlab.scheduler import Chunk, Plan, Sequence, blocks_to_append
from pagedlab.stats import Stats

# Random numbers for one token must not depend on each other, so each use has its own stream.
DRAFT_STREAM = 0x5851F42D4C957F2D
ACCEPT_STREAM = 0x14057B7EF767814F


# Drafters -----------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """Proposed tokens.

    Args:
        tokens: n token ids.
        probs: [n, V], the distributions that they were sampled from; None if they are certain.
    """

    tokens: list[int]
    probs: Tensor | None = None


class Ask(NamedTuple):
    """Asks for a draft of at most `limit` tokens after a sequence."""

    sequence: Sequence
    limit: int


class Drafter(Protocol):
    """Proposes tokens: `PromptLookup`, `DraftModel`, or your own class with these members."""

    k: int

    def attach(self, llm: LLM) -> int:
        """Prepare for an engine, whose model is loaded.

        Returns:
            The bytes of memory that the drafter needs for each of the engine's blocks.
        """
        return 0

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """Return one draft for each ask, in order. A draft may be empty."""


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


class DraftModel(Drafter):
    """Proposes k tokens that a smaller model with the same tokenizer writes, one by one.

    The model has its own KV cache and its own pool of blocks. Each sequence has a shadow there: the
    same tokens, as far as the model has computed them, and its draft.

    Args:
        model: hub id, folder or `Model`, as for `LLM`.
        k: tokens of a draft.
    """

    def __init__(self, model: Any, k: int = 4) -> None:
        self.k = integer("k, the tokens of a draft,", k, 1)
        self._source = model

    def attach(self, llm: LLM) -> int:
        """Load the model. `ValueError` if its vocabulary is not the one of the engine's model."""
        self.model = self._source
        if not isinstance(self.model, Model):
            device = str(llm.model.device)
            self.model = load_model(self._source, device, llm.model.module.dtype, False)
        if self.model.tokenizer.get_vocab() != llm.model.tokenizer.get_vocab():
            raise ValueError(
                f"{self.model.name} cannot draft for {llm.model.name}: their vocabularies differ, "
                "so a token id means something else to each; take a smaller model of the same "
                "family"
            )
        self._llm: LLM = weakref.proxy(llm)  # which owns its drafter
        self._pool: Any = None  # of the drafter; it is made when the engine's pool has its size
        self._shadows: dict[Sequence, Sequence] = {}
        return self.model.kv_cache(1, llm.block_size).bytes_per_block

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """Run up to k forward passes over all sequences at once.

        A sequence for which there are not enough blocks gets an empty draft.
        """
        if self._pool is None:
            self._begin()
        self._free_ended()
        shadows = [self._shadow(ask.sequence) for ask in asks]
        drafts = [Draft([]) for _ in asks]
        budget = self._llm.max_batch_tokens
        chunks: dict[int, Chunk] = {}  # by the number of the ask
        for i, (ask, shadow) in enumerate(zip(asks, shadows, strict=True)):
            if shadow.length + ask.limit <= self.model.max_length:
                chunk = self._next_chunk(shadow, budget)
                if chunk is not None:
                    chunks[i] = chunk
                    budget -= chunk.stop - chunk.start
        while chunks:
            chunks = self._extend(asks, drafts, chunks)
        return drafts

    def _begin(self) -> None:
        """Make a pool and a KV cache, of as many blocks as the engine has."""
        self._pool = BlockPool(self._llm.num_blocks, self._llm.block_size)
        self._cache = self.model.kv_cache(self._llm.num_blocks, self._llm.block_size)

    def _free_ended(self) -> None:
        """Free the shadows of sequences that have ended."""
        ended = [each for each in self._shadows if each.finish_reason is not None]
        for sequence in ended:
            self._shadows.pop(sequence).table.free()

    def _shadow(self, sequence: Sequence) -> Sequence:
        """Return the sequence's shadow: with its tokens, and the KV of those computed before."""
        shadow = self._shadows.get(sequence)
        if shadow is None:
            seed = sequence.seed ^ DRAFT_STREAM
            shadow = replace(sequence, table=BlockTable(self._pool), token_ids=[], seed=seed)
            self._shadows[sequence] = shadow
        same = len(commonprefix([shadow.token_ids, sequence.token_ids]))  # noqa: RUF071 - no paths
        shadow.token_ids = sequence.token_ids[:]
        # The last token is computed again, for its logits.
        shadow.table.truncate(min(shadow.table.num_tokens, same, shadow.length - 1))
        return shadow

    def _next_chunk(self, shadow: Sequence, budget: int) -> Chunk | None:
        """Give slots to the uncomputed tokens of a shadow; None if blocks or budget are short.

        A long prompt takes several steps, and gets no draft meanwhile.
        """
        start = shadow.table.num_tokens
        stop = min(shadow.length, start + budget)
        if stop == start or blocks_to_append(shadow.table, stop - start) > self._pool.num_free:
            return None
        shadow.table.append(stop - start)
        return Chunk(shadow, start, stop)

    def _extend(
        self, asks: Seq[Ask], drafts: list[Draft], chunks: dict[int, Chunk]
    ) -> dict[int, Chunk]:
        """Append a sampled token to each draft, and return the chunks of the next forward pass."""
        batch = build_batch(list(chunks.values()), self.model.device)
        logits = self.model.forward(batch, self._cache, self._llm.attend)
        # Models of a family pad their vocabularies differently.
        missing = self._llm.model.vocab_size - logits.shape[1]
        logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        sampled = sample_chunks(logits, chunks.values(), self._llm.sample_rows)
        row = 0
        following: dict[int, Chunk] = {}
        for i, chunk in chunks.items():
            if not chunk.is_last:
                continue
            shadow = chunk.sequence
            [token] = sampled[shadow].token_ids
            if token != NO_TOKEN:  # a draft ends where this model's logits are not finite
                drafts[i] = self._longer(drafts[i], token, logits[row : row + 1], shadow)
                shadow.token_ids.append(token)
                if len(drafts[i].tokens) < asks[i].limit:
                    next_chunk = self._next_chunk(shadow, 1)
                    if next_chunk is not None:
                        following[i] = next_chunk
            row += 1
        return following

    def _longer(self, draft: Draft, token: int, logits: Tensor, shadow: Sequence) -> Draft:
        """Return the draft with one more token."""
        if shadow.params.temperature == 0:
            return Draft([*draft.tokens, token])
        q = probabilities(logits, [shadow.params])
        probs = q if draft.probs is None else torch.cat([draft.probs, q])
        return Draft([*draft.tokens, token], probs)


# The engine ---------------------------------------------------------------------------------------


@dataclass
class DraftStats(Stats):
    """The figures of an engine, and of its drafts.

    Args:
        drafts: drafts that were checked.
        drafted_tokens: tokens in those drafts.
        accepted_tokens: drafted tokens that the model accepted.
    """

    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def acceptance_length(self) -> float:
        """Average number of tokens that a draft adds: the accepted ones, and one by the model."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    def __str__(self) -> str:
        accepted = f"{self.accepted_tokens} of {self.drafted_tokens} drafted tokens accepted"
        return f"{super().__str__()}; {accepted}"


class Drafting(LLM):
    """What an engine does with a drafter. Another class of engines may have it, too.

    Args:
        model: as for `LLM`.
        drafter: proposes tokens; None for none.
        options: those of the engine.

    Raises:
        ValueError: If the drafter is none, or does not fit the model.
    """

    new_stats = DraftStats
    drafter: Drafter | None

    def __init__(self, model: Any = None, *, drafter: Drafter | None, **options: Any) -> None:
        if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "propose")):
            raise ValueError(
                f"drafter is PromptLookup(k=4), DraftModel(model, k=4) or None, got {drafter!r}"
            )
        self.drafter = drafter
        self._drafts: dict[Sequence, Draft] = {}  # of the step that runs
        super().__init__(model, **options)

    def open_model(self, *arguments: Any) -> Model:
        """Load the model, and prepare the drafter for it."""
        self.model = super().open_model(*arguments)
        self._bytes_per_block = self.drafter.attach(self) if self.drafter is not None else 0
        return self.model

    def further_bytes_per_block(self) -> int:
        """Bytes that the drafter needs for each block."""
        return self._bytes_per_block

    def make_plan(self) -> Plan:
        """Plan the next step, and add drafts to it."""
        plan = super().make_plan()
        self._drafts.clear()
        returns = any(sequence.num_outputs for sequence in self.scheduler.waiting)
        if self.drafter is not None and not (plan.preempted or returns):
            self._add_drafts(plan)
        return plan

    def _add_drafts(self, plan: Plan) -> None:
        """Draft for the sequences that decode. What blocks and tokens are left over is theirs."""
        assert self.drafter is not None
        chunks = {chunk.sequence: chunk for chunk in plan.chunks if _is_decoding(chunk)}
        asks = [Ask(sequence, self._limit(sequence)) for sequence in chunks]
        asks = [ask for ask in asks if ask.limit > 0]
        if not asks:
            return
        for ask, draft in zip(asks, self.drafter.propose(asks), strict=True):
            tokens = draft.tokens[: min(ask.limit, self.scheduler.budget)]
            if tokens and blocks_to_append(ask.sequence.table, len(tokens)) <= self.pool.num_free:
                ask.sequence.table.append(len(tokens))
                self.scheduler.budget -= len(tokens)
                chunk = chunks[ask.sequence]
                chunks[ask.sequence] = Chunk(
                    ask.sequence, chunk.start, chunk.stop + len(tokens), tuple(tokens)
                )
                self._drafts[ask.sequence] = draft
        plan.chunks = [chunks.get(chunk.sequence, chunk) for chunk in plan.chunks]

    def _limit(self, sequence: Sequence) -> int:
        """How many tokens may be drafted: a check returns one more, and max_tokens bounds both."""
        assert self.drafter is not None
        return min(self.drafter.k, sequence.max_tokens - sequence.num_outputs - 1)

    def sample(self, plan: Plan, logits: Tensor) -> dict[Sequence, Sampled]:
        """Sample the next tokens, and keep of each draft what the model accepts."""
        sampled = super().sample(plan, logits)
        row = 0
        for chunk in plan.chunks:
            if chunk.guesses:
                rows = logits[row : row + chunk.num_rows]
                sampled[chunk.sequence] = self.check(chunk, rows, sampled[chunk.sequence])
            row += chunk.num_rows
        return sampled

    def check(self, chunk: Chunk, logits: Tensor, sampled: Sampled) -> Sampled:
        """Return the tokens of a chunk that are kept, and drop the slots of the others.

        Args:
            chunk: the last known token, and a draft of n tokens.
            logits: [n + 1, V], its rows.
            sampled: the token that the model samples at each row.
        """
        sequence = chunk.sequence
        draft = self._drafts[sequence]
        if draft.probs is None:
            num_kept = _count_equal(chunk.guesses, sampled.token_ids) + 1
            kept = sampled.part(0, num_kept)
        else:
            kept = _accept(chunk, logits, sampled, draft.probs)
        num_kept = len(kept.token_ids)
        sequence.table.truncate(len(sequence.token_ids) + num_kept - 1)
        self.stats.drafts += 1
        self.stats.drafted_tokens += len(chunk.guesses)
        self.stats.accepted_tokens += num_kept - 1
        return kept


class SpeculativeLLM(Drafting):
    """An `LLM` whose model checks the tokens that a drafter proposes.

    Args:
        model: as for `LLM`.
        drafter: proposes tokens; None for `PromptLookup(k=4)`.
        options: those of `LLM`.
    """

    def __init__(
        self, model: Any = None, *, drafter: Drafter | None = None, **options: Any
    ) -> None:
        super().__init__(model, drafter=drafter or PromptLookup(k=4), **options)


def _is_decoding(chunk: Chunk) -> bool:
    """Whether a chunk is the last token of a sequence that may have a draft."""
    sequence = chunk.sequence
    is_alone = chunk.is_last and chunk.stop - chunk.start == 1
    return is_alone and not sequence.num_to_fork and sequence.params.adjust is None


def _count_equal(drafted: Seq[int], sampled: Seq[int]) -> int:
    """Return how many drafted tokens are equal to the sampled ones, from the start."""
    for i, token in enumerate(drafted):
        if token != sampled[i]:
            return i
    return len(drafted)


def _accept(chunk: Chunk, logits: Tensor, sampled: Sampled, q: Tensor) -> Sampled:
    """Return the drafted tokens that are accepted, and one more.

    Args:
        chunk: with a draft of n tokens.
        logits: [n + 1, V].
        sampled: the token that the model samples at each row.
        q: at least [n, V], the distributions that the draft was sampled from.
    """
    sequence = chunk.sequence
    drafted = list(chunk.guesses)
    n = len(drafted)
    first = len(sequence.token_ids)
    positions = torch.arange(first, first + n, device=logits.device)
    seeds = [[seed % 2**63] for seed in (sequence.seed ^ ACCEPT_STREAM, sequence.seed)]
    u_accept, u_redraw = uniform(torch.tensor(seeds, device=logits.device), positions).tolist()
    p = probabilities(logits[:n], [sequence.params] * n)
    q = q[:n].to(logits.device)
    kept = [*drafted, sampled.token_ids[n]]  # if all are accepted
    for i, token in enumerate(drafted):
        other: int | None = NO_TOKEN
        if sampled.token_ids[i] != NO_TOKEN:
            other = accept_or_redraw(p[i], q[i], token, u_accept[i], u_redraw[i])
        if other is not None:
            kept = [*drafted[:i], other]
            break
    rows = torch.log_softmax(logits[: len(kept)].float(), dim=1)
    index = torch.tensor(kept, device=logits.device).clamp(min=0)[:, None]
    logprobs = rows.gather(1, index).squeeze(1).tolist()
    reports = [
        report._replace(token_id=token, logprob=logprob)
        for report, token, logprob in zip(sampled.reports, kept, logprobs, strict=False)
    ]
    return Sampled(kept, logprobs, reports)


def accept_or_redraw(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_redraw: float
) -> int | None:
    """Return None if a drafted token is accepted, else the token that replaces it.

    Args:
        p: [V], the model's distribution.
        q: [V], the distribution that the token was sampled from.
        token: the drafted token.
        u_accept: uniform in [0, 1), decides about the token.
        u_redraw: uniform in [0, 1), chooses the replacement.
    """
    if u_accept * q[token].item() < p[token].item():
        return None
    rest = (p - q).clamp(min=0)
    # Rounding can leave nothing where p and q are equal.
    u = torch.tensor([u_redraw], dtype=torch.float64, device=p.device)
    return int(invert((rest if rest.any() else p)[None], u))
