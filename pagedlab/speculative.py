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
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Protocol

import torch

from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks, blocks_for
from pagedlab.model import Model, load_model
from pagedlab.prefix import hash_chain
from pagedlab.sampling import SamplingParams, invert, is_whole, probabilities, sample, uniform
from pagedlab.scheduler import Chunk, Request, Scheduler, Sequence

# Draws for one token must not depend on each other, so each kind has a stream of its own beside the plain one.
DRAFT_STREAM, ACCEPT_STREAM = 0x5851F42D4C957F2D, 0x14057B7EF767814F


class Draft(NamedTuple):
    """Proposed tokens, and the distributions [n, V] that they were drawn from; None if they are certain."""

    tokens: list[int]
    probs: torch.Tensor | None = None


class Ask(NamedTuple):
    """Propose up to `limit` tokens, at least one, behind a text of which all but the last token is computed."""

    request: Request
    text: Sequence
    params: SamplingParams
    limit: int


class Drafter(Protocol):
    """Who proposes: `PromptLookup`, `DraftModel`, or a class of your own with these three."""

    k: int

    def attach(self, llm: Any, block_size: int) -> int:
        """Take note of the engine, before its pool is made; return the bytes that each block of it costs here."""

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """One draft an ask, in order; empty ones are fine."""


class Checked(NamedTuple):
    """A draft that a step checked: its tokens, the first at `position`, and how many of them were accepted."""

    text: str
    position: int
    tokens: list[int]
    accepted: int


def _checked_k(k: Any) -> int:
    if not is_whole(k, 1):
        raise ValueError(f"k, the tokens of a draft, must be a whole number of at least 1, got {k!r}")
    return int(k)


class PromptLookup:
    """Proposes what came last time: the k tokens behind the latest earlier place that ends like the text does now.

    Tries endings of max_ngram tokens first, then shorter ones, down to min_ngram. No model, no memory; good where
    the answer copies from the prompt or repeats itself.
    """

    def __init__(self, k: int = 4, max_ngram: int = 3, min_ngram: int = 1) -> None:
        self.k = _checked_k(k)
        if not (is_whole(min_ngram, 1) and is_whole(max_ngram, min_ngram)):
            raise ValueError(f"1 <= min_ngram <= max_ngram must hold, got {min_ngram!r} and {max_ngram!r}")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram

    def attach(self, llm: Any, block_size: int) -> int:
        """Nothing to prepare, and no memory."""
        return 0

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """What followed the latest place that looks like the end of each text."""
        return [Draft(self.look_up(ask.text.token_ids, ask.limit)) for ask in asks]

    def look_up(self, token_ids: list[int], limit: int) -> list[int]:
        """Up to `limit` tokens, none if no ending was seen before."""
        for n in range(min(self.max_ngram, len(token_ids) - 1), self.min_ngram - 1, -1):
            ending = token_ids[-n:]
            for start in range(len(token_ids) - n - 1, -1, -1):
                if token_ids[start : start + n] == ending:
                    # What follows may reach the end of the text; there it goes on with the draft itself.
                    longer = token_ids[start + n :]
                    while len(longer) < limit:
                        longer = longer + longer
                    return longer[:limit]
        return []


class DraftModel:
    """Proposes what a smaller model with the same tokenizer would write, k tokens one by one.

    model: what `LLM` takes. Its KV lies in a cache of its own that is addressed by the engine's block ids. To propose,
    it forks the text's table, writes behind it in fresh blocks, and frees the fork. What stays is its KV of full
    blocks, found again by their names as in prefix.py; the tokens behind them are read anew each time.
    """

    def __init__(self, model: Any, k: int = 4) -> None:
        self.k = _checked_k(k)
        self._source = model
        self._held: dict[int, bytes] = {}  # the name of what each block holds in this cache

    def attach(self, llm: Any, block_size: int) -> int:
        """Load the model and see that it speaks the engine's language: `ValueError` if it does not."""
        source, device = self._source, str(llm.model.device)
        self.model = source if isinstance(source, Model) else load_model(source, device, llm.model.module.dtype, False)
        if self.model.tokenizer.get_vocab() != llm.model.tokenizer.get_vocab():
            raise ValueError(
                f"{self.model.name} cannot draft for {llm.model.name}: their vocabularies differ, so a token id means "
                "something else to each; take a smaller model of the same family"
            )
        self._llm = llm
        self._held.clear()
        self._cache = self.model.kv_cache(1, block_size)
        return self._cache.bytes_per_block

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """k passes of the draft model over all texts at once; a text for which blocks are short gets none."""
        pool, vocabulary = self._llm.pool, self._llm.model.vocab_size
        if self._cache.keys.shape[1] != pool.num_blocks:
            self._cache = self.model.kv_cache(pool.num_blocks, pool.block_size)
        branches: dict[Sequence, Ask] = {}
        probs: dict[Sequence, list[torch.Tensor]] = {}
        known = [len(ask.text.token_ids) for ask in asks]
        order: list[Sequence] = []
        try:
            chunks, budget = [], self._llm.scheduler.max_batch_tokens
            for ask in asks:
                order.append(branch := self._fork(ask.text))
                branches[branch], probs[branch] = ask, []
                if (chunk := self._catch_up(ask, branch, budget)) is not None:
                    chunks.append(chunk)
                    budget -= chunk.stop - chunk.start
            while chunks:
                logits = self.model.forward(build_batch(chunks, self.model.device), self._cache, self._llm.attend)
                logits = _as_wide(logits, vocabulary)
                speaking = [chunk.sequence for chunk in chunks if chunk.is_last]
                chunks = []
                if not speaking:
                    break
                params = [branches[branch].params for branch in speaking]
                seeds = [(branch.seed ^ DRAFT_STREAM) % 2**63 for branch in speaking]
                positions = [len(branch.token_ids) for branch in speaking]
                on_device = (torch.tensor(values, device=logits.device) for values in (seeds, positions))
                tokens, _ = sample(logits, params, *on_device)
                warm = [row for row, drawn in enumerate(params) if drawn.temperature > 0]
                if warm:
                    for row, q in zip(warm, probabilities(logits[warm], [params[row] for row in warm]), strict=True):
                        probs[speaking[row]].append(q)
                for branch, token in zip(speaking, tokens.tolist(), strict=True):
                    ask = branches[branch]
                    branch.token_ids.append(token)
                    if len(branch.token_ids) - len(ask.text.token_ids) < ask.limit and self._room(branch):
                        chunks.append(Chunk(ask.request, branch, len(branch.token_ids) - 1, len(branch.token_ids)))
        except BaseException:
            self._held.clear()  # it says of some blocks that they are filled, and they may not be
            raise
        finally:
            for branch in order:
                branch.table.free()
        stacked = [torch.stack(probs[branch]) if probs[branch] else None for branch in order]
        return [Draft(b.token_ids[n:], q) for b, n, q in zip(order, known, stacked, strict=True)]

    def _fork(self, text: Sequence) -> Sequence:
        """A branch of the text: its full blocks are shared, and what the draft writes goes into blocks of its own."""
        size = self._llm.pool.block_size
        table = text.table.fork()
        table.truncate(text.table.num_tokens // size * size)
        return Sequence(f"{text.name}'", table, text.token_ids[:], text.seed, text.num_prompt_tokens)

    def _catch_up(self, ask: Ask, branch: Sequence, budget: int) -> Chunk | None:
        """What the draft model has to read before it can go on; a long prompt takes several steps."""
        table, size = branch.table, self._llm.pool.block_size
        names = hash_chain(branch.token_ids[: table.num_tokens], size)
        pairs = zip(table.block_ids, names, strict=True)
        read = next((i for i, (b, name) in enumerate(pairs) if self._held.get(b) != name), len(names))
        stop = min(len(branch.token_ids), read * size + budget)
        if len(branch.token_ids) + ask.limit > self.model.max_length or stop <= read * size or not self._room(branch):
            return None
        for i in range(read, min(len(names), stop // size)):
            # From now on, for the siblings too: a layer's KV of all texts is written before anybody attends to it.
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


def _as_wide(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Models of a family pad their vocabularies differently: no draft goes beyond the target's."""
    logits = logits[:, :vocabulary]
    return torch.nn.functional.pad(logits, (0, vocabulary - logits.shape[1]), value=float("-inf"))


# Checking a draft that was drawn ------------------------------------------------------------------------------


def accept_or_redraw(p: torch.Tensor, q: torch.Tensor, token: int, u_accept: float, u_draw: float) -> int | None:
    """None if the drafted `token` is accepted, else the token that takes its place. p, q: [V], the distributions of
    the model and of the draft. Each u is uniform in [0, 1)."""
    if u_accept * q[token].item() < p[token].item():
        return None
    rest = (p - q).clamp(min=0)
    # Rounding can leave nothing where p and q are equal.
    u = torch.tensor([u_draw], dtype=torch.float64, device=p.device)
    return int(invert((rest if rest.any() else p)[None], u))


def check_sampled(
    logits: torch.Tensor,
    drafted: list[int],
    q: torch.Tensor,
    own: list[int],
    text: Sequence,
    params: SamplingParams,
) -> tuple[list[int], list[float]]:
    """The tokens kept and their log-probabilities (the model's own, as `sample` gives them).

    logits [n + 1, V]: the model's, at the places of the n drafted tokens and behind them. q [n, V]. own: what the
    model would draw at each place; the last is taken where the whole draft is accepted.
    """
    n, device = len(drafted), logits.device
    p = probabilities(logits[:n], [params] * n)
    positions = torch.arange(text.num_known, text.num_known + n, device=device)
    u_accept, u_draw = (
        uniform(torch.full_like(positions, seed % 2**63), positions).tolist()
        for seed in (text.seed ^ ACCEPT_STREAM, text.seed)
    )
    kept: list[int] = []
    for i, token in enumerate(drafted):
        other = accept_or_redraw(p[i], q[i].to(device), token, u_accept[i], u_draw[i])
        kept.append(token if other is None else other)
        if other is not None:
            break
    else:
        kept.append(own[n])
    rows = torch.log_softmax(logits[: len(kept)].float(), dim=1)
    return kept, rows.gather(1, torch.tensor(kept, device=device)[:, None]).squeeze(1).tolist()


# The engine's side --------------------------------------------------------------------------------------------


class Speculation:
    """Puts drafts behind the texts before a step, and takes back what is left of them after it.

    A drafted token is provisional: it stands at the end of `token_ids` and is counted by `num_draft`. To the
    scheduler the text has more uncomputed tokens. Between steps no text has any.
    """

    def __init__(self, drafter: Drafter | None, llm: Any, block_size: int) -> None:
        if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "propose")):
            raise ValueError(f"speculative is PromptLookup(k=4), DraftModel(model, k=4) or None, got {drafter!r}")
        self.drafter = drafter
        self.bytes_per_block = 0 if drafter is None else drafter.attach(llm, block_size)
        self.drafts: dict[Sequence, Draft] = {}  # of the step in the making
        self.checked: list[Checked] = []  # by the latest step

    def share_of(self, num_blocks: int, bytes_per_block: int) -> int:
        """Of so many blocks that fit, those that fit together with what the drafter keeps for each."""
        return max(1, num_blocks * bytes_per_block // (bytes_per_block + self.bytes_per_block))

    def refuse(self, params: SamplingParams) -> None:
        """`ValueError` for what cannot be drafted for."""
        if self.drafter is not None and params.beam_width:
            raise ValueError(
                "beam search does not go with speculative decoding: its beams advance together, one token a step; "
                "use an engine without `speculative`"
            )

    def propose(self, scheduler: Scheduler, params: Mapping[int, SamplingParams]) -> None:
        """Draft for the running texts whose next token is due. params: by request id."""
        self.checked = []
        if self.drafter is None or scheduler.swapped or any(r.sequences[0].output_ids for r in scheduler.waiting):
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
