"""What an engine computed in a step: chunks, drafts, and which requests it moved between queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pagedlab.recipes.trace.words import pieces


@dataclass
class Forward:
    """The facts that are only known while a step runs, before its tokens are sampled.

    Args:
        plan: the step's plan.
        tables: the block ids of each sequence that it computes, by name.
        likely: of each sequence that samples a token, how likely the tokens are.
    """

    plan: Any = None
    tables: dict[str, list[int]] = field(default_factory=dict)
    likely: dict[str, Any] = field(default_factory=dict)


class StepLog:
    """Notes the plan of each step, and what came of its drafts.

    Args:
        llm: as for `Recorder`.
        words: whether the text of drafted tokens is noted.
        chances: likeliest tokens that are noted of each sampled one.
    """

    def __init__(self, llm: Any, words: bool, chances: int) -> None:
        self._llm = llm
        self._words = words
        self._chances = chances
        self._forward = Forward()
        self._swapped: set[str] = set()  # sequences whose KV is in CPU memory

    def listen(self, stack: Any) -> None:
        """Follow the engine's forward passes until the `ExitStack` is closed."""
        on_forward = getattr(self._llm, "on_forward", None)
        if on_forward is not None:
            stack.callback(on_forward(self._on_forward))

    def take(self) -> dict[str, Any]:
        """The fields of a recording's step for the step that has just ended."""
        plan = getattr(self._llm, "plan", None)
        if plan is None:
            return {}
        sequences = {chunk.sequence.name: chunk.sequence for chunk in plan.chunks}
        fields: dict[str, Any] = {
            "computed": {c.sequence.name: [c.start, c.stop] for c in plan.chunks},
            "admitted": {each.name: tokens for each, tokens in plan.admitted.items()},
            "preempted": {each.name: how for each, how in plan.preempted.items()},
            "drafts": self._drafts(plan),
        }
        fields["resumed"] = [name for name in fields["admitted"] if name in self._swapped]
        for name in fields["resumed"]:
            del fields["admitted"][name]
        swapped = [name for name, how in fields["preempted"].items() if how == "swap"]
        self._swapped = self._swapped.difference(fields["resumed"]).union(swapped)
        forward = self._forward
        self._forward = Forward()
        if forward.plan is plan:  # a step that runs ahead of the host has none
            fields["held"] = _other_tables(forward.tables, sequences)
            fields["likely"] = self._sampled(forward.likely, sequences)
        return {name: value for name, value in fields.items() if value}

    def _on_forward(self, plan: Any, logits: Any) -> None:
        tables = {c.sequence.name: list(c.sequence.table.block_ids) for c in plan.chunks}
        likely = {}
        if self._chances:
            from pagedlab.recipes.trace.chances import (
                next_token_chances,  # needs torch; the rest does not
            )

            likely = next_token_chances(plan, logits)
        self._forward = Forward(plan, tables, likely)

    def _drafts(self, plan: Any) -> dict[str, Any]:
        """The drafts that the step checked, by the sequence's name."""
        drafts = {}
        for chunk in plan.chunks:
            if not chunk.guesses:
                continue
            position = chunk.stop - len(chunk.guesses)
            known = chunk.sequence.token_ids
            pairs = zip(chunk.guesses, known[position:], strict=False)
            noted: dict[str, Any] = {
                "position": position,
                "tokens": len(chunk.guesses),
                "accepted": sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)),
            }
            if self._words:
                ids = [*known[:position], *chunk.guesses]
                noted["words"] = pieces(self._llm.decode, ids, position)
            drafts[chunk.sequence.name] = noted
        return drafts

    def _sampled(self, likely: dict[str, Any], sequences: dict[str, Any]) -> dict[str, Any]:
        """The sampled token and the likeliest others, by the sequence's name."""
        sampled = {}
        for name, chances in likely.items():
            ids = sequences[name].token_ids
            if chances.position < len(ids):
                tokens = chances.likeliest(ids[chances.position], self._chances)
                rows = [[t, self._llm.decode([t]), round(p, 6)] for t, p in tokens]
                sampled[name] = {"of": chances.vocabulary, "tokens": rows}
        return sampled


def _other_tables(tables: dict[str, list[int]], sequences: dict[str, Any]) -> dict[str, list[int]]:
    """The tables during the step that are not those after it: it ended, or a draft was rejected."""
    return {
        name: blocks for name, blocks in tables.items() if blocks != sequences[name].table.block_ids
    }
