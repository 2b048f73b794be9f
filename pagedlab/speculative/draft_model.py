"""A smaller model as the drafter: it writes the next tokens one by one, in blocks forked from the text's own."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from pagedlab.arguments import whole
from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks
from pagedlab.interrupts import let_through
from pagedlab.model import Model, load_model
from pagedlab.prefix import hash_chain
from pagedlab.sampling import probabilities, sample
from pagedlab.scheduler import Chunk, Sequence
from pagedlab.speculative.drafts import Ask, Draft

# Draws for one token must not depend on each other, so each kind has a stream of its own beside the plain one.
DRAFT_STREAM = 0x5851F42D4C957F2D


class DraftModel:
    """Proposes what a smaller model with the same tokenizer would write, k tokens one by one.

    model: what `LLM` takes. Its KV lies in a cache of its own that is addressed by the engine's block ids. To propose,
    it forks the text's table, writes behind it in fresh blocks, and frees the fork. What stays is its KV of full
    blocks, found again by their names as in prefix.py; the tokens behind them are read anew each time.
    """

    def __init__(self, model: Any, k: int = 4) -> None:
        self.k = whole("k, the tokens of a draft,", k, 1)
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
                with let_through():
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
