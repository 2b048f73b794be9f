"""A toy engine that sees only what its blocks hold, a tracer over its bookkeeping, and a fake device that runs ahead.

Each slot stores its token. The next token is a checksum of all tokens before it, read through the block table. So an
engine that reads another request's block, or one that was never computed, writes other tokens.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

import pagedlab
import pagedlab_fast
from pagedlab import LLM
from pagedlab.batch import Batch, build_batch
from pagedlab.sampling import NewTokens, sample_rows, uniform
from pagedlab.scheduler import Chunk
from pagedlab_fast.runner import FastRunner

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


def checksum(batch: Batch, cache, attend) -> torch.Tensor:
    """Stand in for a model's forward pass."""
    kept = cache.keys[0].flatten(0, 1)[:, 0, 0]
    kept[batch.slots] = batch.token_ids.to(kept.dtype)
    rows = batch.last_rows.tolist()
    logits = torch.zeros(len(rows), 64)
    starts, size = batch.query_starts.tolist(), cache.block_size
    for i, row in enumerate(rows):
        b = next(b for b in range(len(starts) - 1) if starts[b] <= row < starts[b + 1])
        at = torch.arange(int(batch.positions[row]) + 1)
        slots = batch.block_tables[b, at // size].long() * size + at % size
        name = zlib.crc32(kept[slots].numpy().tobytes())
        logits[i] = torch.tensor([(name >> (k % 24)) % 97 for k in range(64)]).float() / 9
        logits[i, name % 64] += 9
    return logits


def likeliest(token_ids: list[int]) -> int:
    """The token that the checksum of these tokens makes the likeliest."""
    return zlib.crc32(torch.tensor(token_ids).float().numpy().tobytes()) % 64


def toy(tiny: Model, kind: type[LLM] = LLM, **options) -> LLM:
    """An engine with blocks of four tokens, full of NaN, and the checksum in place of the model."""
    llm = kind(tiny, block_size=4, verbose=False, **{"num_blocks": 64, "max_batch_tokens": 16, **options})
    llm.cache.keys.fill_(torch.nan)
    llm.forward = checksum
    return llm


def toy_ahead(tiny: Model, **options) -> LLM:
    """A toy engine that runs windows of steps ahead of the host, on a fake device."""

    def runner(llm: LLM) -> FastRunner:
        return FastRunner(llm, FakeDevice(llm), 4)

    return toy(tiny, pagedlab_fast.LLM, **{"runner": runner, **options})


class FakeDevice:
    """In place of the decoder of CUDA graphs: it runs a window when it is launched, and knows tokens before the host.

    It sees what a device sees: the blocks and positions of each chunk, and the tokens that it drew itself.
    """

    def __init__(self, llm: LLM):
        self._llm = llm

    def compute(self, chunks: list[Chunk]):
        """Steps that the host samples for are run by the engine itself."""
        return

    def launch(self, chunks: list[Chunk], before=None):
        rows = [self._row(chunk, before) for chunk in chunks]
        pending = rows
        while pending:  # one step each turn: the first takes a row's prompt, the others one token
            self._step(pending)
            pending = [row for row in pending if row.at < row.chunk.stop and not row.ended]
        return SimpleNamespace(rows=rows, done=None)

    def forget(self):
        """It counts no tokens."""

    def collect(self, window) -> list[NewTokens]:
        return [NewTokens(row.new_tokens) for row in window.rows]

    def _row(self, chunk: Chunk, before):
        tokens, ended = chunk.sequence.token_ids[:], False
        for row in before.rows if before else []:
            if row.chunk.sequence is chunk.sequence:
                tokens, ended = row.tokens[:], row.ended
        known = len(tokens)
        first_stop = max(chunk.start + 1, min(chunk.stop, known))
        draws = chunk.stop >= known
        return SimpleNamespace(
            chunk=chunk, sequence=chunk.sequence, params=chunk.sequence.params,
            tokens=tokens, at=chunk.start, first_stop=first_stop,
            num_samples=chunk.stop - first_stop + 1 if draws else 0, new_tokens=[], ended=ended,
        )  # fmt: skip

    def _step(self, rows: list[Any]):
        rows = [row for row in rows if not row.ended]
        if not rows:
            return
        chunks = []
        for row in rows:
            stop = row.first_stop if row.at == row.chunk.start else row.at + 1
            chunks.append(row.chunk._replace(start=row.at, stop=stop))
        batch = build_batch(chunks, torch.device("cpu"))
        ids = [token for row, chunk in zip(rows, chunks, strict=True) for token in row.tokens[chunk.start : chunk.stop]]
        ends = batch.query_starts[1:].long() - 1
        last = Batch(**{**vars(batch), "token_ids": torch.tensor(ids), "last_rows": ends})
        logits = checksum(last, self._llm.cache, None)
        for row, chunk, one in zip(rows, chunks, logits, strict=True):
            row.at = chunk.stop
            if chunk.stop == len(row.tokens) and row.num_samples:
                self._draw(row, one)

    def _draw(self, row, logits: torch.Tensor):
        adjusted = logits[None]
        if row.params.adjust is not None:
            prompt = row.chunk.sequence.num_prompt_tokens
            adjusted = row.params.adjust(logits, row.tokens[:prompt], row.tokens[prompt:])[None]
        number = uniform(row.chunk.sequence.seed, len(row.tokens))
        token = sample_rows(adjusted, [row.params], [number])
        row.tokens.append(int(token))
        row.new_tokens.append(int(token))
        is_end = not row.params.ignore_eos and int(token) in self._llm.model.eos_token_ids
        row.ended = is_end or int(token) < 0


@contextmanager
def at_each_line(event: Callable[[Place], None]) -> Iterator[None]:
    """Call `event((file, line))` before every line of the bookkeeping that runs."""

    def line(frame, what: str, _):
        if what == "line":
            event((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, what, _: line if frame.f_code.co_filename in BOOKS else None)
    try:
        yield
    finally:
        sys.settrace(before)


def some_moments(runs: Mapping[Place, int]) -> list[tuple[Place, int]]:
    """Each line with some of the times that it runs: the first, the last, and up to three between."""
    times = {place: {1, *(max(1, count * q // 4) for q in range(1, 5))} for place, count in runs.items()}
    return [(place, nth) for place in runs for nth in times[place]]
