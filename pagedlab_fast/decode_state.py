"""Kernels that keep the state of decoding on the device: where a window begins, and what follows a
step.

A row is a sequence. `StepBuffers` of buffers.py says what the columns are.
The kernels get the packed tensors:

    row_params  int64 [N, 7]               start, stop, may_end, seed, token, source, counts_row
    state       int32 [N, 3]               token, position, ended
    samples     int32 [steps, N]           tokens
"""

from torch import Tensor

from pagedlab.batch import Batch
from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton
from pagedlab_fast.buffers import DeviceBuffers
from pagedlab_fast.token_counts import SAMPLED


@triton.jit
def lay_out(
    row, token, position, active,
    tables, table_stride,                     # int32 [N, M]
    token_ids, positions, slots, seq_lens,    # the inputs of decode steps, [N] each
    BLOCK_SIZE,
):  # fmt: skip
    """Write a row's inputs for the next decode step.

    A row that has stopped stores nothing and sees nothing.
    """
    tl.store(token_ids + row, token.to(tl.int64))
    tl.store(positions + row, position.to(tl.int64))
    block = tl.load(tables + row * table_stride + position // BLOCK_SIZE, mask=active, other=0).to(
        tl.int64
    )
    tl.store(slots + row, tl.where(active, block * BLOCK_SIZE + position % BLOCK_SIZE, -1))
    tl.store(seq_lens + row, tl.where(active, position + 1, 0))


@triton.jit
def begin_kernel(
    state, state_before,                      # int32 [N, 3]
    row_params,                               # int64 [N, 7]
    tables, table_stride,                     # int32 [N, M]
    first_tokens, query_starts,               # of a first step with prompts; else None
    token_ids, positions, slots, seq_lens,    # the inputs of decode steps, [N] each
    BLOCK_SIZE, PROMPTS: tl.constexpr,
):  # fmt: skip
    """One row a program: begin with the state of the window before, or what the host says."""
    row = tl.program_id(0)
    param = row_params + row * 7
    source = tl.load(param + 5)
    goes_on = source >= 0
    before = state_before + source * 3
    token = tl.where(goes_on, tl.load(before, mask=goes_on), tl.load(param + 4).to(tl.int32))
    position = tl.where(goes_on, tl.load(before + 1, mask=goes_on), tl.load(param).to(tl.int32))
    ended = tl.where(goes_on, tl.load(before + 2, mask=goes_on), 0)
    tl.store(state + row * 3, token)
    tl.store(state + row * 3 + 1, position)
    tl.store(state + row * 3 + 2, ended)
    if PROMPTS:  # the host laid out this step, but did not know the token
        tl.store(first_tokens + tl.load(query_starts + row), token.to(tl.int64), mask=goes_on)
    active = (position < tl.load(param + 1).to(tl.int32)) & (ended == 0)
    lay_out(
        row, token, position, active, tables, table_stride,
        token_ids, positions, slots, seq_lens, BLOCK_SIZE,
    )  # fmt: skip


@triton.jit
def advance_kernel(
    state,                                    # int32 [N, 3]
    row_params,                               # int64 [N, 7]
    tables, table_stride,                     # int32 [N, M]
    sampled,                                  # int64 [N]
    ends, num_ends,                           # [E] tokens that end a text
    samples, MAX_ROWS,                        # int32 [steps, MAX_ROWS]
    counts, VOCABULARY, SAMPLED: tl.constexpr,  # int32 [C, V] of `TokenCounts`; or None
    token_ids, positions, slots, seq_lens,    # the inputs of decode steps, [N] each
    BLOCK_SIZE, ENDS: tl.constexpr,
):  # fmt: skip
    """One row a program: take the token that was sampled, unless the row has stopped.

    A token below 0 is noted, and ends the row.
    """
    row = tl.program_id(0)
    param = row_params + row * 7
    token = tl.load(state + row * 3)
    position = tl.load(state + row * 3 + 1)
    ended = tl.load(state + row * 3 + 2)
    start = tl.load(param).to(tl.int32)
    stop = tl.load(param + 1).to(tl.int32)
    active = (position < stop) & (ended == 0)
    token = tl.where(active, tl.load(sampled + row).to(tl.int32), token)
    tl.store(samples + (position - start) * MAX_ROWS + row, token, mask=active)
    failed = (token < 0).to(tl.int32)  # the logits were not finite, and there is no token
    token = tl.maximum(token, 0)
    if counts is not None:
        counts_row = tl.load(param + 6)
        count = counts + counts_row * VOCABULARY + token
        is_counted = active & (counts_row >= 0) & (failed == 0)
        tl.store(count, tl.load(count, mask=is_counted, other=0) + SAMPLED, mask=is_counted)
    i = tl.arange(0, ENDS)
    is_end = tl.load(ends + i, mask=i < num_ends, other=-1).to(tl.int32) == token
    is_any_end = tl.max(is_end.to(tl.int32), 0)
    may_end = tl.load(param + 2).to(tl.int32)
    ended = tl.where(active, tl.maximum(is_any_end * may_end, failed), ended)
    position = tl.where(active, position + 1, position)
    tl.store(state + row * 3, token)
    tl.store(state + row * 3 + 1, position)
    tl.store(state + row * 3 + 2, ended)
    active = (position < stop) & (ended == 0)
    lay_out(
        row, token, position, active, tables, table_stride,
        token_ids, positions, slots, seq_lens, BLOCK_SIZE,
    )  # fmt: skip


def begin(buffers: DeviceBuffers, rows: int, block_size: int, prompts: Batch | None = None) -> None:
    """Begin a window: set the state of its first rows, and lay out a decode step.

    Args:
        buffers: `state_before` is what the window before left.
        rows: of the first step.
        block_size: tokens a block.
        prompts: of a first step with prompts. Tokens that the host did not know are put in.
    """
    inputs = buffers.decode_inputs.batch
    with on_device_of(inputs.token_ids):
        begin_kernel[(rows,)](
            buffers.state, buffers.state_before,
            buffers.params,
            buffers.block_tables, buffers.block_tables.stride(0),
            prompts.token_ids if prompts else None, prompts.query_starts if prompts else None,
            inputs.token_ids, inputs.positions, inputs.slots, inputs.seq_lens,
            block_size, prompts is not None, num_warps=1,
        )  # fmt: skip


def advance(
    buffers: DeviceBuffers, rows: int, block_size: int, end_token_ids: Tensor,
    sampled: Tensor, counts: Tensor | None = None,
) -> None:  # fmt: skip
    """Take what a step sampled: note it, move the state on, and lay out the next decode step.

    Args:
        buffers: `params` say where each row stops.
        rows: of the step.
        block_size: tokens a block.
        end_token_ids: [E] tokens that end a text.
        sampled: a token for each row, int64 [N].
        counts: of `TokenCounts`, if a row has penalties.
    """
    inputs = buffers.decode_inputs.batch
    with on_device_of(inputs.token_ids):
        advance_kernel[(rows,)](
            buffers.state,
            buffers.params,
            buffers.block_tables, buffers.block_tables.stride(0),
            sampled,
            end_token_ids, len(end_token_ids),
            buffers.samples, buffers.samples.shape[1],
            counts, 0 if counts is None else counts.stride(0), SAMPLED,
            inputs.token_ids, inputs.positions, inputs.slots, inputs.seq_lens,
            block_size, power_of_two(len(end_token_ids)), num_warps=1,
        )  # fmt: skip
