"""Plausible wrong answers to the exercises of notebook 09, and right ones that differ from the solution."""

from __future__ import annotations

from typing import Any

from pagedlab.checks.scheduling import FirstThatFits, Patient
from pagedlab.scheduler import Request, Scheduler

# patient ------------------------------------------------------------------------------------------------------


class FirstComeFirstServed(Scheduler):
    """Starves nobody, and leaves the gaps empty."""


class ShortestFirst(Scheduler):
    def next_waiting(self) -> Request:
        return min(self.waiting, key=lambda request: request.sequences[0].num_prompt_tokens)


class OncePassedNeverAgain(Patient):
    """Never forgets: after three passes in all, gaps stay empty for good."""

    def next_waiting(self) -> Request:
        before = self.passed
        chosen = super().next_waiting()
        self.passed = max(before, self.passed)
        return chosen


class PassesFourTimes(Patient):
    def next_waiting(self) -> Request:
        first, self.passed = self.waiting[0], self.passed - 1
        chosen = super().next_waiting()
        self.passed += chosen is not first
        return chosen


class CountsEveryCall(Patient):
    """Also when nobody is let in."""

    def next_waiting(self) -> Request:
        if self.may_admit(self.waiting[0]):
            return super().next_waiting()
        self.passed += 1
        if self.passed > 3:
            return self.waiting[0]
        return next((request for request in self.waiting if self.may_admit(request)), self.waiting[0])


class LastThatFits(Scheduler):
    def next_waiting(self) -> Request:
        return next((request for request in reversed(self.waiting) if self.may_admit(request)), self.waiting[0])


class ShortestThatFits(Patient):
    def next_waiting(self) -> Request:
        chosen = super().next_waiting()
        fits = [request for request in self.waiting if self.may_admit(request)]
        return chosen if chosen is self.waiting[0] else min(fits, key=lambda r: r.sequences[0].num_prompt_tokens)


class CountsByRequest(Scheduler):
    """Right as well: a count for each request, kept by those who were let in."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.times: dict[Request, int] = {}

    def next_waiting(self) -> Request:
        first = self.waiting[0]
        fits = [request for request in self.waiting if self.may_admit(request)]
        if first in fits or not fits or self.times.get(first, 0) == 3:
            return first
        self.times[first] = self.times.get(first, 0) + 1
        return fits[0]


# victim -------------------------------------------------------------------------------------------------------


def computed(request: Request) -> int:
    return request.sequences[0].table.num_tokens


class LastCome(Scheduler):
    """What the scheduler does by itself."""


class OldestGoes(Scheduler):
    def victim(self) -> Request:
        return self.running[0]


class MostExpensive(Scheduler):
    def victim(self) -> Request:
        return max(self.running[1:] or self.running, key=computed)


class TheOldestToo(Scheduler):
    def victim(self) -> Request:
        return min((r for r in self.running if computed(r)), key=computed)


class EvenWithoutABlock(Scheduler):
    def victim(self) -> Request:
        return min(self.running[1:] or self.running, key=lambda request: (computed(request), -request.request_id))


class ShortestText(Scheduler):
    """Counts what the text has, and not what of it is computed."""

    def victim(self) -> Request:
        others = [request for request in reversed(self.running[1:]) if computed(request)]
        return min(others, key=lambda request: len(request.sequences[0].token_ids), default=self.running[0])


class EarlierOnATie(Scheduler):
    def victim(self) -> Request:
        return min((r for r in self.running[1:] if computed(r)), key=computed, default=self.running[0])


class FromTheEnd(Scheduler):
    """Right as well: the first of the smallest, counted from the end."""

    def victim(self) -> Request:
        others = [request for request in reversed(self.running[1:]) if computed(request)]
        return min(others, key=computed) if others else self.running[0]


# swap or recompute --------------------------------------------------------------------------------------------


def one_way(tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float) -> str:
    return "swap" if tokens * kv_bytes / bandwidth < 2 * tokens * parameters / flops else "recompute"


def one_flop_a_weight(tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float) -> str:
    return "swap" if 2 * tokens * kv_bytes / bandwidth < tokens * parameters / flops else "recompute"


def the_slower_one(tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float) -> str:
    return "recompute" if 2 * tokens * kv_bytes / bandwidth < 2 * tokens * parameters / flops else "swap"


def weights_once(tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float) -> str:
    return "swap" if 2 * tokens * kv_bytes / bandwidth < 2 * parameters / flops else "recompute"


def always_swap(tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float) -> str:
    return "swap" if tokens else "recompute"


def without_the_tokens(tokens: int, kv_bytes: int, bandwidth: float, parameters: float, flops: float) -> str:
    return "swap" if kv_bytes * flops < parameters * bandwidth else "recompute"


# the edge of a block ------------------------------------------------------------------------------------------


def one_too_late(held: list[int], free: int, block_size: int) -> bool:
    return sum(tokens % block_size == 1 for tokens in held) > free


def one_too_early(held: list[int], free: int, block_size: int) -> bool:
    return sum(tokens % block_size == block_size - 1 for tokens in held) > free


def counts_the_free_one(held: list[int], free: int, block_size: int) -> bool:
    return sum(tokens % block_size == 0 for tokens in held) >= free


def one_for_each(held: list[int], free: int, block_size: int) -> bool:
    return len(held) > free


def only_one(held: list[int], free: int, block_size: int) -> bool:
    return any(tokens % block_size == 0 for tokens in held) and not free


def all_together(held: list[int], free: int, block_size: int) -> bool:
    return (sum(held) + len(held)) // block_size - sum(held) // block_size > free


def forgets_empty_tables(held: list[int], free: int, block_size: int) -> bool:
    return sum(1 for tokens in held if tokens and tokens % block_size == 0) > free


def by_rounding_up(held: list[int], free: int, block_size: int) -> bool:
    return sum(-(-(n + 1) // block_size) - -(-n // block_size) for n in held) > free


WRONG: dict[str, list[Any]] = {
    "patient": [
        FirstComeFirstServed,
        FirstThatFits,
        ShortestFirst,
        OncePassedNeverAgain,
        PassesFourTimes,
        CountsEveryCall,
        LastThatFits,
        ShortestThatFits,
    ],
    "victim": [LastCome, OldestGoes, MostExpensive, TheOldestToo, EvenWithoutABlock, ShortestText, EarlierOnATie],
    "swap_or_recompute": [one_way, one_flop_a_weight, the_slower_one, weights_once, always_swap],
    "must_preempt": [
        one_too_late,
        one_too_early,
        counts_the_free_one,
        one_for_each,
        only_one,
        all_together,
        forgets_empty_tables,
    ],
}
RIGHT: dict[str, list[Any]] = {
    "patient": [Patient, CountsByRequest],
    "victim": [FromTheEnd],
    "swap_or_recompute": [without_the_tokens],
    "must_preempt": [by_rounding_up],
}
