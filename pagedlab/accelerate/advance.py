"""Between two steps on the device: take up the tokens that were drawn, and lay out the next step's inputs."""

from collections.abc import Sequence

from torch import Tensor

from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton


@triton.jit
def advance_kernel(
    now, orders, tables, table_stride, drawn, said, ends, num_ends, history, MAX_ROWS,
    token_ids, positions, slots, seq_lens, BLOCK_SIZE, ENDS: tl.constexpr, DREW: tl.constexpr,
):  # fmt: skip
    """One text a program: take up the token that was drawn, if any was, and lay out the next step's inputs."""
    row = tl.program_id(0)
    token, position, ended = tl.load(now + row * 3), tl.load(now + row * 3 + 1), tl.load(now + row * 3 + 2)
    start, stop = tl.load(orders + row * 4).to(tl.int32), tl.load(orders + row * 4 + 1).to(tl.int32)
    active = (position < stop) & (ended == 0)
    if DREW:
        token = tl.where(active, tl.load(drawn + row).to(tl.int32), token)
        place = history + ((position - start) * MAX_ROWS + row) * 2
        tl.store(place, token.to(tl.float64), mask=active)  # exact below 2**53; one copy to the host brings both
        tl.store(place + 1, tl.load(said + row).to(tl.float64), mask=active)
        i = tl.arange(0, ENDS)
        is_end = tl.load(ends + i, mask=i < num_ends, other=-1).to(tl.int32) == token
        ended = tl.where(active, tl.max(is_end.to(tl.int32), 0) * tl.load(orders + row * 4 + 2).to(tl.int32), ended)
        position = tl.where(active, position + 1, position)
        tl.store(now + row * 3, token)
        tl.store(now + row * 3 + 1, position)
        tl.store(now + row * 3 + 2, ended)
        active = (position < stop) & (ended == 0)
    tl.store(token_ids + row, token.to(tl.int64))
    tl.store(positions + row, position.to(tl.int64))
    block = tl.load(tables + row * table_stride + position // BLOCK_SIZE, mask=active, other=0).to(tl.int64)
    tl.store(slots + row, tl.where(active, block * BLOCK_SIZE + position % BLOCK_SIZE, -1))
    tl.store(seq_lens + row, tl.where(active, position + 1, 0))


def advance(size: int, block_size: int, state: Sequence[Tensor], inputs: Sequence[Tensor], *drawn: Tensor) -> None:
    """Lay out the next step of the first `size` rows; first take up the tokens `drawn`, if any were.

    state: now int32 [N, 3], orders int64 [N, 4], tables int32 [N, M], ends [E] and history [steps, N, 2], as in
    accelerate/graphs.py. inputs: the batch's token_ids, positions, slots and seq_lens, which are written. drawn: the
    tokens and their log-probabilities, which go into history too.
    """
    now, orders, tables, ends, history = state
    with on_device_of(now):
        advance_kernel[(size,)](
            now, orders, tables, tables.stride(0), *(drawn or (None, None)), ends, len(ends), history, len(now),
            *inputs, block_size, power_of_two(len(ends)), bool(drawn), num_warps=1,
        )  # fmt: skip
