"""The worked numbers of notebooks 02 and 03, found by operating the real pool."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from pagedlab import BlockCopy, BlockPool, BlockTable, blocks_for
from pagedlab.lessons.memory import MODELS

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def pool_that_hands_out(block_ids: list[int], block_size: int, num_blocks: int = 16) -> BlockPool:
    """A pool whose next blocks are these, in this order: the block released last is handed out first."""
    pool = BlockPool(num_blocks, block_size)
    taken = [pool.allocate() for _ in range(num_blocks)]
    for block_id in [b for b in taken if b not in block_ids] + block_ids[::-1]:
        pool.release(block_id)
    return pool


def filled(table: BlockTable) -> list[int]:
    size = table.pool.block_size
    return [min(size, table.num_tokens - i * size) for i in range(len(table.block_ids))]


def test_36_tokens_fill_16_16_4() -> None:
    table = BlockTable(BlockPool(8, 16))
    table.append(36)
    assert filled(table) == [16, 16, 4]


def test_table_5_12_3_translates_positions_to_slots() -> None:
    table = BlockTable(pool_that_hands_out([5, 12, 3], 16))
    table.append(35)
    assert table.block_ids == [5, 12, 3]
    assert [table.slot(p) for p in (0, 15, 16, 31, 32, 34)] == [80, 95, 192, 207, 48, 50]


def test_7_token_prompt_in_blocks_7_and_1() -> None:
    table = BlockTable(pool_that_hands_out([7, 1, 3], 4))
    table.append(7)
    assert (table.block_ids, filled(table)) == ([7, 1], [4, 3])
    assert table.append(1) == []
    assert (table.block_ids, filled(table)) == ([7, 1], [4, 4])
    assert table.append(1) == []
    assert (table.block_ids, filled(table)) == ([7, 1, 3], [4, 4, 1])


def test_two_samples_share_blocks_7_and_1() -> None:
    pool = pool_that_hands_out([7, 1, 3], 4)
    first = BlockTable(pool)
    first.append(7)
    second = first.fork()
    assert [pool.refcount(b) for b in (7, 1)] == [2, 2]
    assert first.append(1) == [BlockCopy(1, 3)]
    assert (first.block_ids, second.block_ids) == ([7, 3], [7, 1])
    assert [pool.refcount(b) for b in (7, 1, 3)] == [2, 1, 1]
    assert second.append(1) == []
    assert second.block_ids == [7, 1]
    pool.check([first, second])


@pytest.mark.parametrize(("prompt", "copied", "shared"), [(64, 20, 8), (60, 20, 11)])
def test_four_beams_of_ten_tokens(prompt: int, copied: int, shared: int) -> None:
    pool = BlockPool(64, 16)
    beam = BlockTable(pool)
    beam.append(prompt)
    beams = [beam, *(beam.fork() for _ in range(3))]
    for _ in range(10):
        for beam in beams:
            beam.append(1)
    assert pool.num_used == shared
    assert 4 * blocks_for(prompt + 10, 16) == copied
    pool.check(beams)


def test_256_token_prompt_and_four_sequences() -> None:
    shared, copied = BlockPool(64, 16), BlockPool(64, 16)
    prompt = BlockTable(shared)
    prompt.append(256)
    sequences = [prompt, *(prompt.fork() for _ in range(3))]
    for table in (BlockTable(copied) for _ in sequences):
        table.append(256)
    assert (shared.num_used, copied.num_used) == (16, 64)


def test_widget_pool_is_half_a_gibibyte_of_llama() -> None:
    assert 64 * 16 * MODELS["LLaMA-2-7B"].bytes_per_token == 512 * 2**20


@pytest.mark.parametrize(
    ("notebook", "numbers"),
    [
        (
            "02_block_pool",
            [
                "[5, 12, 3]",
                "80  95 192 207  48  50",
                "16 + 16 + 4",
                "512 MiB",
                "[7, 1], filled 4 + 3",
                "[7, 1, 3], filled 4 + 4 + 1",
            ],
        ),
        (
            "03_copy_on_write",
            [
                "[7, 1]",
                "copy block 1 to 3",
                "{7: 2, 1: 1, 3: 1}",
                "8 blocks in use, 20 without sharing",
                "11 blocks in use, 20 without sharing",
                "16 blocks in use, 64 without sharing",
            ],
        ),
    ],
)
def test_the_notebook_prints_them(notebook: str, numbers: list[str]) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{notebook}.ipynb", 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = "\n".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in outputs)
    for number in numbers:
        assert number in printed, f"{notebook} does not print {number!r}"
