"""Steps that do not wait for the host: forward, draw, and the next step's inputs, as one CUDA
graph.

At this size of model a step takes the GPU a millisecond, and Python longer than that to prepare it.
So what a step needs stands in tables on the device, a row a text:

    now     token, position, ended                  the device's own: a step changes them
    orders  start, stop, may end, seed, ...; temperature; block ids      the host's, sent for a window of some steps

A decode step computes the token at each row's `position`, draws the next, and makes it the next
input. It can be repeated without a word from the host until `stop`. A step with prompts has its
tokens laid out by the host, but for those that the device has not told yet, and draws for the rows
whose prompt it completes. Either is one launch as a graph: the kernels' grids depend on shapes
alone, so a graph is made for each of a few shapes, and a step padded to the next. Padded tokens
store nothing and padded rows see nothing. While a window runs, the host may send the next: its rows
then go on from wherever the device has come to.

Where several ranks share the model, each has a `Decoder` of the same limits. Rank 0's is the one
described above; it hands the others the inputs of every step, device to device, and draws alone, so
that ranks cannot part.

A step that the host draws for, as of drafts, is laid out like one with prompts, and its graph ends
behind the layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedlab.accelerate.advance import advance, begin
from pagedlab.accelerate.fused import Fused
from pagedlab.accelerate.together import compile_together
from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch, flatten_chunks
from pagedlab.kernels.sampling import triton_sample, triton_uniform
from pagedlab.kv_cache import KVCache
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Chunk

# rows of decode steps
BUCKETS = (
    1,
    2,
    4,
    8,
    *range(16, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
)
ROWS = (16, 64)  # of steps with prompts, and all
# of steps with prompts, and of drafts
TOKENS = (
    16,
    64,
    *range(128, 1025, 128),
    *range(1280, 2561, 256),
)
# tokens of larger ones, which are no graphs, are a multiple of this: kernels are compiled for few
# shapes
ALIGNED = 128
POSITION, SEED = 1, 3  # columns of `now` and of `orders`


class Shape(NamedTuple):
    """Of a step: its rows, and its tokens if the host lays them out, else None: one token a row."""

    rows: int
    tokens: int | None = None
    drawn: bool = True  # here; else by the host

    @property
    def width(self) -> int:
        """Places in each part of what the host lays out: four more begin at 16 bytes, as Triton
        likes pointers to.
        """
        return -(-max(self.rows, self.tokens or 0) // 4) * 4

    @property
    def size(self) -> int:
        """How many numbers the host lays out, as `_batch` reads them."""
        return 5 * self.width + 1


class Window(NamedTuple):
    """Steps that were launched. The two tensors are filled when `done` has come to pass."""

    chunks: list[Chunk]
    stops: list[int]  # where the first step stops in each row; it draws the token at this position
    drawn: list[int]  # how many tokens each row draws; fewer only if its text ends
    done: torch.cuda.Event | None
    history: Tensor  # [max_steps, max_rows, 2] tokens and log-probabilities
    reached: Tensor  # [max_rows, 3], of which the second is the position that each row came to


class Decoder:
    """Runs windows of steps for up to `max_rows` texts of up to `max_blocks` blocks, `max_tokens`
    tokens a step.
    """

    def __init__(
        self,
        forward: Callable[[Batch, KVCache, PagedAttention], Tensor],
        cache: KVCache,
        attend: PagedAttention,
        ends: Iterable[int],
        max_rows: int,
        max_blocks: int,
        max_steps: int,
        max_tokens: int,
        graphs: bool = True,
        ranks: Any = None,
    ) -> None:
        """forward: `Model.forward`, or one like it.

        `attend` must not wait for the device: the Triton kernels do not.

        Args:
            ends: tokens that end a text. `graphs` off: launch by launch. ranks: distributed's, if
                there are several.
        """
        self.forward, self.cache, self.attend, self.ranks = forward, cache, attend, ranks
        self.buckets = [b for b in BUCKETS if b < max_rows] + [max_rows]
        self.rows = [b for b in ROWS if b < max_rows] + [max_rows]
        self.tokens = [b for b in TOKENS if b <= max_tokens]
        self.largest = max([self.buckets[-1], *self.tokens])  # tokens that a graph may have
        self.most = (
            -(-max_tokens // ALIGNED) * ALIGNED
            if max_tokens > max([0, *self.tokens])
            else self.tokens[-1]
        )
        owner = getattr(forward, "__self__", None)
        self.fused = owner if isinstance(owner, Fused) and not ranks else None
        self.graphs: dict[Shape, torch.cuda.CUDAGraph] | None = {} if graphs else None
        self._seen = Counter[Shape]()
        if ranks and self.graphs is not None:
            ranks.hold(self.graphs)
        device = cache.keys.device
        mirrored: list[tuple[tuple[int, ...], torch.dtype]] = [
            ((max_rows, 7), torch.int64),
            ((max_rows,), torch.float32),
            ((max_rows, max_blocks), torch.int32),
            ((Shape(self.largest, self.most).size,), torch.int64),
            ((max_steps, max_rows, 2), torch.float64),
            ((max_rows, 3), torch.int32),
        ]
        # Two of each, used in turns: the device may still read the one while the other is written.
        pinned = device.type == "cuda"
        self._read = [torch.cuda.Event() if pinned else None for _ in range(2)]
        self._hosts = [
            [torch.zeros(n, dtype=kind, pin_memory=pinned) for n, kind in mirrored]
            for _ in range(2)
        ]
        # block ids in each host's tables
        self._written: list[list[list[int]]] = [[[]] * max_rows for _ in range(2)]
        self._turn = 0
        here = [torch.zeros(n, dtype=kind, device=device) for n, kind in mirrored]
        self._orders, self._temperature, self._tables, self._flat, self._history, self._now = here
        self._before = torch.zeros_like(self._now)
        self._ends = torch.tensor(sorted(ends) or [-1], device=device)
        self._decode = torch.zeros((4, Shape(max_rows).width), dtype=torch.int64, device=device)
        self._inputs = [*self._decode[:3], self._decode[3].view(torch.int32)[:max_rows]]
        self._ordinals = torch.arange(max_rows + 1, device=device)
        self._one_each = self._ordinals.int()
        if self.fused:
            self._stream = cache.keys.new_empty(self.largest, self.fused.module.config.hidden_size)

    def launch(
        self,
        chunks: list[Chunk],
        params: Mapping[int, SamplingParams],
        before: Window | None = None,
    ) -> Window:
        """Start computing all chunks, a row each, and draw behind every position from a text's end
        on; nothing waits.

        The first step takes what is known of each text, or one token that the device has; each
        further one a token.

        goes on where that one leaves it.

        Args:
            params: by request id. before: the latest window, if it may still run; a text whose next
                token is not known here
        """
        self._take_turn()
        known = [len(chunk.sequence.token_ids) for chunk in chunks]
        # of the first step
        stops = [max(c.start + 1, min(c.stop, n)) for c, n in zip(chunks, known, strict=True)]
        drawn = [
            c.stop - at + 1 if at >= n else 0 for c, at, n in zip(chunks, stops, known, strict=True)
        ]
        window = Window(chunks, stops, drawn, None, *self._hosts[self._turn][-2:])
        tokens = sum(at - c.start for c, at in zip(chunks, stops, strict=True))
        shape = self._shape(len(chunks), None if all(drawn) and tokens == len(chunks) else tokens)
        self._send(window, shape, params, before)
        self._start([shape, *[self._shape(len(chunks))] * (max(drawn) - 1)])
        for host, tensor in ((window.history, self._history), (window.reached, self._now)):
            host.copy_(tensor, non_blocking=True)
        return window._replace(
            done=torch.cuda.current_stream().record_event() if self._now.is_cuda else None
        )

    def collect(self, window: Window) -> list[tuple[list[int], list[float]]]:
        """Wait for a window, one of the two latest: each row's new tokens and their
        log-probabilities.

        A row has fewer than it should draw only if its text ended.
        """
        self._wait(window.done)
        most = max(window.drawn)
        tokens, logprobs = window.history[:most, : len(window.chunks)].permute(2, 1, 0).tolist()
        counts = [
            at + 1 - first
            for at, first in zip(window.reached[:, POSITION].tolist(), window.stops, strict=False)
        ]
        counts = [max(n, 0) for n in counts]  # nothing of a row that had ended before
        return [
            ([*map(int, t[:n])], p[:n]) for t, p, n in zip(tokens, logprobs, counts, strict=True)
        ]

    def compute(self, chunks: list[Chunk]) -> Tensor | None:
        """Compute all chunks, while no window runs: logits [R, V] of the rows they want, for the
        host to draw from.

        A graph, if the forward pass can stop behind its layers. None, with nothing done, if ranks
        share the model.
        """
        if self.ranks:
            return None
        rows, tokens = len(chunks), sum(chunk.stop - chunk.start for chunk in chunks)
        shape = self._shape(rows, tokens) if tokens > rows else self._shape(rows)
        shape = Shape(shape.rows, shape.tokens or shape.rows, drawn=False)
        self._take_turn()
        self._send_tables(shape.rows, chunks)
        wanted = self._lay_out(shape, chunks)
        x = self._step(shape) if self.fused else None
        batch = self._batch(shape)
        last = batch.last_rows[:wanted]
        if self.fused is None or x is None:
            return self.forward(replace(batch, last_rows=last), self.cache, self.attend)
        return self.fused.head(x, last)

    def capture(self, drawn: bool = True) -> None:
        """Capture all graphs of steps that are `drawn` here, or by the host, the largest first, so
        that the others fit into its memory.

        Before them some larger steps, which are none: whatever kernels there are, have been
        compiled, side by side where ranks need not agree on it.
        """
        drawn = drawn or self.fused is None
        over = range((max([0, *self.tokens]) // ALIGNED + 1) * ALIGNED, self.most + 1, ALIGNED)
        # a step of so many has more than the bucket before
        least = [*zip([0, *self.rows], self.rows, strict=False)]
        sizes = sorted({*self.tokens, *over[:1], *over[-1:]}, reverse=True)
        shapes = [
            Shape(most, tokens, drawn)
            for tokens in sizes
            for few, most in reversed(least)
            if few < tokens
        ]
        shapes += [Shape(n, None if drawn else n, drawn) for n in reversed(self.buckets)]
        if compiled := self.graphs is not None and self.fused is not None:
            two, two.fused = copy(self), copy(self.fused)
            # a prompt's last layer is not like the others, which are alike
            two.fused.layers = self.fused.layers[-2:]
            two.forward = two.fused.forward

            def every_shape() -> None:
                for shape in shapes:
                    self._prepare(shape)
                    two._compute(shape)  # noqa: SLF001 - one like this
                    self._seen[shape] += 1

            compile_together(every_shape)
        for shape in shapes:
            self._prepare(shape)
            self._start([shape] * (1 if compiled or (shape.tokens or 0) > self.largest else 2))

    def _prepare(self, shape: Shape) -> None:
        """Send a step of this shape whose rows are all idle."""
        self._take_turn()
        if shape.drawn:
            self._send(Window([], [], [], None, *self._hosts[self._turn][-2:]), shape, {}, None)
        else:
            self._lay_out(shape, [])

    def _start(self, steps: list[Shape]) -> None:
        """Take the steps of the window that was sent, on all ranks."""
        if self.ranks:
            self.ranks.play(
                [n or 0 for shape in steps for n in shape[:2]], partial(self.play, steps)
            )
        else:
            self.play(steps)

    def play(self, steps: list[Shape]) -> None:
        """This rank's part of a window's steps."""
        if self.ranks:
            self.ranks.share(self._tables[: steps[0].rows])
        for shape in steps:
            if (
                self.ranks
                and not self.ranks.rank
                and self._seen[shape]
                and shape not in (self.graphs or {})
            ):
                self.ranks.wait()  # as capturing does too, but without a limit
            self._step(shape)

    def _take_turn(self) -> None:
        """Write to the other of the two hosts, once the device has read what was sent from it."""
        if now := self._read[self._turn]:
            now.record()
        self._turn ^= 1
        self._wait(self._read[self._turn])

    def _wait(self, done: torch.cuda.Event | None) -> None:
        """Until the device has come so far.

        Among ranks not for ever: a sum may lack a rank that is silent.
        """
        if self.ranks:
            self.ranks.wait(done)
        elif done:
            done.synchronize()

    def _shape(self, rows: int, tokens: int | None = None) -> Shape:
        """The least shape that holds so many."""
        if tokens is None:
            return Shape(next(b for b in self.buckets if b >= rows))
        larger = -(-tokens // ALIGNED) * ALIGNED
        return Shape(
            next(b for b in self.rows if b >= rows),
            next((b for b in self.tokens if b >= tokens), larger),
        )

    def _send(
        self,
        window: Window,
        shape: Shape,
        params: Mapping[int, SamplingParams],
        before: Window | None,
    ) -> None:
        chunks, n, rows = window.chunks, len(window.chunks), shape.rows
        host_orders, host_temperature = self._hosts[self._turn][:2]
        orders = host_orders.numpy()
        orders[n:rows] = 0, 0, 0, 0, 0, 0, -1  # idle
        if chunks:
            draws = [params[request.request_id] for request, *_ in chunks]
            place = {chunk.sequence: i for i, chunk in enumerate(before.chunks)} if before else {}
            orders[:n] = [
                (at - 1, at - 1 + count, not draw.ignore_eos, text.seed % 2**63)
                + (
                    (text.token_ids[at - 1], at - 1, -1)
                    if at <= len(text.token_ids)
                    else (0, at - 1, place[text])
                )
                for (_, text, *_), at, count, draw in zip(
                    chunks, window.stops, window.drawn, draws, strict=True
                )
            ]
            host_temperature.numpy()[:n] = [draw.temperature for draw in draws]
        for device, host in ((self._orders, host_orders), (self._temperature, host_temperature)):
            device[:rows].copy_(host[:rows], non_blocking=True)
        self._send_tables(rows, chunks)
        prompts = None
        if shape.tokens is not None:
            self._lay_out(
                shape,
                [chunk._replace(stop=at) for chunk, at in zip(chunks, window.stops, strict=True)],
            )
            batch = self._batch(shape)
            prompts = batch.token_ids, batch.query_starts
        self._before.copy_(self._now)
        state = self._now, self._before, self._orders, self._tables
        begin(rows, self.cache.block_size, *state, self._inputs, prompts)

    def _send_tables(self, rows: int, chunks: list[Chunk]) -> None:
        host, written = self._hosts[self._turn][2], self._written[self._turn]
        tables = host.numpy()
        for row, chunk in enumerate(chunks):
            ids = chunk.sequence.table.block_ids
            if written[row] != ids:
                tables[row, : len(ids)] = written[row] = ids[:]
        self._tables[:rows].copy_(host[:rows], non_blocking=True)

    def _lay_out(self, shape: Shape, chunks: list[Chunk]) -> int:
        """Send the tokens of a step as `_batch` reads them, and return how many rows of logits are
        wanted.
        """
        ids, positions, slots, starts = flatten_chunks(chunks)
        wanted = [1 if shape.drawn else chunk.num_rows for chunk in chunks]
        last = [i for n, end in zip(wanted, starts[1:], strict=True) for i in range(end - n, end)]
        n, width, host = len(chunks), shape.width, self._hosts[self._turn][3][: shape.size]
        wide, small = (
            host[: 4 * width].numpy().reshape(4, width),
            host[4 * width :].numpy().view(np.int32),
        )
        wide[:] = [[0], [0], [-1], [0]]
        wide[:3, : len(ids)] = ids, positions, slots
        wide[3, : len(last)] = last
        small[:width] = 0
        small[:n] = [chunk.stop for chunk in chunks]
        small[width:] = starts[-1]
        small[width : width + n] = starts[:-1]
        self._flat[: shape.size].copy_(host, non_blocking=True)
        return len(last)

    def _batch(self, shape: Shape) -> Batch:
        rows, tokens, drawn = shape
        if tokens is None:
            token_ids, positions, slots, seq_lens = (tensor[:rows] for tensor in self._inputs)
            starts, last = self._one_each[: rows + 1], self._ordinals[:rows]
        else:
            width = shape.width
            wide = self._flat[: 4 * width].view(4, width)
            (token_ids, positions, slots), last = (
                wide[:3, :tokens],
                wide[3, : rows if drawn else tokens],
            )
            small = self._flat[4 * width : shape.size].view(torch.int32)
            seq_lens, starts = small[:rows], small[width : width + rows + 1]
        return Batch(token_ids, positions, slots, self._tables[:rows], seq_lens, starts, last)

    def _step(self, shape: Shape) -> Tensor | None:
        """A shape that comes again is worth a graph: what is compiled or allocated once has been so
        by then.
        """
        if self.graphs is None or (shape.tokens or 0) > self.largest:
            return self._compute(shape)
        if shape in self.graphs:
            self.graphs[shape].replay()
        elif not self._seen[shape]:
            self._seen[shape] += 1
            return self._compute(shape)
        else:
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self.graphs.values())).pool() if self.graphs else None
            # Not "global": NCCL's own thread may look after an earlier sum meanwhile.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                if (x := self._compute(shape)) is not None:
                    # graphs share memory, and this one's result is read behind it
                    self._stream[: len(x)] = x
            self.graphs[shape] = graph
            graph.replay()
        return None if shape.drawn else self._stream[: shape.tokens]

    def _compute(self, shape: Shape) -> Tensor | None:
        rows = shape.rows
        with torch.inference_mode():
            batch = self._batch(shape)
            if self.ranks:
                self.ranks.share(self._decode if shape.tokens is None else self._flat[: shape.size])
            if self.fused and not shape.drawn:
                return self.fused.layered(batch, self.cache, self.attend, every=True)
            logits = self.forward(batch, self.cache, self.attend)
            if self.ranks and self.ranks.rank:
                return None  # rank 0 draws, for all
            at = batch.positions if shape.tokens is None else batch.positions[batch.last_rows]
            u = triton_uniform(self._orders[:rows, SEED], at, ahead=1)
            drawn = triton_sample(logits, self._temperature[:rows], u)
            state = self._now, self._orders, self._tables
            advance(
                rows, self.cache.block_size, *state, self._inputs, self._ends, self._history, drawn
            )
            return None
