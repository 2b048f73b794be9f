"""Steps of one new token a text that do not leave the device: forward, draw, and the next step's inputs.

At this size of model a step takes the GPU a millisecond or two, and Python longer than that to prepare it. So what a
step needs stands in one table on the device, a row a text:

    token | position | stop | may end | seed | temperature | block ids ...

A step computes the token at `position`, draws the next, and writes both back. It can be repeated without a word from
the host, as often as the blocks reach, and captured as a CUDA graph: then it is one launch. A row is idle once its
position has come to `stop`, or its text has ended.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.sampling import choose
from pagedlab.scheduler import Sequence

TOKEN, POSITION, STOP, MAY_END, SEED, TEMPERATURE, TABLE = 0, 1, 2, 3, 4, 6, 8  # columns of int32; two make 64 bits
BUCKETS = (1, 2, 4, 8, *range(16, 257, 16))


class Row(NamedTuple):
    """A text for `Decoder.run`: how far its blocks reach, whether end-of-text ends it, how it draws."""

    sequence: Sequence
    stop: int  # the first position that is not to be computed
    may_end: bool
    temperature: float


class Decoder:
    """Runs decode steps for up to `max_rows` texts of up to `max_blocks` blocks, with or without CUDA graphs."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        attend: PagedAttention,
        max_rows: int,
        max_blocks: int,
        max_steps: int,
        graphs: bool,
    ) -> None:
        self.model, self.cache, self.attend = model, cache, attend
        device, shape = model.device, (max_rows, TABLE + max_blocks)
        self.buckets = [b for b in BUCKETS if b < max_rows] + [max_rows]
        self.host = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.state = torch.zeros(shape, dtype=torch.int32, device=device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)  # of the steps in one run
        self.tokens = torch.zeros((max_steps, max_rows), dtype=torch.int64, device=device)
        self.logprobs = torch.zeros((max_steps, max_rows), device=device)
        self.ends = torch.tensor(sorted(model.eos_token_ids), dtype=torch.int64, device=device)
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] | None = {} if graphs else None

    def run(self, rows: Seq[Row], steps: int) -> list[tuple[list[int], list[float]]]:
        """Compute up to `steps` tokens of each text; return its new tokens and their log-probabilities.

        Its blocks have room for them. A text gets fewer if it ends or if its row stops before.
        """
        self._send(rows)
        size = next(b for b in self.buckets if b >= len(rows))
        greedy = all(row.temperature == 0 for row in rows)
        for _ in range(steps):
            self._step(size, greedy)
        tokens, logprobs = (x[:steps, : len(rows)].T.tolist() for x in (self.tokens, self.logprobs))
        counts = [next((i for i, token in enumerate(column) if token < 0), steps) for column in tokens]
        return [(t[:n], p[:n]) for t, p, n in zip(tokens, logprobs, counts, strict=True)]

    def capture(self) -> None:
        """Capture all graphs, the largest first, so that the others fit into its memory."""
        for size in reversed(self.buckets):
            for greedy in (True, False):
                self._send([])
                self._step(size, greedy)

    def _send(self, rows: Seq[Row]) -> None:
        state = self.host.numpy()
        state[:, POSITION : STOP + 1] = 0  # idle
        for i, (sequence, stop, may_end, temperature) in enumerate(rows):
            table, position = sequence.table.block_ids, len(sequence.token_ids) - 1
            state[i, :SEED] = sequence.token_ids[-1], position, stop, may_end
            state[i, SEED:TEMPERATURE] = np.array([sequence.seed % 2**63]).view(np.int32)
            state[i, TEMPERATURE:TABLE] = np.array([temperature], np.float64).view(np.int32)
            state[i, TABLE : TABLE + len(table)] = table
        self.state.copy_(self.host, non_blocking=True)
        self.turn.zero_()

    def _step(self, size: int, greedy: bool) -> None:
        if self.graphs is None:
            self._compute(size, greedy)
            return
        graph = self.graphs.get((size, greedy))
        if graph is None:
            graph = self.graphs[size, greedy] = self._captured(size, greedy)
        graph.replay()

    def _captured(self, size: int, greedy: bool) -> torch.cuda.CUDAGraph:
        before = self.state.clone(), self.turn.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute(size, greedy)  # what is compiled or allocated once must be so before the capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._compute(size, greedy)
        self.state.copy_(before[0])  # KV written twice is the same KV
        self.turn.copy_(before[1])
        return graph

    def _compute(self, size: int, greedy: bool) -> None:
        with torch.inference_mode():
            rows, block_size = self.state[:size], self.cache.block_size
            position, table = rows[:, POSITION].long(), rows[:, TABLE:]
            active = position < rows[:, STOP]
            block = table.gather(1, (position // block_size)[:, None]).squeeze(1).long()
            batch = Batch(
                token_ids=rows[:, TOKEN].long(),
                positions=position,
                slots=torch.where(active, block * block_size + position % block_size, -1),
                block_tables=table,
                seq_lens=torch.where(active, position + 1, 0).int(),
                query_starts=torch.arange(size + 1, dtype=torch.int32, device=rows.device),
                last_rows=torch.arange(size, device=rows.device),
            )
            logits = self.model.forward(batch, self.cache, self.attend)
            seeds = rows[:, SEED:TEMPERATURE].contiguous().view(torch.int64).squeeze(1)
            temperature = None if greedy else rows[:, TEMPERATURE:TABLE].contiguous().view(torch.float64).squeeze(1)
            tokens, logprobs = choose(logits, temperature, seeds, position + 1)
            self.tokens[:, :size].index_copy_(0, self.turn, torch.where(active, tokens, -1)[None])
            self.logprobs[:, :size].index_copy_(0, self.turn, logprobs[None])
            ended = torch.isin(tokens, self.ends) & (rows[:, MAY_END] > 0)
            rows[:, STOP] = torch.where(active & ended, rows[:, POSITION], rows[:, STOP])
            rows[:, TOKEN] = torch.where(active, tokens.int(), rows[:, TOKEN])
            rows[:, POSITION] += active.int()
            self.turn += 1
