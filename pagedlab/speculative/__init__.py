"""Speculative decoding: a cheap drafter proposes k tokens, and the model checks them in one step.

    sequence   ... the old mill |                  the KV of the last token is not computed yet
    draft                         by the red door  k tokens, appended: k + 1 are uncomputed now
    one step   rows of logits  ^  ^  ^   ^   ^     at each row the model samples its own token
    kept                          by the | river   the longest equal prefix, and one more token

The block table is truncated after the tokens that are kept, so the KV of rejected tokens is not
used again. A draft only takes tokens of the step's budget, and blocks, that no running sequence
needs.

The output is the one of plain decoding if the drafter is certain of its tokens, as `PromptLookup`
always is, and any drafter at temperature 0. The model samples its own token at each position, and
the draft is kept as far as it is equal.

A draft model may also sample from a distribution q. Then a token x is accepted with probability
min(1, p(x) / q(x)). If it is rejected, a token is sampled from the positive part of p - q,
normalised. The result is distributed as p (Leviathan, Kalman, Matias, 2023, appendix A.1).

The drafters are in drafts.py: `PromptLookup`, and `DraftModel`, a smaller model on forked tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pagedlab.blocks import blocks_for
from pagedlab.runner import EagerRunner, StepResult
from pagedlab.sampling import NO_TOKEN, invert, probabilities, uniform
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Request, Schedule, Scheduler, Sequence
from pagedlab.speculative.drafts import (
    ACCEPT_STREAM,
    Ask,
    Checked,
    Draft,
    Drafter,
    DraftModel,
    PromptLookup,
)

__all__ = [
    "Ask",
    "Checked",
    "Draft",
    "DraftModel",
    "Drafter",
    "DraftingRunner",
    "PromptLookup",
    "Speculation",
    "accept_or_redraw",
    "check_drafter",
]


def check_drafter(drafter: Any) -> None:
    """Raise `ValueError` if it is no drafter. Whether it fits the model is not asked."""
    if isinstance(drafter, type) or not hasattr(drafter, "propose"):
        raise ValueError(
            f"speculative is PromptLookup(k=4), DraftModel(model, k=4) or None, got {drafter!r}"
        )


class Speculation:
    """Appends drafts to the running sequences before a step, and removes rejected tokens after it.

    Drafted tokens are at the end of `token_ids`, and `num_draft` counts them. For the scheduler the
    sequence has more uncomputed tokens. Between steps no sequence has any drafted tokens.

    Args:
        drafter: proposes tokens.
        llm: the engine. Only its model is complete.
        block_size: tokens a block.

    Raises:
        ValueError: If the drafter is none, or does not fit the model.
    """

    def __init__(self, drafter: Drafter, llm: Any, block_size: int) -> None:
        check_drafter(drafter)
        self.drafter = drafter
        self.bytes_per_block = drafter.attach(llm, block_size)
        self.drafts: dict[Sequence, Draft] = {}  # of the step that is prepared or runs
        self.checked: list[Checked] = []  # by the latest step

    def share_of(self, num_blocks: int, bytes_per_block: int) -> int:
        """Return how many blocks fit together with the drafter's own memory for each block.

        Args:
            num_blocks: number of blocks that would fit alone.
            bytes_per_block: bytes of one of these.
        """
        return max(1, num_blocks * bytes_per_block // (bytes_per_block + self.bytes_per_block))

    def propose(self, scheduler: Scheduler, params: Mapping[int, SamplingParams]) -> None:
        """Append a draft to the running sequences whose next step is a decode step.

        Args:
            scheduler: its running requests get drafts.
            params: the parameters of each request, by request id.
        """
        self.checked = []
        if scheduler.swapped or any(r.sequences[0].output_ids for r in scheduler.waiting):
            return  # preempted requests need the blocks more
        asks = self._asks(scheduler, params)
        if not asks:
            return
        for ask, draft in zip(asks, self.drafter.propose(asks), strict=True):
            tokens = draft.tokens[: ask.limit]
            if tokens:
                self.drafts[ask.sequence] = draft
                ask.sequence.token_ids += tokens
                ask.sequence.num_draft = len(tokens)

    def check(
        self,
        logits: torch.Tensor,
        sequence: Sequence,
        sampled: list[int],
        scores: list[float],
        params: SamplingParams,
    ) -> tuple[list[int], list[float]]:
        """Return the tokens that are kept, and their log-probabilities, see `sampler.sample_step`.

        Args:
            logits: [n + 1, V], the rows of a draft of n computed tokens.
            sequence: the sequence with the draft.
            sampled: the token that the model samples at each row.
            scores: the log-probabilities of these tokens.
            params: the parameters of the request.
        """
        n = len(sampled) - 1
        drafted = sequence.token_ids[sequence.num_known :][:n]
        q = self.drafts[sequence].probs
        if q is None:
            num_kept = _count_equal(drafted, sampled) + 1
            return sampled[:num_kept], scores[:num_kept]
        positions = torch.arange(sequence.num_known, sequence.num_known + n, device=logits.device)
        seeds = [[seed % 2**63] for seed in (sequence.seed ^ ACCEPT_STREAM, sequence.seed)]
        u_accept, u_redraw = uniform(torch.tensor(seeds, device=logits.device), positions).tolist()
        p = probabilities(logits[:n], [params] * n)
        q = q[:n].to(logits.device)
        kept = [*drafted, sampled[n]]  # if all are accepted
        for i, token in enumerate(drafted):
            if sampled[i] == NO_TOKEN:
                kept = [*drafted[:i], NO_TOKEN]
                break
            other = accept_or_redraw(p[i], q[i], token, u_accept[i], u_redraw[i])
            if other is not None:
                kept = [*drafted[:i], other]
                break
        logprobs = torch.log_softmax(logits[: len(kept)].float(), dim=1)
        index = torch.tensor(kept, device=logits.device).clamp(min=0)[:, None]
        return kept, logprobs.gather(1, index).squeeze(1).tolist()

    def settle(self, sequence: Sequence, accepted: int) -> None:
        """Keep the first `accepted` drafted tokens of a sequence, and remove the others."""
        if sequence in self.drafts:
            computed = sequence.token_ids[sequence.num_known : sequence.table.num_tokens]
            self.checked.append(Checked(sequence.name, sequence.num_known, computed, accepted))
            sequence.roll_back(accepted)
            del self.drafts[sequence]

    def clear(self) -> None:
        """Remove the drafts that the step did not check."""
        for sequence in self.drafts:
            sequence.drop_draft()
        self.drafts.clear()

    def reset(self) -> None:
        """Forget all drafts."""
        self.drafts.clear()
        self.checked = []

    def _asks(self, scheduler: Scheduler, params: Mapping[int, SamplingParams]) -> list[Ask]:
        """Return how many tokens may be proposed for each sequence.

        All together they take no more tokens and blocks than the step has to spare.
        """
        size = scheduler.pool.block_size
        running = [seq for request in scheduler.running for seq in request.unfinished]
        tokens = scheduler.max_batch_tokens - sum(seq.num_uncomputed for seq in running)
        blocks = scheduler.pool.num_free
        for seq in running:
            missing = blocks_for(len(seq.token_ids), size) - len(seq.table.block_ids)
            blocks -= missing + 1  # one more, because its last block may have to be copied
        asks = []
        for request in scheduler.running:
            if not _is_decoding(request, params[request.request_id]):
                continue
            for seq in request.unfinished:
                length = len(seq.token_ids)
                held = blocks_for(length, size)
                slots = (held + max(0, blocks)) * size - length
                # A check returns one token more than it accepts, and max_tokens bounds both.
                left = request.max_tokens - seq.num_outputs - 1
                limit = min(self.drafter.k, left, tokens, slots)
                if limit > 0:
                    asks.append(Ask(request, seq, params[request.request_id], limit))
                    tokens -= limit
                    blocks -= blocks_for(length + limit, size) - held
        return asks


def _is_decoding(request: Request, params: SamplingParams) -> bool:
    """Return whether the request only waits for its sequences' next tokens, and allows drafts."""
    if params.adjusts:  # penalties change with each drafted token
        return False
    if request.num_to_fork:
        return False
    return all(seq.num_uncomputed == 1 for seq in request.unfinished)


def _count_equal(drafted: list[int], sampled: list[int]) -> int:
    """Return how many drafted tokens are equal to the sampled ones, from the start."""
    for i, token in enumerate(drafted):
        if token != sampled[i]:
            return i
    return len(drafted)


class DraftingRunner:
    """Proposes tokens before each step, and checks them in it.

    Args:
        inner: runs the steps.
        speculation: appends drafts, and removes rejected tokens.
        scheduler: its running requests get drafts.
        params: the parameters of each request, by request id.
    """

    def __init__(
        self,
        inner: EagerRunner,
        speculation: Speculation,
        scheduler: Scheduler,
        params: Mapping[int, SamplingParams],
    ) -> None:
        self.inner = inner
        self._speculation = speculation
        self._scheduler = scheduler
        self._params = params

    @property
    def has_room(self) -> bool:
        return self.inner.has_room

    @property
    def is_idle(self) -> bool:
        return self.inner.is_idle

    def prepare(self) -> None:
        self._speculation.propose(self._scheduler, self._params)

    def submit(self, plan: Schedule) -> None:
        self.inner.submit(plan)

    def collect(self) -> StepResult | None:
        result = self.inner.collect(self._speculation.check if self._speculation.drafts else None)
        if result is not None:
            for sampled in result.sampled:
                self._speculation.settle(sampled.sequence, len(sampled.tokens) - 1)
            result.drafts = self._speculation.checked
        self._speculation.clear()
        return result

    def reset(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._speculation.reset()
        self.inner.reset(scheduler)


def accept_or_redraw(
    p: torch.Tensor, q: torch.Tensor, token: int, u_accept: float, u_redraw: float
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
