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

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from operator import ne
from typing import Any

import torch
from torch import Tensor

from pagedlab.arguments import integer
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab.engine import LLM
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model, load_model
from pagedlab.sampling import NO_TOKEN, NewTokens, invert, probabilities, sample_chunks, uniform
from pagedlab.scheduler import Chunk, Plan, Scheduler, Sequence
from pagedlab.stats import Stats

# Random numbers for one token must not depend on each other, so each use has its own stream.
DRAFT_STREAM = 0x5851F42D4C957F2D
ACCEPT_STREAM = 0x14057B7EF767814F


# Drafters -----------------------------------------------------------------------------------------


@dataclass
class Draft:
    """Proposed tokens.

    Args:
        tokens: the token ids.
        probs: for each of them the distribution [V] that it was sampled from; empty if the drafter
            is certain of them.
    """

    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)


Drafts = dict[Sequence, Draft]
Limits = dict[Sequence, int]  # the most tokens that a draft for the sequence may have


class Drafter:
    """Proposes tokens: `PromptLookup`, `DraftModel`, or your own subclass.

    Args:
        k: tokens of a draft, at most.
    """

    def __init__(self, k: int = 4) -> None:
        self.k = integer("k, the tokens of a draft,", k, 1)

    def attach(self, model: Model, block_size: int) -> int:
        """Prepare for an engine's model.

        Returns:
            The bytes of memory that the drafter needs for each of the engine's blocks.
        """
        return 0

    def propose(self, llm: LLM, limits: Limits) -> Drafts:
        """Return a draft for each sequence, of as many tokens as its limit or fewer."""
        raise NotImplementedError


class PromptLookup(Drafter):
    """Proposes the k tokens that followed the latest earlier place that looks like the end.

    It compares the last three tokens first, then two, then one. It needs no model and no memory,
    and is good if the answer copies from the prompt or repeats itself.

    Args:
        k: tokens of a draft.
    """

    def propose(self, llm: LLM, limits: Limits) -> Drafts:
        """Look up a draft for each sequence."""
        return {
            sequence: Draft(self.look_up(sequence.token_ids, limit))
            for sequence, limit in limits.items()
        }

    def look_up(self, token_ids: list[int], limit: int) -> list[int]:
        """Return `limit` tokens, or none if the last tokens were not seen before.

        Args:
            token_ids: the tokens of a sequence.
            limit: how many tokens to return.
        """
        text = "".join(map(chr, token_ids))  # one character a token: Python searches texts fast
        for n in (3, 2, 1):
            start = text.rfind(text[-n:], 0, -1)  # the latest place before the end itself
            if start >= 0:
                found = token_ids[start + n :]
                while len(found) < limit:  # it reached the end: go on with the draft itself
                    found = found + found
                return found[:limit]
        return []


class DraftModel(Drafter):
    """Proposes k tokens that a smaller model with the same tokenizer writes, one by one.

    The model has its own KV cache, pool and scheduler. Each sequence has a shadow there. Its prompt
    is the sequence as the drafter saw it last, and its output is the draft.

    Args:
        model: hub id, folder or `Model`, as for `LLM`.
        k: tokens of a draft.
    """

    def __init__(self, model: Any, k: int = 4) -> None:
        super().__init__(k)
        self.model = model

    def attach(self, model: Model, block_size: int) -> int:
        """Load the model. `ValueError` if its vocabulary is not the one of the engine's model."""
        if not isinstance(self.model, Model):
            self.model = load_model(self.model, str(model.device), model.module.dtype, False)
        if self.model.tokenizer.get_vocab() != model.tokenizer.get_vocab():
            raise ValueError(
                f"{self.model.name} cannot draft for {model.name}: their vocabularies differ, so a "
                "token id means something else to each; take a smaller model of the same family"
            )
        self._engine_pool: Pool | None = None
        self._cache: KVCache | None = None  # it is made when the engine's pool has its size
        return self.model.kv_cache(1, block_size).bytes_per_block

    def propose(self, llm: LLM, limits: Limits) -> Drafts:
        """Run forward passes over all sequences at once, until each has its draft.

        A draft is shorter, or empty, if there are not enough blocks for it.
        """
        if self._engine_pool is not llm.pool:  # at first, and after a reset
            self._begin(llm)
        for sequence in list(self._shadows):
            if sequence.finish_reason is not None:
                self._shadows.pop(sequence).table.free()
        drafts: Drafts = {}
        of_shadows: Drafts = {}
        for sequence, limit in limits.items():
            drafts[sequence] = Draft()
            of_shadows[self._shadow(sequence, limit)] = drafts[sequence]
        while chunks := self._next_chunks(of_shadows):
            self._compute(llm, chunks, of_shadows)
        return drafts

    def _begin(self, llm: LLM) -> None:
        """Make a pool of as many blocks as the engine has, and the KV cache if there is none."""
        self._engine_pool = llm.pool
        self._pool = BlockPool(llm.num_blocks, llm.block_size)
        self._scheduler = Scheduler(self._pool, llm.max_batch_tokens, llm.max_sequences)
        self._shadows: dict[Sequence, Sequence] = {}
        if self._cache is None:
            self._cache = self.model.kv_cache(llm.num_blocks, llm.block_size)

    def _shadow(self, sequence: Sequence, limit: int) -> Sequence:
        """Return the sequence's shadow, with the KV of all drafted tokens that were accepted."""
        shadow = self._shadows.get(sequence)
        if shadow is None:
            shadow = replace(sequence, table=BlockTable(self._pool), num_prompt_tokens=0)
            shadow.token_ids = []
            shadow.seed = sequence.seed ^ DRAFT_STREAM
            self._shadows[sequence] = shadow
        seen = shadow.num_prompt_tokens
        num_valid = seen + _num_equal(shadow.output_ids, sequence.token_ids[seen:])
        shadow.token_ids = sequence.token_ids[:]
        shadow.num_prompt_tokens = len(sequence.token_ids)
        shadow.max_tokens = min(limit, self.model.max_length - shadow.length)
        # The last token is computed again, for its logits.
        shadow.table.truncate(min(shadow.table.num_tokens, num_valid, shadow.length - 1))
        return shadow

    def _next_chunks(self, shadows: Iterable[Sequence]) -> list[Chunk]:
        """Give slots to the tokens that each shadow needs for its next one."""
        self._scheduler.plan = Plan()
        self._scheduler.budget = self._scheduler.max_batch_tokens
        for shadow in shadows:
            if shadow.num_outputs < shadow.max_tokens:
                self._scheduler.give_slots(shadow)
        return self._scheduler.plan.chunks

    def _compute(self, llm: LLM, chunks: list[Chunk], drafts: Drafts) -> None:
        """Run a forward pass, and append the tokens that it samples to the shadows' drafts."""
        batch = build_batch(chunks, self.model.device)
        logits = self.model.forward(batch, self._cache, llm.attend)
        # Models of a family pad their vocabularies differently.
        missing = llm.model.vocab_size - logits.shape[1]
        logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        sampled = sample_chunks(logits, chunks, llm.sample_rows)
        for shadow, row in zip(sampled, logits, strict=True):
            [token] = sampled[shadow].token_ids
            if token == NO_TOKEN:  # the draft ends: nothing is left to compute
                continue
            shadow.token_ids.append(token)
            drafts[shadow].tokens.append(token)
            # Without a distribution the check is of equal tokens, whose reports stay right.
            if shadow.params.temperature and shadow.params.logprobs is None:
                [q] = probabilities(row[None], [shadow.params])
                drafts[shadow].probs.append(q)


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
        return 1 + self.accepted_tokens / max(self.drafts, 1)

    def __str__(self) -> str:
        if not self.drafts:
            return super().__str__()
        accepted = f"{self.accepted_tokens} of {self.drafted_tokens} drafted tokens accepted"
        return f"{super().__str__()}; {accepted}"


FOUR_TOKENS = PromptLookup(k=4)


class SpeculativeLLM(LLM):
    """An `LLM` whose model checks the tokens that a drafter proposes.

    Args:
        model: as for `LLM`.
        drafter: proposes tokens; None for none.
        options: those of `LLM`.

    Raises:
        ValueError: If the drafter is none, or does not fit the model.
    """

    new_stats = DraftStats

    def __init__(
        self, model: Any = None, *, drafter: Drafter | None = FOUR_TOKENS, **options: Any
    ) -> None:
        if not isinstance(drafter, Drafter | None):
            raise ValueError(
                f"drafter is PromptLookup(k=4), DraftModel(model, k=4) or None, got {drafter!r}"
            )
        self.drafter = drafter
        self._drafts: Drafts = {}  # of the step that runs
        super().__init__(model, **options)

    def open_model(self, *arguments: Any) -> Model:
        """Load the model, and prepare the drafter for it."""
        model = super().open_model(*arguments)
        self._bytes_per_block = self.drafter.attach(model, self.block_size) if self.drafter else 0
        return model

    def further_bytes_per_block(self) -> int:
        """Bytes that the drafter needs for each block."""
        return self._bytes_per_block

    def make_plan(self) -> Plan:
        """Plan the next step, and add drafts to it."""
        plan = super().make_plan()
        self._drafts = {}
        # A preempted sequence returns as soon as there are enough blocks.
        returns = any(sequence.num_outputs for sequence in self.scheduler.waiting)
        if self.drafter is None or plan.preempted or returns:
            return plan
        limits = {}
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if _is_decoding(chunk):
                # A check returns one token more than it accepts.
                most = sequence.max_tokens - sequence.num_outputs - 1
                limits[sequence] = min(self.drafter.k, most)
        self._drafts = self.drafter.propose(self, limits)
        plan.chunks = [self._with_draft(chunk) for chunk in plan.chunks]
        return plan

    def _with_draft(self, chunk: Chunk) -> Chunk:
        """Add a sequence's draft to its chunk, if enough blocks and tokens are left over."""
        table = chunk.sequence.table
        draft = self._drafts.get(chunk.sequence, Draft())
        tokens = draft.tokens[: self.scheduler.budget]
        if table.needs(len(tokens)) > self.pool.num_free:
            return chunk
        table.append(len(tokens))
        self.scheduler.budget -= len(tokens)
        return chunk._replace(stop=chunk.stop + len(tokens), guesses=tuple(tokens))

    def sample(self, plan: Plan, logits: Tensor) -> dict[Sequence, NewTokens]:
        """Sample the next tokens, and keep of each draft what the model accepts."""
        sampled = super().sample(plan, logits)
        rows = logits.split([chunk.num_rows for chunk in plan.chunks])
        for chunk, own in zip(plan.chunks, rows, strict=True):
            if chunk.guesses:
                sampled[chunk.sequence] = self.check(chunk, own, sampled[chunk.sequence])
        return sampled

    def check(self, chunk: Chunk, logits: Tensor, sampled: NewTokens) -> NewTokens:
        """Return the tokens of a chunk that are kept, and drop the slots of the others.

        Args:
            chunk: the last known token, and a draft of n tokens.
            logits: [n + 1, V], its rows.
            sampled: the token that the model samples at each row.
        """
        sequence = chunk.sequence
        probs = self._drafts[sequence].probs
        if probs:
            kept = _accept(chunk, logits, sampled, probs)
        else:  # the drafter is certain
            count = _num_equal(chunk.guesses, sampled.token_ids) + 1
            kept = NewTokens(sampled.token_ids[:count], sampled.reports[:count])
        num_kept = len(kept.token_ids)
        sequence.table.truncate(len(sequence.token_ids) + num_kept - 1)
        self.stats.drafts += 1
        self.stats.drafted_tokens += len(chunk.guesses)
        self.stats.accepted_tokens += num_kept - 1
        return kept


def _is_decoding(chunk: Chunk) -> bool:
    """Whether a chunk is the last token of a sequence that may have a draft."""
    sequence = chunk.sequence
    is_plain = not sequence.forks and sequence.params.adjust is None
    return is_plain and chunk.num_rows == chunk.stop - chunk.start == 1


def _num_equal(a: Seq[int], b: Seq[int]) -> int:
    """How many tokens both begin with."""
    return [*map(ne, a, b), True].index(True)


def _accept(chunk: Chunk, logits: Tensor, sampled: NewTokens, q: list[Tensor]) -> NewTokens:
    """Return the drafted tokens that are accepted, and one more.

    Args:
        chunk: with a draft of n tokens.
        logits: [n + 1, V].
        sampled: the token that the model samples at each row.
        q: the distribution [V] that each drafted token was sampled from.
    """
    sequence = chunk.sequence
    p = probabilities(logits, [sequence.params] * len(logits))
    first = chunk.stop - len(chunk.guesses)
    num_finite = [*sampled.token_ids, NO_TOKEN].index(NO_TOKEN)
    drafted = chunk.guesses[:num_finite]
    kept = [*drafted, sampled.token_ids[len(drafted)]]  # if all are accepted
    for i, token in enumerate(drafted):
        u_accept = uniform(sequence.seed ^ ACCEPT_STREAM, first + i)
        u_redraw = uniform(sequence.seed, first + i)
        other = accept_or_redraw(p[i], q[i].to(p.device), token, u_accept, u_redraw)
        if other is not None:
            kept[i:] = [other]
            break
    return NewTokens(kept)


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
