"""The tensors of steps that run ahead of the host: one set on the device, two on the host.

A row belongs to a sequence. The host writes its parameters, how it samples, block tables and, for a
step with prompts or drafts, `StepInputs`. The device keeps the state and writes the samples, which
the host reads when the window is done.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pagedlab.batch import Batch, flatten_chunks
from pagedlab.recipes.penalties import Penalties
from pagedlab.scheduler import Chunk
from pagedlab_fast.asked import MAX_TOP_K, penalties_of
from pagedlab_fast.shapes import Limits, StepShape, StepShapes, round_up
from pagedlab_fast.window import RowPlan, Window

# Columns of `StepBuffers.params`. The kernels in decode_state.py know their order.
SEED = 3
COUNTS_ROW = 6
IDLE = 0, 0, 0, 0, 0, -1, -1  # the columns of a row that is not used


@dataclass(frozen=True)
class StepInputs:
    """A step's tokens.

    Args:
        packed: int64, all tensors of the batch but the block tables. Each shape has its own layout
            in it, so that a step copies no more than its own size. The parts begin at multiples of
            16 bytes, as Triton likes.
        batch: the forward pass over these tokens.
    """

    packed: Tensor
    batch: Batch

    @classmethod
    def view(cls, memory: Tensor, block_tables: Tensor, shape: StepShape) -> StepInputs:
        """The start of this memory, int64, laid out for a shape. block_tables: int32 [N, M]."""
        width = _width(shape)
        packed = memory[: _packed_size(shape)]
        token_ids, positions, slots, last_rows = packed[: 4 * width].view(4, width)
        small = packed[4 * width :].view(torch.int32)
        batch = Batch(
            token_ids=token_ids[: shape.num_tokens],
            positions=positions[: shape.num_tokens],
            slots=slots[: shape.num_tokens],
            block_tables=block_tables[: shape.rows],
            seq_lens=small[: shape.rows],
            query_starts=small[width : width + shape.rows + 1],
            last_rows=last_rows[: shape.num_last_rows],
        )
        return cls(packed, batch)

    def first_rows(self, rows: int) -> StepInputs:
        """The first rows of a decode step."""
        columns = {name: column[:rows] for name, column in vars(self.batch).items()}
        columns["query_starts"] = self.batch.query_starts[: rows + 1]
        return StepInputs(self.packed, Batch(**columns))


def _width(shape: StepShape) -> int:
    """Numbers in each part of `StepInputs.packed`."""
    return round_up(max(shape.rows, shape.num_tokens), 4)


def _packed_size(shape: StepShape) -> int:
    """Four parts of int64, and two of int32, of which the last has one number more."""
    return 5 * _width(shape) + 1


class StepBuffers:
    """What host and device exchange about a window. Both have the same.

    Attributes:
        params: int64 [N, 7], the work of a window for each row:
            start: position of the last token of the first step.
            stop: position at which the row stops.
            may_end: whether a token that ends a text stops the row.
            seed: what its tokens are sampled with.
            token: token at `start`.
            source: row of the window before whose state this row goes on from; -1 for the host's.
            counts_row: of `TokenCounts`; -1 for a row without penalties.
        sampling: fp32 [6, N], how each row samples: temperature, top_k and top_p, where 0, 0 and 1
            stand for none; repetition, presence and frequency, see `Penalties`.
        block_tables: int32 [N, M].
        inputs_memory: int64, for the `StepInputs` of steps that the host lays out.
        samples: int32 [steps, N], the token of each step of a window.
        state: int32 [N, 3], where each row is: the token that the next step takes, its position,
            and whether the text has ended. A step on the device moves it on.
    """

    def __init__(self, limits: Limits, device: torch.device, pin_memory: bool = False) -> None:
        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device, pin_memory=pin_memory)

        max_rows, max_blocks, max_steps, _ = limits
        shapes = StepShapes(limits)
        most = max([shapes.max_graph_tokens, *shapes.larger_tokens])
        self.params = zeros(max_rows, len(IDLE))
        self.sampling = zeros(6, max_rows, dtype=torch.float32)
        self.block_tables = zeros(max_rows, max_blocks, dtype=torch.int32)
        self.inputs_memory = zeros(_packed_size(StepShape(max_rows, most)))
        self.samples = zeros(max_steps, max_rows, dtype=torch.int32)
        self.state = zeros(max_rows, 3, dtype=torch.int32)
        self._inputs = dict[StepShape, StepInputs]()

    def inputs(self, shape: StepShape) -> StepInputs:
        """The inputs of a step that the host lays out. They are made once a shape."""
        if shape not in self._inputs:
            self._inputs[shape] = StepInputs.view(self.inputs_memory, self.block_tables, shape)
        return self._inputs[shape]


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
        self.state_before = torch.zeros_like(self.state)
        decode = StepShape(max_rows)
        memory = torch.zeros_like(self.inputs_memory)
        self.decode_inputs = StepInputs.view(memory, self.block_tables, decode)
        torch.arange(max_rows, out=self.decode_inputs.batch.last_rows)
        torch.arange(max_rows + 1, out=self.decode_inputs.batch.query_starts)

    def inputs(self, shape: StepShape) -> StepInputs:
        """The inputs of a step of this shape."""
        if shape.tokens is None:
            return self.decode_inputs.first_rows(shape.rows)
        return super().inputs(shape)

    def receive(self, host: HostBuffers, shape: StepShape) -> None:
        """Copy what the host wrote for a step of this shape; nothing waits."""
        rows = shape.rows
        if shape.is_sampled:
            self.params[:rows].copy_(host.params[:rows], non_blocking=True)
            self.sampling.copy_(host.sampling, non_blocking=True)
        self.block_tables[:rows].copy_(host.block_tables[:rows], non_blocking=True)
        if shape.tokens is not None:
            self.inputs(shape).packed.copy_(host.inputs(shape).packed, non_blocking=True)

    def send_results(self, host: HostBuffers) -> None:
        """Copy samples and state to the host; nothing waits."""
        host.samples.copy_(self.samples, non_blocking=True)
        host.state.copy_(self.state, non_blocking=True)


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

    def write_params(self, plans: Seq[RowPlan], rows: int, before: Window | None) -> None:
        """Write what the rows compute and how they sample. Those after the plans are idle.

        Args:
            plans: of the rows that are in use.
            rows: all rows of the step's shape.
            before: the window that has the tokens which the host does not know.
        """
        source_rows = {}
        if before is not None:
            source_rows = {plan.sequence: row for row, plan in enumerate(before.rows)}
        asked = [plan.sequence.params for plan in plans]
        counts_rows = [plan.counts_row for plan in plans]
        columns = [
            [plan.position for plan in plans],
            [plan.position + plan.num_samples for plan in plans],
            [not each.ignore_eos for each in asked],
            [plan.sequence.seed % 2**63 for plan in plans],
            [plan.token or 0 for plan in plans],
            [-1 if plan.token is not None else source_rows[plan.sequence] for plan in plans],
            counts_rows,
        ]
        used = len(plans)
        params = self.params.numpy()
        params[:used] = np.array(columns, dtype=np.int64).T
        params[used:rows] = IDLE
        sampling = self.sampling.numpy()
        sampling[0, :used] = [each.temperature for each in asked]
        sampling[1, :used] = [min(each.top_k, MAX_TOP_K) for each in asked]
        sampling[2, :used] = [each.top_p for each in asked]
        sampling[:3, used:rows] = [[0], [0], [1]]
        if max(counts_rows, default=-1) >= 0:  # else no kernel reads these
            penalties = [penalties_of(each) or Penalties() for each in asked]
            sampling[3, :used] = [each.repetition for each in penalties]
            sampling[4, :used] = [each.presence for each in penalties]
            sampling[5, :used] = [each.frequency for each in penalties]

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
        last_rows = flat.last_rows
        if shape.is_sampled:  # one a chunk, which only counts if the chunk reaches the end
            last_rows = [end - 1 for end in flat.starts[1:]]
        inputs = self.inputs(shape).batch
        _write(inputs.token_ids, flat.token_ids)
        _write(inputs.positions, flat.positions)
        _write(inputs.slots, flat.slots, padding=-1)
        _write(inputs.last_rows, last_rows)
        _write(inputs.seq_lens, [chunk.stop for chunk in chunks])
        _write(inputs.query_starts, flat.starts, padding=flat.starts[-1])
        return len(last_rows)


def _write(tensor: Tensor, values: Seq[Any], padding: int = 0) -> None:
    """Write the values into a tensor on the host, and the padding after them."""
    array = tensor.numpy()  # NumPy reads lists faster than torch
    array[: len(values)] = values
    array[len(values) :] = padding
