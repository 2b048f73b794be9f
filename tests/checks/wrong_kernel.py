"""Plausible wrong answers to the eight puzzles of notebook 07: each is the folded solution with a line changed.

`MISTAKES[puzzle]` lists what is changed, into what, and the words by which the check names it.
"""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from pagedlab.lessons.fence import define

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "07_the_paged_kernel.ipynb"
BROUGHT = "import torch\nfrom pagedlab.lessons.ladder import attend, rows_at, slots_at, take\n"
SPLIT = '{"my_split": my_split, "my_merge": my_merge, "my_splits": my_splits}'
ANSWERS = {
    "weights": "my_weights",
    "scores": "my_scores",
    "online_step": "my_step",
    "paged_scores": "my_paged_scores",
    "decode": "my_decode",
    "grouped": "my_grouped",
    "split": SPLIT,
    "launch": "my_attention",
}


@cache
def solutions() -> dict[str, str]:
    """The folded solutions, by the name of the check in the cell above."""
    found, name = {}, ""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        source = "".join(cell["source"])
        if check := re.search(r"^check\.(\w+)\(", source, re.MULTILINE):
            name = check[1]
        if solution := re.search(r"<summary>Solution</summary>.*?```python\n(.*?)```", source, re.DOTALL):
            found[name] = solution[1]
    return found


def answer(name: str, old: str = "", new: str = "") -> Any:
    """The solution of a puzzle, changed, as its check takes it."""
    source = solutions()[name]
    assert old in source, f"{name}: the solution has no {old!r}"
    return eval(ANSWERS[name], define(BROUGHT + source.replace(old, new)))


FULL = "slot = slots_at(tables + b * table_stride, position, filled, SIZE)"
MISTAKES: dict[str, list[tuple[str, str, str]]] = {
    "weights": [
        ("tl.program_id(0) * TILE + ", "", "Two programs store the same element"),
        ("tl.program_id(0) * TILE + ", "tl.program_id(0) + ", "Two programs store the same element"),
        ("mine = i < n", "mine = i <= n", "outside of s: a mask has to keep that out"),
        ("tl.load(s + i, mask=mine)", "tl.load(s + i)", "loads outside of s"),
        ("tl.exp(score - m), mask=mine)", "tl.exp(score - m))", "stores outside of out"),
        ("score - m", "score", "m is not taken off"),
        ("tl.exp(score - m)", "score - m", "The exponential is missing"),
        ("score - m", "m - score", "The sign is turned round"),
        ("mine = i < n", "mine = i < n - 1", "Not all of out is written"),
    ],
    "scores": [
        (" * scale", "", "The scale is missing"),
        ("(j * HEADS + head) * DIM", "(j + head) * DIM", "as if there were one head"),
        ("(j * HEADS + head) * DIM", "(head * n + j) * DIM", "as if all tokens of a head lay together"),
        ("(j * HEADS + head) * DIM", "j * HEADS * DIM", "takes the keys of head 0"),
        ("q + head * DIM + d", "q + d", "takes the query of head 0"),
        (", mask=j[:, None] < n, other=0.0", "", "loads outside of k"),
        ("score, mask=j < n", "score", "outside of out"),
        ("tl.sum(keys * query[None, :], 1)", "tl.sum(keys * query[None, :], 0)", "raises an error"),
        ("out + head * n + j", "out + j", "Two programs store the same element"),
    ],
    "online_step": [
        ("tl.load(total) * rescale", "tl.load(total)", "The sum so far is not corrected"),
        ("tl.load(acc + d) * rescale", "tl.load(acc + d)", "The output so far is not corrected"),
        ("tl.exp(old_m - new_m)", "1.0", "Neither the sum nor the output"),
        ("tl.maximum(old_m, tl.max(score, 0))", "tl.max(score, 0)", "The tile's largest score is taken"),
        ('mask=j < n, other=float("-inf")', "mask=j < n, other=0.0", "count as scores of 0"),
        ("tl.store(m, new_m)", "", "Not all of m is written"),
        ("tl.store(m, new_m)", "tl.store(m, old_m)", "The new maximum is not kept"),
        ("tl.load(total) * rescale + tl.sum(p, 0)", "tl.sum(p, 0)", ""),
        (', mask=j < n, other=float("-inf")', "", "loads outside of s"),
        (", mask=j[:, None] < n, other=0.0", "", "loads outside of v"),
    ],
    "paged_scores": [
        ("page * SIZE + j % SIZE", "j", "The table is not asked"),
        ("table + j // SIZE", "table + 0 * j", "stays in the first page"),
        ("table + j // SIZE", "table + j % SIZE", "loads outside of the table"),
        (" + j % SIZE", "", "every key is its page's first"),
        ("+ j % SIZE", "+ j // SIZE", "p % SIZE, not p // SIZE"),
        ("page * SIZE + j % SIZE", "page + j % SIZE", "taken for a slot"),
        (".to(tl.int64)", "", "does not fit into 32 bits"),
        ("slot * HEADS + head) * DIM", "slot * HEADS + head).to(tl.int32) * DIM", "does not fit into 32 bits"),
        ("tl.load(table + j // SIZE, mask=j < n, other=0)", "tl.load(table + j // SIZE)", "loads outside of the table"),
    ],
    "decode": [
        ("h // GROUP", "h % KV_HEADS", "dealt out in turn"),
        ("h // GROUP", "0", "Every query head reads KV head 0"),
        ("tables + b * table_stride", "tables", "reads the first one's table"),
        ("range(0, length, TILE)", "range(0, length // TILE * TILE, TILE)", "The last tile is left out"),
        ("range(0, length, TILE)", "range(0, TILE, TILE)", "Only the first tile"),
        ("acc / total", "acc", "not divided by the sum"),
        (" * scale", "", "The scale is missing"),
        ("s = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float(\"-inf\"))",
         "s = tl.sum(k * query[None, :], 1) * scale", "count as scores of 0"),
        ("tl.load(v_cache + row[:, None] + d[None, :], mask=filled[:, None], other=0.0)",
         "tl.load(v_cache + row[:, None] + d[None, :])", "NaN comes out"),
        ("m, total, acc = take(m, total, acc, s, v)",
         "_, total, acc = take(0.0, total, acc, s, v)", ""),
        ("m, total, acc = take(m, total, acc, s, v)",
         "new_m, t, a = take(m, 0.0, tl.zeros([DIM], tl.float32), s, v)\n"
         "        m, total, acc = new_m, total + t, acc + a", "Neither the sum nor the output so far"),
        (FULL, "slot = tl.load(tables + b * table_stride + position // SIZE, mask=filled, other=0) * SIZE"
         " + position % SIZE", "does not fit into 32 bits"),
    ],
    "grouped": [
        ("(b * KV_HEADS + kv_head) * GROUP + r", "b * KV_HEADS * GROUP + kv_head + r * KV_HEADS", "dealt out in turn"),
        ("acc / total[:, None], mask=r[:, None] < GROUP", "acc / total[:, None]", "stores outside of out"),
        ("tl.max(s, 1)", "tl.max(s, 0)", "raises an error"),
        ("total = total * rescale + tl.sum(p, 1)", "total = total + tl.sum(p, 1)", "The sum so far is not corrected"),
        ("acc = acc * rescale[:, None]", "acc = acc", "The output so far is not corrected"),
        ("s = tl.where(filled[None, :], s, float(\"-inf\"))", "", "count as scores of 0"),
        ("k_cache, slot, filled, kv_head", "k_cache, slot, filled, 0", "Several programs load"),
        ("tables + b * table_stride", "tables", "reads the first one's table"),
        ("range(0, length, TILE)", "range(0, length // TILE * TILE, TILE)", "The last tile is left out"),
        (' input_precision="ieee") * scale', ' input_precision="ieee")', "The scale is missing"),
    ],
    "split": [
        ("return max(1, min(3 * processors // (batch * kv_heads), -(-tokens // 128))) if tokens >= 256 else 1",
         "return 1", "The smallest case that differs"),
        ("-(-tokens // 128)", "tokens // 128", "The smallest case that differs"),
        ("max(1, min(", "(min(", "The smallest case that differs"),
        (" if tokens >= 256 else 1", "", "The smallest case that differs"),
        ("begin = split * tiles // splits * TILE", "begin = 0", "Several programs load the same keys"),
        ("stop = tl.minimum((split + 1) * tiles // splits * TILE, length)", "stop = length", "Several programs load"),
        ("tl.where(total[:, None] > 0, acc / total[:, None], 0.0)", "acc / total[:, None]", "divides 0 by 0"),
        ("tl.where(total[:, None] > 0, acc / total[:, None], 0.0)", "acc", "not divided by the sum"),
        ("weight = tl.exp(log - tl.max(log, 0))", "weight = tl.where(split < splits, 1.0, 0.0)", "are averaged"),
        ("m + tl.log(total)", "m", "The parts weigh exp(m)"),
        (" / tl.sum(weight, 0)", "", "not divided by the sum of the weights"),
        ("part = row * splits + split\n    tl.store(parts", "part = row * splits\n    tl.store(parts",
         "Two programs store the same element"),
    ],
    "launch": [
        ("    return out\n", "", "It returns None"),
        ("tables.stride(0), dim", "tables.shape[1], dim", "tables.stride(0) elements apart"),
        (".to(tl.int64)", "", "does not fit into 32 bits"),
        ("max(1, min(8, tables.shape[1] * size // 128))", "1", "One program reads all 700 keys"),
        ("head = (b * kv_heads + kv_head) * GROUP + r", "head = b * kv_heads * GROUP + kv_head + r * kv_heads",
         "dealt out in turn"),
        ("(batch * heads,)", "(batch,)", "Not all of"),
        ("@triton.jit\ndef join", "def join", "no @triton.jit above its def"),
        ("begin = split * tiles // splits * TILE", "begin = 0", "Several programs load the same keys"),
        ("weight = tl.exp(log - tl.max(log, 0))", "weight = log", "NaN comes out of the arithmetic"),
        ("    join_kernel[(batch * heads,)]", "    0 and join_kernel[(batch * heads,)]", "No kernel stores into"),
        ("tl.where(total[:, None] > 0, acc / total[:, None], 0.0)", "acc / total[:, None]", "divides 0 by 0"),
        ("tables + b * table_stride", "tables", "reads the first one's table"),
    ],
}  # fmt: skip
WRONG: dict[str, list[Any]] = {}
RIGHT: dict[str, list[Any]] = {}


class Named:
    """A kernel under the name of its mistake, for the tests' list."""

    def __init__(self, kernel: Any, name: str) -> None:
        self.fn, self.kernel, self.__name__ = kernel.fn, kernel, name

    def __getitem__(self, grid: Any) -> Any:
        return self.kernel[grid]


def _named(name: str, number: int, old: str, new: str) -> Any:
    changed = answer(name, old, new)
    if isinstance(changed, dict):
        return changed
    if inspect.isfunction(changed):  # puzzle 8: a function that launches kernels
        changed.__name__ = f"{number}"
        return changed
    return Named(changed, f"{number}")


for puzzle, listed in MISTAKES.items():  # four of each; test_puzzles.py tries all
    WRONG[puzzle] = [_named(puzzle, number, old, new) for number, (old, new, _) in enumerate(listed[-4:])]

RIGHT["launch"] = [
    answer("launch", "SPLITS=triton.next_power_of_2(splits)", "SPLITS=8"),
    answer("launch", "TILE=32", "TILE=64"),
    answer("launch", "torch.empty_like(q)", "torch.zeros_like(q)"),
]
RIGHT["decode"] = [answer("decode", "acc / total", "acc * (1 / total)")]
RIGHT["paged_scores"] = [answer("paged_scores", ", mask=j[:, None] < n, other=0.0", ", mask=j[:, None] < n + 1")]
RIGHT["weights"] = [answer("weights", "mask=mine)\n    tl.store", "mask=mine, other=0.0)\n    tl.store")]
