"""Speculative decoding: somebody cheap proposes the next k tokens, the model checks all of them in one step.

    text        ... the old mill |                  known; the last of these tokens has no KV yet
    draft                          by the red door  put behind it: the text has k + 1 uncomputed tokens
    one step    rows of logits   ^  ^  ^   ^   ^    what the model itself says at each of these places
    kept                           by the | river   the longest prefix it agrees with, and one token of its own

What was computed for rejected tokens is forgotten by truncating the block table; nothing else was touched. A draft
takes what would lie idle: tokens of the step's budget, and blocks, that no running text needs.

The text is the one that plain decoding gives wherever the draft is certain of its tokens (prompt lookup, or
temperature 0): at each place the model draws its own token, and the draft is kept as far as it is equal. A draft model
that draws from q has its token x accepted with probability min(1, p(x) / q(x)), else a token is drawn from the
positive part of p - q, normalised; the result is distributed as p (Leviathan, Kalman, Matias, 2023, appendix A.1).

    drafts         what a drafter is asked and answers; `PromptLookup`
    draft_model    `DraftModel`, a smaller model on forked blocks
    check          keeping or redrawing what a model drew
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pagedlab.blocks import blocks_for
from pagedlab.request import Sequence
from pagedlab.sampling import SamplingParams
from pagedlab.scheduler import Scheduler
from pagedlab.speculative.check import accept_or_redraw, check_sampled
from pagedlab.speculative.draft_model import DraftModel
from pagedlab.speculative.drafts import Ask, Checked, Draft, Drafter, PromptLookup

__all__ = ["Ask", "Checked", "Draft", "DraftModel", "Drafter", "PromptLookup", "Speculation", "accept_or_redraw"]


class Speculation:
    """Puts drafts behind the texts before a step, and takes back what is left of them after it.

    A drafted token is provisional: it stands at the end of `token_ids` and is counted by `num_draft`. To the
    scheduler the text has more uncomputed tokens. Between steps no text has any.
    """

    def __init__(self, drafter: Drafter, llm: Any, block_size: int) -> None:
        if isinstance(drafter, type) or not hasattr(drafter, "propose"):
            raise ValueError(f"speculative is PromptLookup(k=4), DraftModel(model, k=4) or None, got {drafter!r}")
        self.drafter = drafter
        self.bytes_per_block = drafter.attach(llm, block_size)
        self.drafts: dict[Sequence, Draft] = {}  # of the step in the making
        self.checked: list[Checked] = []  # by the latest step

    def share_of(self, num_blocks: int, bytes_per_block: int) -> int:
        """Of so many blocks that fit, those that fit together with what the drafter keeps for each."""
        return max(1, num_blocks * bytes_per_block // (bytes_per_block + self.bytes_per_block))

    def refuse(self, params: SamplingParams) -> None:
        """`ValueError` for what cannot be drafted for."""
        if params.beam_width:
            raise ValueError(
                "beam search does not go with speculative decoding: its beams advance together, one token a step; "
                "use an engine without `speculative`"
            )

    def propose(self, scheduler: Scheduler, params: Mapping[int, SamplingParams]) -> None:
        """Draft for the running texts whose next token is due. params: by request id."""
        self.checked = []
        if scheduler.swapped or any(r.sequences[0].output_ids for r in scheduler.waiting):
            return  # whoever gave way needs the blocks more
        asks = self._asks(scheduler, params, self.drafter.k)
        if not asks:
            return
        for ask, draft in zip(asks, self.drafter.propose(asks), strict=True):
            tokens = draft.tokens[: ask.limit]
            if tokens:
                self.drafts[ask.text] = draft
                ask.text.token_ids += tokens
                ask.text.num_draft = len(tokens)

    def check(
        self, logits: torch.Tensor, text: Sequence, own: list[int], said: list[float], params: SamplingParams
    ) -> tuple[list[int], list[float]]:
        """What is kept of a text's draft, with the log-probabilities: see `choice.next_tokens`."""
        drafted = text.token_ids[text.num_known :][: len(own) - 1]
        if (q := self.drafts[text].probs) is not None:
            return check_sampled(logits, drafted, q, own, text, params)
        # The model says what it would write at each place; the first place where it differs ends the draft.
        accepted = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
        return own[: accepted + 1], said[: accepted + 1]

    def settle(self, text: Sequence, accepted: int) -> None:
        """Of the text's drafted tokens the first `accepted` were agreed with: forget the others."""
        if text in self.drafts:
            tokens = text.token_ids[text.num_known : text.table.num_tokens]  # those that were computed
            self.checked.append(Checked(text.name, text.num_known, tokens, accepted))
            text.roll_back(accepted)

    def clear(self) -> None:
        """No text keeps a provisional token, whatever became of the step."""
        for text in self.drafts:
            text.drop_draft()
        self.drafts.clear()

    def _asks(self, scheduler: Scheduler, params: Mapping[int, SamplingParams], k: int) -> list[Ask]:
        """How much may be proposed for whom: no more tokens and blocks than the step has to spare."""
        pool = scheduler.pool
        texts = [text for request in scheduler.running for text in request.unfinished]
        tokens = scheduler.max_batch_tokens - sum(text.num_uncomputed for text in texts)
        due = sum(blocks_for(len(text.token_ids), pool.block_size) - len(text.table.block_ids) for text in texts)
        blocks = pool.num_free - due - len(texts)  # one more for each: it may have to copy its last block
        asks = []
        for request in scheduler.running:
            if request.texts_to_fork or any(text.num_uncomputed != 1 for text in request.unfinished):
                continue
            for text in request.unfinished:
                # A check gives one token more than it accepts, and max_tokens bounds both.
                length, left = len(text.token_ids), request.max_tokens - len(text.output_ids) - 1
                has = blocks_for(length, pool.block_size)
                limit = min(k, left, tokens, (has + max(0, blocks)) * pool.block_size - length)
                if limit > 0:
                    asks.append(Ask(request, text, params[request.request_id], limit))
                    tokens -= limit
                    blocks -= blocks_for(length + limit, pool.block_size) - has
        return asks
