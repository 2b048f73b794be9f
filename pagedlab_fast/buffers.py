"""The tensors of steps that run ahead of the host: one set on the device, two on the host.

A row belongs to a sequence. The host writes `RowParams`, `RowSampling`, block tables and, for a
step with prompts or drafts, `StepInputs`. The device keeps `RowState` and writes `Samples`, which
the host reads when the window is done.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedlab.batch import Batch, flatten_chunks
from pagedlab.recipes.penalties import Penalties
from pagedlab.scheduler import Chunk
from pagedlab_fast.asked import MAX_TOP_K, penalties_of
from pagedlab_fast.shapes import Limits, StepShape, StepShapes, round_up
from pagedlab_fast.window import RowPlan, Window

# Each class below names the columns of one packed tensor, so that one copy between host and device
# moves all of them. The kernels in decode_state.py know the order of the columns.


@dataclass(frozen=True)
class RowParams:
    """The work of a window for each row, int64 [N] each. The host writes it.

    Args:
        packed: int64 [N, 8], all of the others.
        start: position of the last token of the first step.
        stop: position at which the row stops.
        may_end: whether a token that ends a text stops the row.
        seed: what its tokens are sampled with.
        token: token at `start`.
        position: the same as `start`; the row's state begins with it.
        source: row of the window before whose state this row goes on from; -1 for the host's.
        counts_row: of `TokenCounts`; -1 for a row without penalties.
    """

    packed: Tensor
    start: Tensor
    stop: Tensor
    may_end: Tensor
    seed: Tensor
    token: Tensor
    position: Tensor
    source: Tensor
    counts_row: Tensor


@dataclass(frozen=True)
class RowSampling:
    """How each row samples, fp32 [N] each. The host writes it.

    Args:
        packed: fp32 [6, N], all of the others.
        temperature: 0 for the likeliest token.
        top_k: how many tokens are kept; 0 for all.
        top_p: the share of the probability that is kept; 1 for all.
        repetition: see `Penalties`; 1 for none.
        presence: see `Penalties`.
        frequency: see `Penalties`.
    """

    packed: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor

    @property
    def penalties(self) -> Tensor:
        """The last three, [3, N]."""
        return self.packed[3:]


@dataclass(frozen=True)
class RowState:
    """Where each row is, int32 [N] each. A step on the device moves it on.

    Args:
        packed: int32 [N, 3], all of the others.
        token: token that the next step takes.
        position: of this token.
        ended: whether the text has ended.
    """

    packed: Tensor
    token: Tensor
    position: Tensor
    ended: Tensor


@dataclass(frozen=True)
class Samples:
    """The tokens that the steps of a window sampled.

    Args:
        packed: float64 [steps, N, 2], both of the others; a token id is exact below 2**53.
        tokens: [steps, N].
        logprobs: [steps, N].
    """

    packed: Tensor
    tokens: Tensor
    logprobs: Tensor


@dataclass(frozen=True)
class StepInputs:
    """A step's tokens, see `Batch`.

    Args:
        packed: int64, all of the others. Each shape has its own layout in it, so that a step copies
            no more than its own size. The parts begin at multiples of 16 bytes, as Triton likes.
        token_ids: int64 [T].
        positions: int64 [T].
        slots: int64 [T].
        last_rows: int64 [R].
        seq_lens: int32 [N].
        query_starts: int32 [N + 1].
    """

    packed: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    last_rows: Tensor
    seq_lens: Tensor
    query_starts: Tensor

    @classmethod
    def view(cls, memory: Tensor, shape: StepShape) -> StepInputs:
        """The start of this memory, int64, laid out for a shape."""
        width = _width(shape)
        packed = memory[: _packed_size(shape)]
        token_ids, positions, slots, last_rows = packed[: 4 * width].view(4, width)
        small = packed[4 * width :].view(torch.int32)
        return cls(
            packed=packed,
            token_ids=token_ids[: shape.num_tokens],
            positions=positions[: shape.num_tokens],
            slots=slots[: shape.num_tokens],
            last_rows=last_rows[: shape.num_last_rows],
            seq_lens=small[: shape.rows],
            query_starts=small[width : width + shape.rows + 1],
        )

    def first_rows(self, rows: int) -> StepInputs:
        """The first rows of a decode step."""
        return StepInputs(
            packed=self.packed,
            token_ids=self.token_ids[:rows],
            positions=self.positions[:rows],
            slots=self.slots[:rows],
            last_rows=self.last_rows[:rows],
            seq_lens=self.seq_lens[:rows],
            query_starts=self.query_starts[: rows + 1],
        )

    def batch(self, block_tables: Tensor) -> Batch:
        """The forward pass over these tokens. block_tables: int32 [N, M]."""
        return Batch(
            token_ids=self.token_ids,
            positions=self.positions,
            slots=self.slots,
            block_tables=block_tables,
            seq_lens=self.seq_lens,
            query_starts=self.query_starts,
            last_rows=self.last_rows,
        )


def _width(shape: StepShape) -> int:
    """Numbers in each part of `StepInputs.packed`."""
    return round_up(max(shape.rows, shape.num_tokens), 4)


def _packed_size(shape: StepShape) -> int:
    """Four parts of int64, and two of int32, of which the last has one number more."""
    return 5 * _width(shape) + 1


class StepBuffers:
    """What host and device exchange about a window. Both have the same.

    Attributes:
        params: `RowParams`.
        sampling: `RowSampling`.
        block_tables: int32 [N, M].
        inputs_memory: int64, for the `StepInputs` of steps that the host lays out.
        samples: `Samples`.
        state: `RowState`.
    """

    def __init__(self, limits: Limits, device: torch.device, pin_memory: bool = False) -> None:
        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device, pin_memory=pin_memory)

        max_rows, max_blocks, max_steps, _ = limits
        params = zeros(max_rows, 8)
        samples = zeros(max_steps, max_rows, 2, dtype=torch.float64)
        state = zeros(max_rows, 3, dtype=torch.int32)
        shapes = StepShapes(limits)
        largest = StepShape(shapes.max_graph_tokens, shapes.max_tokens)
        self.params = RowParams(params, *params.unbind(1))
        sampling = zeros(6, max_rows, dtype=torch.float32)
        self.sampling = RowSampling(sampling, *sampling)
        self.block_tables = zeros(max_rows, max_blocks, dtype=torch.int32)
        self.inputs_memory = zeros(_packed_size(largest))
        self.samples = Samples(samples, *samples.unbind(2))
        self.state = RowState(state, *state.unbind(1))


class DeviceBuffers(StepBuffers):
    """The buffers on the device, which CUDA graphs read and write.

    Attributes:
        state_before: the state that the window before left, while a window begins.
        decode_inputs: inputs of decode steps. The device writes them after each step, all but
            `last_rows` and `query_starts`: row i is token i.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        super().__init__(limits, device)
        max_rows = limits.max_rows
        before = torch.zeros_like(self.state.packed)
        self.state_before = RowState(before, *before.unbind(1))
        decode = StepShape(max_rows)
        memory = torch.zeros(_packed_size(decode), dtype=torch.int64, device=device)
        self.decode_inputs = StepInputs.view(memory, decode)
        torch.arange(max_rows, out=self.decode_inputs.last_rows)
        torch.arange(max_rows + 1, out=self.decode_inputs.query_starts)

    def inputs(self, shape: StepShape) -> StepInputs:
        """The inputs of a step of this shape."""
        if shape.tokens is None:
            return self.decode_inputs.first_rows(shape.rows)
        return StepInputs.view(self.inputs_memory, shape)

    def receive_params(self, host: HostBuffers, rows: int) -> None:
        """Copy what the host says about the first rows; nothing waits."""
        self.params.packed[:rows].copy_(host.params.packed[:rows], non_blocking=True)
        self.sampling.packed.copy_(host.sampling.packed, non_blocking=True)

    def receive_block_tables(self, host: HostBuffers, rows: int) -> None:
        """Copy the block tables of the first rows; nothing waits."""
        self.block_tables[:rows].copy_(host.block_tables[:rows], non_blocking=True)

    def receive_inputs(self, host: HostBuffers, shape: StepShape) -> None:
        """Copy the tokens of a step of this shape; nothing waits."""
        packed = StepInputs.view(self.inputs_memory, shape).packed
        packed.copy_(host.inputs_memory[: len(packed)], non_blocking=True)

    def send_results(self, host: HostBuffers) -> None:
        """Copy samples and state to the host; nothing waits."""
        host.samples.packed.copy_(self.samples.packed, non_blocking=True)
        host.state.packed.copy_(self.state.packed, non_blocking=True)


class HostBuffers(StepBuffers):
    """Buffers on the host, in pinned memory if the device is a GPU.

    Attributes:
        in_use: the device has read these buffers, and written its results into them, when it has
            reached this event; None on a CPU.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        super().__init__(limits, torch.device("cpu"), pin_memory=on_gpu)
        self.in_use = torch.cuda.Event() if on_gpu else None
        self._block_ids: list[list[int]] = [[] for _ in range(limits.max_rows)]  # as written

    def write_params(
        self,
        plans: Seq[RowPlan],
        rows: int,
        before: Window | None,
        counts_rows: Seq[int],
    ) -> None:
        """Write what the rows compute and how they sample. Those after the plans are idle.

        Args:
            plans: of the rows that are in use.
            rows: all rows of the step's shape.
            before: the window that has the tokens which the host does not know.
            counts_rows: of the sequences, see `TokenCounts`.
        """
        source_rows = {}
        if before is not None:
            source_rows = {plan.chunk.sequence: row for row, plan in enumerate(before.rows)}
        sources = []
        for plan in plans:
            sources.append(-1 if plan.token is not None else source_rows[plan.chunk.sequence])
        asked = [plan.chunk.sequence.params for plan in plans]
        positions = [plan.position for plan in plans]
        columns = self.params
        _write(columns.start, positions, rows)
        _write(columns.stop, [plan.position + plan.num_samples for plan in plans], rows)
        _write(columns.may_end, [not each.ignore_eos for each in asked], rows)
        _write(columns.seed, [plan.chunk.sequence.seed % 2**63 for plan in plans], rows)
        _write(columns.token, [plan.token or 0 for plan in plans], rows)
        _write(columns.position, positions, rows)
        _write(columns.source, sources, rows, padding=-1)
        _write(self.sampling.temperature, [each.temperature for each in asked], rows)
        _write(self.sampling.top_k, [min(each.top_k, MAX_TOP_K) for each in asked], rows)
        _write(self.sampling.top_p, [each.top_p for each in asked], rows, padding=1)
        if any(counts_row >= 0 for counts_row in counts_rows):  # else no kernel reads these
            _write(columns.counts_row, counts_rows, rows, padding=-1)
            penalties = [penalties_of(each) or Penalties() for each in asked]
            _write(self.sampling.repetition, [each.repetition for each in penalties], rows)
            _write(self.sampling.presence, [each.presence for each in penalties], rows)
            _write(self.sampling.frequency, [each.frequency for each in penalties], rows)

    def write_block_tables(self, chunks: Seq[Chunk]) -> None:
        """Write the block ids of each chunk's sequence, where they have changed."""
        tables = self.block_tables.numpy()
        for row, chunk in enumerate(chunks):
            block_ids = chunk.sequence.table.block_ids
            if self._block_ids[row] != block_ids:
                tables[row, : len(block_ids)] = block_ids
                self._block_ids[row] = block_ids.copy()

    def write_inputs(self, chunks: Seq[Chunk], shape: StepShape) -> int:
        """Write the tokens of a step, and return how many rows of logits are wanted.

        A padded token stores nothing, and a padded row sees nothing.
        """
        flat = flatten_chunks(chunks)
        last_rows = list[int]()
        for chunk, end in zip(chunks, flat.starts[1:], strict=True):
            num_rows = 1 if shape.is_sampled else chunk.num_rows
            last_rows += range(end - num_rows, end)
        inputs = StepInputs.view(self.inputs_memory, shape)
        _write(inputs.token_ids, flat.token_ids)
        _write(inputs.positions, flat.positions)
        _write(inputs.slots, flat.slots, padding=-1)
        _write(inputs.last_rows, last_rows)
        _write(inputs.seq_lens, [chunk.stop for chunk in chunks])
        _write(inputs.query_starts, flat.starts, padding=flat.starts[-1])
        return len(last_rows)


def _write(tensor: Tensor, values: Seq[Any], stop: int | None = None, padding: int = 0) -> None:
    """Write the values into a tensor on the host, and the padding after them, up to `stop`."""
    array = tensor.numpy()  # NumPy reads lists faster than torch
    array[: len(values)] = values
    array[len(values) : stop] = padding
