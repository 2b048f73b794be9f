"""The scheduler of steps that run ahead of the host."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from pagedlab.scheduler import Chunk, Plan, Scheduler, Sequence
from pagedlab_fast.asked import can_run_ahead


@dataclass(eq=False)
class FastSequence(Sequence):
    """A sequence whose next tokens the device may know before the host does.

    Args:
        num_pending: tokens after the last one that are sampled now, and not known yet.
        streaming: whether somebody reads each token at once.
    """

    num_pending: int = 0
    streaming: bool = True

    @property
    def length(self) -> int:
        """Its tokens, with those that are pending."""
        return len(self.token_ids) + self.num_pending

    def tokens(self, start: int, stop: int) -> list[int]:
        """The tokens at these positions; 0 in place of a pending one, which the device knows."""
        known = self.token_ids[start:stop]
        return known + [0] * (stop - start - len(known))

    @property
    def has_last_token(self) -> bool:
        """Whether its last token is sampled or pending, so that nothing is left to compute."""
        return self.num_outputs + self.num_pending >= self.max_tokens


class FastScheduler(Scheduler):
    """Limits the prompt tokens of a step, and gives slots to tokens that are not known yet.

    A step is short while somebody reads an answer that grows, and after a plan of nothing, so that
    the device starts early.

    Attributes:
        max_prompt_tokens: prompt tokens of a short step, at most.
        in_flight: windows that were launched and not collected. `FastRunner` keeps it up to date.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.max_prompt_tokens = self.max_batch_tokens
        self.in_flight = 0
        self._prompt_budget = self.max_batch_tokens  # prompt tokens that this step may compute

    def schedule(self) -> Plan:
        """Plan the next step, as `Scheduler.schedule` does."""
        self._prompt_budget = self.max_batch_tokens
        if not self.plan.chunks or any(map(_is_read, self.running)):
            self._prompt_budget = self.max_prompt_tokens
        return super().schedule()

    def num_next(self, sequence: Any) -> int:
        """How many tokens a running sequence may compute in this step."""
        num_tokens = 0 if sequence.has_last_token else super().num_next(sequence)
        return min(num_tokens, self._prompt_budget) if _is_prompt(sequence) else num_tokens

    def give_slots(self, sequence: Sequence) -> bool:
        """Give slots to the next tokens of a running sequence, within both budgets."""
        is_prompt = _is_prompt(sequence)
        before = self.budget
        has_slots = super().give_slots(sequence)
        if is_prompt:
            self._prompt_budget -= before - self.budget
        return has_slots

    def has_room_for(self, sequence: Any) -> bool:
        """Whether a waiting sequence may run now. Its pending tokens must be known.

        While a window is in flight, none is admitted that needs the host.
        """
        if not self._prompt_budget or sequence.num_pending:
            return False
        if self.in_flight and not can_run_ahead(sequence):
            return False
        return super().has_room_for(sequence)

    def num_lacking(self) -> int:
        """One block a running sequence. They have got all slots that this step gives them.

        `Scheduler` counts what they lack, which takes as long as all other work on a short request.
        """
        return self.num_sequences()

    def has_room_for_next(self) -> bool:
        """Whether the next waiting sequence may run, at the latest when no window is in flight."""
        return bool(self.waiting) and super().has_room_for(self.next_waiting())

    def next_waits_for_host(self) -> bool:
        """Whether the next waiting sequence fits, and needs the host."""
        return self.has_room_for_next() and not can_run_ahead(self.next_waiting())

    def reserve_ahead(self, chunks: Seq[Chunk], num_tokens: int) -> list[Chunk]:
        """Give slots to further tokens of each sequence while its chunk is still being computed.

        Args:
            chunks: the chunks of the plan.
            num_tokens: further tokens of each sequence, at most.

        Returns:
            The chunks with these tokens. They are unchanged if blocks are short or if a waiting
            sequence fits. Then `schedule` must plan the next step.
        """
        if self.has_room_for_next():
            return list(chunks)
        longer = []
        need = 0
        for chunk in chunks:
            sequence = chunk.sequence
            # the last token needs no KV
            end = sequence.num_prompt_tokens + sequence.max_tokens - 1
            stop = max(chunk.stop, min(chunk.stop + num_tokens, end))
            need += sequence.table.needs(stop - chunk.stop)
            longer.append(up_to(chunk, stop))
        if need > self.pool.num_free:
            return list(chunks)
        for chunk, before in zip(longer, chunks, strict=True):
            chunk.sequence.table.append(chunk.stop - before.stop)  # no copies: it owns its blocks
        return longer


def up_to(chunk: Chunk, stop: int) -> Chunk:
    """The same chunk with another end. `_replace` takes twice as long."""
    return Chunk(chunk.sequence, chunk.start, stop)


def _is_prompt(sequence: Sequence) -> bool:
    """Whether more than its next token is to be computed."""
    return sequence.num_uncomputed > 1


def _is_read(sequence: Any) -> bool:
    """Whether a reader, who takes token by token, waits for its next one."""
    return sequence.streaming and not sequence.has_last_token and not _is_prompt(sequence)
