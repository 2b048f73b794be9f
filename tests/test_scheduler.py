"""The scheduler, driven by a toy model that is exact: every slot remembers the whole text before it.

A slot holds the tokens up to its own, and the next token is a checksum of what the slots of a text say. So a
block shared, copied, freed or reused wrongly changes the text, and all texts are known in advance. No torch.
"""

from __future__ import annotations

import itertools
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import BlockPool, BlockTable, OutOfBlocks
from pagedlab.scheduler import Chunk, Request, Scheduler, Sequence


def next_token(tokens: tuple[int, ...], seed: int) -> int:
    return zlib.crc32(repr((tokens, seed)).encode()) % 50


def expected_text(prompt: list[int], seed: int, max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tuple(tokens), seed))
        if tokens[-1] == 0:
            break
    return tokens[len(prompt) :]


class Fault(Exception):
    """What a pool raises in these tests when it is told to fail."""


class FaultyPool(BlockPool):
    """Raises at the next call of `allocate` or `share` once `fuse` calls have gone by."""

    fuse: int | None = None

    def burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Fault

    def allocate(self) -> int:
        self.burn()
        return super().allocate()

    def share(self, block_id: int) -> int:
        self.burn()
        return super().share(block_id)


class ToyEngine:
    """What LLM does around its scheduler, with the toy in the model's place."""

    def __init__(self, num_blocks: int, block_size: int, max_batch_tokens: int, max_sequences: int) -> None:
        self.pool = FaultyPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, max_batch_tokens, max_sequences)
        self.slots: list[tuple[int, ...] | None] = [None] * (num_blocks * block_size)
        self.ids = itertools.count()
        self.live: list[Request] = []

    def add(self, prompt: list[int], num_texts: int, max_tokens: int) -> Request:
        number = next(self.ids)
        first = Sequence(f"r{number}", BlockTable(self.pool), list(prompt), 1000 * number, len(prompt))
        request = Request(number, [first], num_texts, max_tokens)
        self.scheduler.add(request)
        self.live.append(request)
        return request

    def step(self, fuse: int | None = None, model_fails: bool = False) -> list[Chunk]:
        self.pool.fuse = fuse
        try:
            plan = self.scheduler.schedule()
        except Fault:
            return []
        finally:
            self.pool.fuse = None
        self.check(plan.chunks)
        size = self.pool.block_size
        for source, destination in plan.copies:
            held = self.slots[source * size : (source + 1) * size]
            self.slots[destination * size : (destination + 1) * size] = held
        for _, sequence, start, stop in plan.chunks:
            for position, slot in zip(range(start, stop), sequence.table.slots(start, stop), strict=True):
                self.slots[slot] = tuple(sequence.token_ids[: position + 1])
        if model_fails:
            self.scheduler.undo(plan)
            return []
        for chunk in plan.chunks:
            slots = chunk.sequence.table.slots(0, chunk.stop)
            for position, slot in enumerate(slots):
                assert self.slots[slot] == tuple(chunk.sequence.token_ids[: position + 1]), "a text reads foreign KV"
        for request, sequence, _, _ in (chunk for chunk in plan.chunks if chunk.is_last):
            forks = [
                Sequence(
                    f"fork {nth}",
                    sequence.table.fork(),
                    list(sequence.token_ids),
                    sequence.seed + nth,
                    sequence.num_prompt_tokens,
                )
                for nth in range(1, 1 + request.texts_to_fork)
            ]
            request.sequences += forks
            for text in [sequence, *forks]:
                self.extend(request, text)
        for request in list(self.live):
            if not request.unfinished:
                self.remove(request)
        return plan.chunks

    def extend(self, request: Request, text: Sequence) -> None:
        text.token_ids.append(next_token(tuple(text.token_ids), text.seed))
        if text.token_ids[-1] == 0 or len(text.output_ids) >= request.max_tokens:
            text.finish_reason = "done"
            text.table.free()

    def remove(self, request: Request) -> None:
        self.live.remove(request)
        self.scheduler.remove(request)

    def check(self, chunks: list[Chunk]) -> None:
        scheduler = self.scheduler
        assert sum(chunk.stop - chunk.start for chunk in chunks) <= scheduler.max_batch_tokens
        assert all(chunk.stop > chunk.start for chunk in chunks), "a chunk without a token"
        assert sum(request.num_texts for request in scheduler.running) <= scheduler.max_sequences
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
        tables = [text.table for request in self.live for text in request.sequences]
        self.pool.check(tables)
        assert not any(text.table.block_ids for request in scheduler.waiting for text in request.sequences)
        assert [*scheduler.running, *scheduler.waiting] == self.live, "not first come, first served"


PROMPTS = st.lists(st.integers(1, 49), min_size=1, max_size=14)
ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.tuples(PROMPTS, st.sampled_from([3, 1, 4, 2]), st.integers(1, 9))),
    st.tuples(st.sampled_from(["step", "step", "schedule fails", "model fails", "abort"]), st.integers(0, 4)),
)


@settings(max_examples=150)
@given(
    num_blocks=st.integers(6, 40),
    block_size=st.sampled_from([4, 3, 2, 5, 1]),
    max_batch_tokens=st.sampled_from([20, 9, 4, 1]),
    max_sequences=st.sampled_from([9, 5, 1]),
    actions=st.lists(ACTIONS, min_size=10, max_size=50),
)
def test_every_text_comes_out_as_if_it_were_alone(
    num_blocks: int,
    block_size: int,
    max_batch_tokens: int,
    max_sequences: int,
    actions: list[tuple[str, object]],
) -> None:
    """Whatever is added, aborted, or fails in the schedule or in the model: who stays gets the right text."""
    engine = ToyEngine(num_blocks, block_size, max_batch_tokens, max_sequences)
    added: list[Request] = []
    aborted: list[Request] = []
    for action, what in actions:
        if action == "add":
            prompt, num_texts, max_tokens = what  # type: ignore[misc]
            before = engine.pool.num_used, len(engine.scheduler.waiting)
            try:
                added.append(engine.add(prompt, num_texts, max_tokens))
            except ValueError:
                assert (engine.pool.num_used, len(engine.scheduler.waiting)) == before
        elif action == "abort":
            if engine.live:
                aborted.append(engine.live[what % len(engine.live)])  # type: ignore[operator]
                engine.remove(aborted[-1])
        else:
            engine.step(what if action == "schedule fails" else None, action == "model fails")  # type: ignore[arg-type]
    # Each step computes at least one token, so the rest must end within as many steps as there are tokens.
    left = sum(len(r.sequences[0].token_ids) + r.num_texts * r.max_tokens for r in engine.live)
    for _ in range(left + 1):
        if not engine.live:
            break
        assert engine.step(), "no progress"
    assert not engine.live
    for request in added:
        if request not in aborted:
            first = request.sequences[0]
            prompt = first.token_ids[: first.num_prompt_tokens]
            for nth, text in enumerate(request.sequences):
                assert text.output_ids == expected_text(prompt, first.seed + nth, request.max_tokens)
            assert len(request.sequences) == request.num_texts
    assert engine.pool.num_used == 0
    engine.pool.check([])
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


def test_the_promise_holds_to_the_last_block() -> None:
    """A request whose worst case is exactly the pool runs; one token more is refused, with the numbers."""
    engine = ToyEngine(5, 4, 100, 10)
    engine.add([1] * 5, 3, 4)  # 1 shared block of the prompt, and 3 x 1 more for slots 5 to 8
    while engine.live:
        engine.step()
    with pytest.raises(
        ValueError, match=r"needs 7 blocks of 4 tokens \(5 prompt tokens, up to 5 new ones, 3 texts\) and"
    ):
        engine.add([1] * 5, 3, 5)


def test_prompts_without_a_partial_block_need_no_copies() -> None:
    engine = ToyEngine(9, 4, 100, 10)
    engine.add([1] * 8, 3, 3)
    copies = []
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda: copies.extend((plan := schedule()).copies) or plan  # type: ignore[method-assign]
    while engine.live:
        engine.step()
    assert copies == []


def test_n_texts_copy_a_partial_block_n_minus_one_times() -> None:
    engine = ToyEngine(20, 4, 100, 10)
    engine.add([3] * 6, 4, 3)
    engine.step()
    plan = engine.scheduler.schedule()
    assert len(plan.copies) == len([s for s in engine.live[0].sequences if s.finish_reason is None]) - 1
    assert len({copy.source for copy in plan.copies}) == 1


def test_who_waits_is_served_in_order_and_a_large_one_is_not_passed_by() -> None:
    engine = ToyEngine(6, 4, 100, 10)
    small, large, later = engine.add([1] * 8, 1, 5), engine.add([2] * 20, 1, 4), engine.add([3] * 4, 1, 1)
    engine.step()
    assert engine.scheduler.running == [small]
    while small in engine.live:
        engine.step()
    engine.step()
    assert engine.scheduler.running == [large]
    assert list(engine.scheduler.waiting) == [later]


def test_a_long_prompt_is_computed_in_chunks_and_keeps_its_place() -> None:
    engine = ToyEngine(20, 4, 6, 10)
    engine.add([1] * 15, 1, 1)
    engine.add([2] * 3, 1, 1)
    sizes = []
    while engine.live:
        sizes.append([(chunk.request.request_id, chunk.stop - chunk.start) for chunk in engine.step()])
    assert sizes == [[(0, 6)], [(0, 6)], [(0, 3), (1, 3)]]


@pytest.mark.parametrize("limits", [(0, 4), (4, 0), (-1, 4)])
def test_limits_must_be_positive(limits: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Scheduler(BlockPool(4), *limits)


def test_more_texts_than_run_side_by_side() -> None:
    for max_batch_tokens, max_sequences in ((100, 3), (3, 100)):
        engine = ToyEngine(100, 4, max_batch_tokens, max_sequences)
        with pytest.raises(ValueError, match="4 texts of one prompt run side by side and the engine takes 3"):
            engine.add([1, 2], 4, 2)
        assert not engine.scheduler.waiting


def test_a_pool_that_runs_dry_in_the_middle_leaves_every_table_as_it_was() -> None:
    """Somebody else takes the blocks that were promised: the step fails as a whole, and goes on once they are back."""
    engine = ToyEngine(8, 4, 100, 10)
    a, b = engine.add([1] * 4, 1, 3), engine.add([2] * 4, 1, 3)
    engine.step()
    taken = [engine.pool.allocate() for _ in range(5)]
    before = [(list(r.sequences[0].table.block_ids), r.sequences[0].table.num_tokens) for r in (a, b)]
    with pytest.raises(OutOfBlocks):
        engine.scheduler.schedule()
    assert [(list(r.sequences[0].table.block_ids), r.sequences[0].table.num_tokens) for r in (a, b)] == before
    for block_id in taken:
        engine.pool.release(block_id)
    while engine.live:
        engine.step()
    assert a.sequences[0].output_ids == expected_text([1] * 4, 0, 3)
    assert b.sequences[0].output_ids == expected_text([2] * 4, 1000, 3)


@pytest.mark.parametrize("failure", ["schedule", "model"])
def test_a_copy_stays_due_when_its_step_fails(failure: str) -> None:
    """Three texts share a partial block. The first has its copy's block when the step fails: its contents must come."""
    engine = ToyEngine(20, 4, 100, 10)
    request = engine.add([3] * 6, 3, 6)
    engine.step()
    engine.step(fuse=1 if failure == "schedule" else None, model_fails=failure == "model")
    while engine.live:
        engine.step()
    for nth, text in enumerate(request.sequences):
        assert text.output_ids == expected_text([3] * 6, nth, 6)
