"""Between two steps on the device: take up the tokens that were drawn, and lay out the next step's
inputs.

A row is a text. What is known of it stands in `now`, int32 [N, 3]: token, position, ended; and in
`orders`, int64 [N, 7]: start, stop, may end, seed, as the host has sent them for a window, and
where its first token comes from.
"""

from torch import Tensor

from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton


@triton.jit
def lay_out(
    row,
    token,
    position,
    active,
    tables,
    table_stride,
    token_ids,
    positions,
    slots,
    seq_lens,
    BLOCK_SIZE,
):
    """A row's inputs for the next decode step.

    One that has stopped stores nothing and sees nothing.
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
    now, before, orders, tables, table_stride, first_tokens, query_starts,
    token_ids, positions, slots, seq_lens, BLOCK_SIZE, PROMPTS: tl.constexpr,
):  # fmt: skip
    """One row a program: where a window finds its text, in the state `before` it or in the host's
    orders.
    """
    row = tl.program_id(0)
    order = orders + row * 7
    origin = tl.load(order + 6)
    there = origin >= 0
    token = tl.where(
        there, tl.load(before + origin * 3, mask=there), tl.load(order + 4).to(tl.int32)
    )
    position = tl.where(
        there, tl.load(before + origin * 3 + 1, mask=there), tl.load(order + 5).to(tl.int32)
    )
    ended = tl.where(there, tl.load(before + origin * 3 + 2, mask=there), 0)
    tl.store(now + row * 3, token)
    tl.store(now + row * 3 + 1, position)
    tl.store(now + row * 3 + 2, ended)
    if PROMPTS:  # the host laid out this step, but did not know the token
        tl.store(first_tokens + tl.load(query_starts + row), token.to(tl.int64), mask=there)
    active = (position < tl.load(order + 1).to(tl.int32)) & (ended == 0)
    lay_out(
        row,
        token,
        position,
        active,
        tables,
        table_stride,
        token_ids,
        positions,
        slots,
        seq_lens,
        BLOCK_SIZE,
    )


@triton.jit
def advance_kernel(
    now, orders, tables, table_stride, drawn, said, ends, num_ends, history, MAX_ROWS,
    token_ids, positions, slots, seq_lens, BLOCK_SIZE, ENDS: tl.constexpr,
):  # fmt: skip
    """One row a program: take up the token that was drawn, if the row is not yet where it should
    stop.
    """
    row = tl.program_id(0)
    order = orders + row * 7
    token, position, ended = (
        tl.load(now + row * 3),
        tl.load(now + row * 3 + 1),
        tl.load(now + row * 3 + 2),
    )
    start, stop = tl.load(order).to(tl.int32), tl.load(order + 1).to(tl.int32)
    active = (position < stop) & (ended == 0)
    token = tl.where(active, tl.load(drawn + row).to(tl.int32), token)
    place = history + ((position - start) * MAX_ROWS + row) * 2
    # exact below 2**53; one copy to the host brings both
    tl.store(place, token.to(tl.float64), mask=active)
    tl.store(place + 1, tl.load(said + row).to(tl.float64), mask=active)
    i = tl.arange(0, ENDS)
    is_end = tl.load(ends + i, mask=i < num_ends, other=-1).to(tl.int32) == token
    ended = tl.where(
        active, tl.max(is_end.to(tl.int32), 0) * tl.load(order + 2).to(tl.int32), ended
    )
    position = tl.where(active, position + 1, position)
    tl.store(now + row * 3, token)
    tl.store(now + row * 3 + 1, position)
    tl.store(now + row * 3 + 2, ended)
    active = (position < stop) & (ended == 0)
    lay_out(
        row,
        token,
        position,
        active,
        tables,
        table_stride,
        token_ids,
        positions,
        slots,
        seq_lens,
        BLOCK_SIZE,
    )


def begin(
    rows: int, block_size: int, now: Tensor, before: Tensor, orders: Tensor, tables: Tensor, inputs: list[Tensor],
    prompts: tuple[Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """Take up the orders of the first `rows` rows; a row's place `before` is its last order, -1 for
    who was not there.

    query_starts of a step with prompts, in which the tokens that the device has itself are put.

    Args:
        inputs: token_ids, positions, slots and seq_lens of decode steps, which are written.
            prompts: token_ids and
    """
    with on_device_of(now):
        begin_kernel[(rows,)](
            now, before, orders, tables, tables.stride(0), *(prompts or (None, None)), *inputs, block_size,
            bool(prompts), num_warps=1,
        )  # fmt: skip


def advance(
    rows: int, block_size: int, now: Tensor, orders: Tensor, tables: Tensor, inputs: list[Tensor], ends: Tensor,
    history: Tensor, drawn: tuple[Tensor, Tensor],
) -> None:  # fmt: skip
    """Take up the tokens `drawn` and their log-probabilities, into history [steps, N, 2] too. ends:
    [E] tokens.
    """
    with on_device_of(now):
        advance_kernel[(rows,)](
            now, orders, tables, tables.stride(0), *drawn, ends, len(ends), history, len(now), *inputs, block_size,
            power_of_two(len(ends)), num_warps=1,
        )  # fmt: skip
