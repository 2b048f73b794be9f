"""A toy engine that sees only what its blocks hold, a tracer over its bookkeeping, and a fake device that runs ahead.

Each slot stores its token. The next token is a checksum of all tokens before it, read through the block table. So an
engine that reads another request's block, or one that was never computed, writes other tokens.
"""

from __future__ import annotations

import sys
import zlib
from bisect import bisect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

import pagedlab
import pagedlab_fast
from pagedlab import LLM
from pagedlab.batch import Batch, build_batch
from pagedlab.sampling import NO_TOKEN, NewTokens, sample_chunks, sample_rows
from pagedlab.scheduler import Chunk
from pagedlab_fast.runner import FastRunner
from pagedlab_fast.window import RowPlan

if TYPE_CHECKING:
    from pagedlab.model import Model

HOME = Path(pagedlab.__file__).parent
BOOKKEEPING = {
    "pagedlab": "batch blocks engine kv_cache outputs prefix sampling scheduler",
    "pagedlab/recipes": "beam eviction logprobs speculative swap",
    "pagedlab_fast": "engine runner sampling scheduler",
}
BOOKS = {str(HOME.parent / house / f"{name}.py") for house, names in BOOKKEEPING.items() for name in names.split()}
assert all(Path(book).is_file() for book in BOOKS)
Place = tuple[str, int]  # file and line
SHIFTS = torch.arange(64) % 24


def checksum(batch: Batch, cache, attend):
    """Stand in for a model's forward pass."""
    kept = cache.keys[0, :, :, 0, 0]
    kept.view(-1)[batch.slots] = batch.token_ids.to(kept.dtype)
    rows = batch.last_rows.tolist()
    logits = torch.zeros(len(rows), 64)
    starts, size = batch.query_starts.tolist(), cache.block_size
    for i, row in enumerate(rows):
        b = bisect(starts, row) - 1
        count = int(batch.positions[row]) + 1
        blocks = batch.block_tables[b, : -(-count // size)].long()
        name = zlib.crc32(kept[blocks].flatten()[:count].numpy().tobytes())
        logits[i] = (name >> SHIFTS) % 97 / 9
        logits[i, name % 64] += 9
    return logits


def likeliest(token_ids: list[int]):
    """The token that the checksum of these tokens makes the likeliest."""
    return zlib.crc32(torch.tensor(token_ids).float().numpy().tobytes()) % 64


def toy(tiny: Model, kind: type[LLM] = LLM, **options):
    """An engine with blocks of four tokens, full of NaN, and the checksum in place of the model."""
    llm = kind(tiny, block_size=4, verbose=False, **{"num_blocks": 64, "max_batch_tokens": 16, **options})
    llm.cache.keys.fill_(torch.nan)
    llm.forward = checksum
    return llm


def toy_ahead(tiny: Model, **options):
    """A toy engine that runs windows of steps ahead of the host, on a fake device."""

    def runner(llm: LLM):
        return FastRunner(llm, FakeDevice(llm), 4)

    return toy(tiny, pagedlab_fast.LLM, **{"runner": runner, **options})


class FakeDevice:
    """In place of the decoder of CUDA graphs: it runs a window when it is launched, and knows tokens before the host.

    It sees what a device sees: the blocks and positions of each chunk, and the tokens that it sampled itself. Its twin
    of a sequence has these tokens.
    """

    def __init__(self, llm: LLM):
        self._llm = llm

    def compute(self, chunks: list[Chunk]):
        """Steps that the host samples for are run by the engine itself."""
        return

    def forget(self):
        """It counts no tokens."""

    def launch(self, chunks: list[Chunk], before=None):
        plans = [RowPlan.of(chunk) for chunk in chunks]
        twins = {}
        for sequence in [plan.sequence for plan in plans]:
            latest = before.twins.get(sequence, sequence) if before else sequence
            twins[sequence] = replace(
                latest, token_ids=latest.token_ids[:], table=sequence.table, num_pending=0, forks=[]
            )
        for step in range(1 + max(plan.chunk.stop - plan.first_stop for plan in plans)):
            self._step([self._chunk(plan, twins[plan.sequence], step) for plan in plans])
        return SimpleNamespace(rows=plans, twins=twins, done=None)

    def collect(self, window):
        found = []
        for plan in window.rows:
            tokens = window.twins[plan.sequence].token_ids
            found.append(NewTokens(tokens[plan.first_stop :][: plan.num_samples]))
        return found

    def _chunk(self, plan: RowPlan, twin, step: int):
        """What a step of a window computes: at first the known tokens, and then one token each."""
        stop = plan.first_stop + step
        return Chunk(twin, stop - 1 if step else plan.chunk.start, stop if stop <= plan.chunk.stop else 0)

    def _step(self, chunks: list[Chunk]):
        chunks = [chunk for chunk in chunks if chunk.stop and not chunk.sequence.finish_reason]
        if not chunks:
            return
        logits = checksum(build_batch(chunks, torch.device("cpu")), self._llm.cache, None)
        for twin, new in sample_chunks(logits, chunks, sample_rows).items():
            twin.token_ids += new.token_ids
            ends = frozenset() if twin.params.ignore_eos else self._llm.model.eos_token_ids
            if new.token_ids[0] in {NO_TOKEN, *ends}:
                twin.finish_reason = "stop"


@contextmanager
def at_each_line(event: Callable[[Place], None], files=BOOKS):
    """Call `event((file, line))` before every line of the bookkeeping that runs, or of some of its files."""

    def line(frame, what: str, _):
        if what == "line":
            event((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, what, _: line if frame.f_code.co_filename in files else None)
    try:
        yield
    finally:
        sys.settrace(before)


def some_moments(runs: Mapping[Place, int]):
    """Each line with some of the times that it runs: the first, the last, and up to three between."""
    times = {place: {1, *(max(1, count * q // 4) for q in range(1, 5))} for place, count in runs.items()}
    return [(place, nth) for place in runs for nth in times[place]]
