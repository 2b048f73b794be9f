"""The worked numbers on blocks, as notebooks 01 to 03 print them by operating the real pool."""

import nbformat
import pytest

from support.paths import ROOT


@pytest.mark.parametrize(
    ("notebook", "numbers"),
    [
        (
            "01_fragmentation",
            [
                "2 GiB; four copies: 8 GiB",
                "64 blocks of 16 tokens: 512 MiB",
                "one block of 16 tokens: 192 KiB",
                "232 of 512 slots used, 54.7% wasted; 67.1% of the attention scores",
                "8 + 4 + 2 + 1 blocks of 16",
                "36 tokens in blocks of 16: the blocks hold [16, 16, 4]",
                "1,968 wasted, 96.1%",
                "68 of 108 slots wasted; paged: tables of [2, 1, 1] blocks",
            ],
        ),
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
                "copy block 1 into block 3",
                "{7: 2, 1: 1, 3: 1}",
                "8 blocks in use, 20 without sharing",
                "11 blocks in use, 20 without sharing",
                "16 blocks in use, 64 without sharing",
            ],
        ),
    ],
)
def test_the_notebook_prints_them(notebook, numbers):
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = "\n".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in outputs)
    for number in numbers:
        assert number in printed, f"{notebook} does not print {number!r}"
