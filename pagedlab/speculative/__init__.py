"""Speculative decoding: somebody cheap proposes the next k tokens, the model checks all of them in
one step.

    text        ... the old mill |                  known; the last of these tokens has no KV yet
    draft                          by the red door  put behind it: the text has k + 1 uncomputed tokens
    one step    rows of logits   ^  ^  ^   ^   ^    what the model itself says at each of these places
    kept                           by the | river   the longest prefix it agrees with, and one token of its own

What was computed for rejected tokens is forgotten by truncating the block table; nothing else was
touched. A draft takes what would lie idle: tokens of the step's budget, and blocks, that no running
text needs.

The text is the one that plain decoding gives wherever the draft is certain of its tokens (prompt
lookup, or temperature 0): at each place the model draws its own token, and the draft is kept as far
as it is equal. A draft model that draws from q has its token x accepted with probability min(1,
p(x) / q(x)), else a token is drawn from the positive part of p - q, normalised; the result is
distributed as p (Leviathan, Kalman, Matias, 2023, appendix A.1).

Who drafts stands in drafts.py: `PromptLookup`, or `DraftModel`, a smaller model on forked blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pagedlab.blocks import blocks_for
from pagedlab.runner import EagerRunner, StepResult
from pagedlab.sampling import invert, probabilities, uniform
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Schedule, Scheduler, Sequence
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
]


class Speculation:
    """Puts drafts behind the texts before a step, and takes back what is left of them after it.

    A drafted token is provisional: it stands at the end of `token_ids` and is counted by
    `num_draft`. To the scheduler the text has more uncomputed tokens. Between steps no text has
    any.
    """

    def __init__(self, drafter: Drafter, llm: Any, block_size: int) -> None:
        if isinstance(drafter, type) or not hasattr(drafter, "propose"):
            raise ValueError(
                f"speculative is PromptLookup(k=4), DraftModel(model, k=4) or None, got {drafter!r}"
            )
        self.drafter = drafter
        self.bytes_per_block = drafter.attach(llm, block_size)
        self.drafts: dict[Sequence, Draft] = {}  # of the step in the making
        self.checked: list[Checked] = []  # by the latest step

    def share_of(self, num_blocks: int, bytes_per_block: int) -> int:
        """Of so many blocks that fit, those that fit together with what the drafter keeps for
        each.
        """
        return max(1, num_blocks * bytes_per_block // (bytes_per_block + self.bytes_per_block))

    def refuse(self, params: SamplingParams) -> None:
        """`ValueError` for what cannot be drafted for."""
        if params.beam_width:
            why = (
                "its beams advance together, one token a step; use an engine without `speculative`"
            )
            raise ValueError(f"beam search does not go with speculative decoding: {why}")

    def propose(self, scheduler: Scheduler, params: Mapping[int, SamplingParams]) -> None:
        """Draft for the running texts whose next token is due. params: by request id."""
        self.checked = []
        if scheduler.swapped or any(r.sequences[0].output_ids for r in scheduler.waiting):
            return  # whoever gave way needs the blocks more
        asks = self._asks(scheduler, params)
        for ask, draft in zip(asks, self.drafter.propose(asks) if asks else (), strict=True):
            if tokens := draft.tokens[: ask.limit]:
                self.drafts[ask.text] = draft
                ask.text.token_ids += tokens
                ask.text.num_draft = len(tokens)

    def check(
        self,
        logits: torch.Tensor,
        text: Sequence,
        own: list[int],
        said: list[float],
        params: SamplingParams,
    ) -> tuple[list[int], list[float]]:
        """What is kept of a text's draft, with the model's own log-probabilities: see
        `sampler.sample_step`. logits [n + 1, V]: at the places of the n drafted tokens that were
        computed, and behind them. own, said: what the model would draw at each place, and how
        likely that is.
        """
        n, q = len(own) - 1, self.drafts[text].probs
        drafted = text.token_ids[text.num_known :][:n]
        if q is None:  # the first place where the model itself writes something else ends the draft
            accepted = next((i for i, token in enumerate(drafted) if token != own[i]), n)
            return own[: accepted + 1], said[: accepted + 1]
        positions = torch.arange(text.num_known, text.num_known + n, device=logits.device)
        seeds = [[seed % 2**63] for seed in (text.seed ^ ACCEPT_STREAM, text.seed)]
        u_accept, u_draw = uniform(torch.tensor(seeds, device=logits.device), positions).tolist()
        p, q = probabilities(logits[:n], [params] * n), q[:n].to(logits.device)
        others = map(accept_or_redraw, p, q, drafted, u_accept, u_draw)
        accepted, last = next(
            ((i, other) for i, other in enumerate(others) if other is not None), (n, own[n])
        )
        kept = [*drafted[:accepted], last]
        rows = torch.log_softmax(logits[: accepted + 1].float(), dim=1)
        return kept, rows.gather(1, torch.tensor(kept, device=rows.device)[:, None]).squeeze(
            1
        ).tolist()

    def settle(self, text: Sequence, accepted: int) -> None:
        """Of the text's drafted tokens the first `accepted` were agreed with: forget the others."""
        if text in self.drafts:
            # those that were computed
            tokens = text.token_ids[text.num_known : text.table.num_tokens]
            self.checked.append(Checked(text.name, text.num_known, tokens, accepted))
            text.roll_back(accepted)

    def clear(self) -> None:
        """No text keeps a provisional token, whatever became of the step."""
        for text in self.drafts:
            text.drop_draft()
        self.drafts.clear()

    def _asks(self, scheduler: Scheduler, params: Mapping[int, SamplingParams]) -> list[Ask]:
        """How much may be proposed for whom: no more tokens and blocks than the step has to
        spare.
        """
        size = scheduler.pool.block_size
        texts = [text for request in scheduler.running for text in request.unfinished]
        tokens = scheduler.max_batch_tokens - sum(text.num_uncomputed for text in texts)
        due = sum(
            blocks_for(len(text.token_ids), size) - len(text.table.block_ids) for text in texts
        )
        # one more for each: it may have to copy its last block
        blocks = scheduler.pool.num_free - due - len(texts)
        asks = []
        for request in scheduler.running:
            changing = params[request.request_id].adjusts  # by each token that is drafted
            if (
                changing
                or request.num_to_fork
                or any(text.num_uncomputed != 1 for text in request.unfinished)
            ):
                continue
            for text in request.unfinished:
                # A check gives one token more than it accepts, and max_tokens bounds both.
                length, left = len(text.token_ids), request.max_tokens - text.num_outputs - 1
                has = blocks_for(length, size)
                limit = min(self.drafter.k, left, tokens, (has + max(0, blocks)) * size - length)
                if limit > 0:
                    asks.append(Ask(request, text, params[request.request_id], limit))
                    tokens -= limit
                    blocks -= blocks_for(length + limit, size) - has
        return asks


class DraftingRunner:
    """Proposes tokens before each step, and checks them in it.

    Args:
        inner: runs the steps.
        speculation: puts drafts after the sequences, and takes back what is rejected of them.
        scheduler: whose running requests are drafted for.
        params: what each request asks for, by request id.
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

    def submit(self, plan: Schedule) -> bool:
        return self.inner.submit(plan)

    def collect(self) -> StepResult | None:
        result = self.inner.collect(self._speculation.check if self._speculation.drafts else None)
        if result is not None:
            for sampled in result.sampled:
                self._speculation.settle(sampled.sequence, len(sampled.tokens) - 1)
            result.drafts = self._speculation.checked
        return result

    def abandon(self) -> list[Schedule]:
        return self.inner.abandon()

    def finish_step(self) -> None:
        self._speculation.clear()


def accept_or_redraw(
    p: torch.Tensor, q: torch.Tensor, token: int, u_accept: float, u_draw: float
) -> int | None:
    """None if the drafted `token` is accepted, else the token that takes its place. p, q: [V], the
    distributions of the model and of the draft.

    Each u is uniform in [0, 1).
    """
    if u_accept * q[token].item() < p[token].item():
        return None
    rest = (p - q).clamp(min=0)
    # Rounding can leave nothing where p and q are equal.
    u = torch.tensor([u_draw], dtype=torch.float64, device=p.device)
    return int(invert((rest if rest.any() else p)[None], u))
