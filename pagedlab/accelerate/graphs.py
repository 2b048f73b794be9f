"""Decode steps that do not leave the device: forward, draw, and the next step's inputs, as one CUDA graph.

At this size of model a step takes the GPU a millisecond, and Python longer than that to prepare it. So what a step
needs stands in tables on the device, a row a text:

    now     token, position, ended                  the device's own: a step changes them
    orders  start, stop, may end, seed; temperature; block ids      the host's, sent for a window of some steps

A step computes the token at `position`, draws the next, and makes it the next input. It can be repeated without a word
from the host until `stop`, and a graph of it is one launch. While a window of steps runs, the host may send the next:
its rows then go on from wherever the device has come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.accelerate.advance import advance
from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kernels.sampling import triton_choose, triton_uniform
from pagedlab.kv_cache import KVCache
from pagedlab.sampling import SamplingParams
from pagedlab.scheduler import Chunk

BUCKETS = (1, 2, 4, 8, *range(16, 257, 16), *range(288, 513, 32), *range(576, 1025, 64))
POSITION, SEED = 1, 3  # columns of `now` and of `orders`


class Window(NamedTuple):
    """Steps that were launched. The other two are filled when `done` has come to pass."""

    chunks: list[Chunk]
    done: torch.cuda.Event | None
    drawn: Tensor  # [max_steps, max_rows] tokens, and behind them in the same rows log-probabilities
    reached: Tensor  # [max_rows] the position that each row came to


class Decoder:
    """Runs windows of decode steps for up to `max_rows` texts of up to `max_blocks` blocks."""

    def __init__(
        self,
        forward: Callable[[Batch, KVCache, PagedAttention], Tensor],
        cache: KVCache,
        attend: PagedAttention,
        ends: Iterable[int],
        max_rows: int,
        max_blocks: int,
        max_steps: int,
        graphs: bool = True,
    ) -> None:
        """forward: `Model.forward`, or one like it. `attend` must not wait for the device: the Triton kernels do not.

        ends: tokens that end a text. `graphs` off: launch by launch.
        """
        self.forward, self.cache, self.attend = forward, cache, attend
        self.buckets = [b for b in BUCKETS if b < max_rows] + [max_rows]
        self.graphs: dict[int, torch.cuda.CUDAGraph] | None = {} if graphs else None
        device = cache.keys.device
        pinned = device.type == "cuda"

        def host(*shape: int, dtype: torch.dtype) -> list[Tensor]:
            """Two, used in turns: the device may still read the one while the other is written."""
            return [torch.zeros(shape, dtype=dtype, pin_memory=pinned) for _ in range(2)]

        self._turn = 0
        self._host_now = host(max_rows, 3, dtype=torch.int32)
        self._host_orders = host(max_rows, 4, dtype=torch.int64)
        self._host_temperature = host(max_rows, dtype=torch.float32)
        self._host_tables = host(max_rows, max_blocks, dtype=torch.int32)
        self._host_origin = host(max_rows, dtype=torch.int64)
        self._host_history = host(max_steps, max_rows, 2, dtype=torch.float64)
        self._host_reached = host(max_rows, dtype=torch.int32)

        mirrored = self._host_now, self._host_orders, self._host_temperature, self._host_tables, self._host_history
        here = [torch.zeros_like(one, device=device) for one, _ in mirrored]
        self._now, self._orders, self._temperature, self._tables, self._history = here
        self._ends = torch.tensor(sorted(ends) or [-1], device=device)
        token_ids, positions, slots = (torch.zeros(max_rows, dtype=torch.int64, device=device) for _ in range(3))
        seq_lens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        starts, rows = (torch.arange(n, device=device) for n in (max_rows + 1, max_rows))
        self._inputs = token_ids, positions, slots, seq_lens
        self._batch = Batch(token_ids, positions, slots, self._tables, seq_lens, starts.int(), rows)

    def launch(self, chunks: list[Chunk], params: Mapping[int, SamplingParams], before: Window | None = None) -> Window:
        """Start computing all chunks, a row each, and draw behind every position; nothing waits.

        params: by request id. With `before`, the latest window, which may still run, every chunk goes on where that
        one leaves the same text.
        """
        self._turn ^= 1
        self._send(chunks, params, before)
        size = self._size(len(chunks))
        self._advance(size)
        for _ in range(max(chunk.stop - chunk.start for chunk in chunks)):
            self._step(size)
        history, reached = self._host_history[self._turn], self._host_reached[self._turn]
        history.copy_(self._history, non_blocking=True)
        reached.copy_(self._now[:, POSITION], non_blocking=True)
        done = torch.cuda.Event() if self._now.is_cuda else None
        if done:
            done.record()
        return Window(chunks, done, history, reached)

    def collect(self, window: Window) -> list[tuple[list[int], list[float]]]:
        """Wait for a window, one of the two latest: each row's new tokens and their log-probabilities.

        A row has fewer than it asked for only if its text ended.
        """
        if window.done:
            window.done.synchronize()
        tokens = window.drawn[..., 0].long().T.tolist()
        logprobs = window.drawn[..., 1].T.tolist()
        counts = [at - chunk.start for at, chunk in zip(window.reached.tolist(), window.chunks, strict=False)]
        return [(t[:n], p[:n]) for t, p, n in zip(tokens, logprobs, counts, strict=False)]

    def capture(self) -> None:
        """Capture all graphs, the largest first, so that the others fit into its memory."""
        for size in reversed(self.buckets):
            self._turn ^= 1
            self._send([], {}, None)
            self._advance(size)
            self._step(size)

    def _size(self, rows: int) -> int:
        return next(b for b in self.buckets if b >= rows)

    def _send(self, chunks: Seq[Chunk], params: Mapping[int, SamplingParams], before: Window | None) -> None:
        turn, n = self._turn, len(chunks)
        orders, tables = self._host_orders[turn].numpy(), self._host_tables[turn].numpy()
        orders[n:] = 0  # idle
        if chunks:
            draws = [params[request.request_id] for request, *_ in chunks]
            rows = zip(chunks, draws, strict=True)
            orders[:n] = [(c.start, c.stop, not draw.ignore_eos, c.sequence.seed % 2**63) for c, draw in rows]
            self._host_temperature[turn].numpy()[:n] = [draw.temperature for draw in draws]
        for table, chunk in zip(tables, chunks, strict=False):
            ids = chunk.sequence.table.block_ids
            table[: len(ids)] = ids
        for device, host in (
            (self._orders, self._host_orders),
            (self._temperature, self._host_temperature),
            (self._tables, self._host_tables),
        ):
            device.copy_(host[turn], non_blocking=True)
        if before:
            place = {chunk.sequence: i for i, chunk in enumerate(before.chunks)}
            origin = self._host_origin[turn]
            origin.numpy()[:n] = [place[chunk.sequence] for chunk in chunks]
            self._now.copy_(self._now[origin.to(self._now.device, non_blocking=True)])
        else:
            now = self._host_now[turn].numpy()
            if chunks:
                now[:n] = [(text.token_ids[start], start, 0) for _, text, start, _ in chunks]
            self._now.copy_(self._host_now[turn], non_blocking=True)

    def _step(self, size: int) -> None:
        if self.graphs is None:
            self._compute(size)
            return
        if size not in self.graphs:
            self.graphs[size] = self._captured(size)
        self.graphs[size].replay()

    def _captured(self, size: int) -> torch.cuda.CUDAGraph:
        assert self.graphs is not None
        changing = self._now, *self._inputs
        before = [tensor.clone() for tensor in changing]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute(size)  # what is compiled or allocated once must be so before the capture
        torch.cuda.current_stream().wait_stream(side)
        for tensor, was in zip(changing, before, strict=True):
            tensor.copy_(was)  # KV written twice is the same KV
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._compute(size)
        return graph

    def _compute(self, size: int) -> None:
        with torch.inference_mode():
            first = {name: tensor[:size] for name, tensor in vars(self._batch).items()}
            batch = Batch(**first | {"query_starts": self._batch.query_starts[: size + 1]})
            logits = self.forward(batch, self.cache, self.attend)
            u = triton_uniform(self._orders[:size, SEED].contiguous(), batch.positions + 1)
            tokens, logprobs = triton_choose(logits, self._temperature[:size], u)
            self._advance(size, tokens, logprobs)

    def _advance(self, size: int, *drawn: Tensor) -> None:
        state = self._now, self._orders, self._tables, self._ends, self._history
        advance(size, self.cache.block_size, state, self._inputs, *drawn)
