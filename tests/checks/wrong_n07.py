"""Plausible wrong answers to the eight puzzles of notebook 07: each is the folded solution with a line changed.

`EDITS[puzzle]` lists what is changed, into what, and the words by which the check names it.
"""

FULL = "slot = slots_at(tables + b * table_stride, position, filled, SIZE)"
NO_MAXIMUM = "is infinite, or 0"
# Softmax as its formula says, without any maximum: of a tile for one query, and for the rows of a group.
PLAIN = "total, acc = total + tl.sum(tl.exp(s), 0), acc + tl.sum(tl.exp(s)[:, None] * v, 0)"
MAXIMUM = "new_m = tl.maximum(m, tl.max(s, 1))"
PLAIN_ROWS = "new_m = tl.zeros([ROWS], tl.float32)"
EDITS = {
    "weights": [
        ("tl.program_id(0) * TILE + ", "", "Two programs store the same element"),
        ("mine = i < n", "mine = i <= n", "outside of s: a mask has to keep that out"),
        ("score - m", "score", "m is not subtracted"),
        ("tl.exp(score - m)", "score - m", "The exponential is missing"),
        ("score - m", "m - score", ""),
        ("tl.exp(score - m)", "tl.exp(score) / tl.exp(m)", NO_MAXIMUM),
        ("TILE + tl.arange(0, TILE)", "4 + tl.arange(0, 4)", "Not all of out is written"),
        # What somebody writes first who knows PyTorch.
        ("tl.load(s + i, mask=mine)", "s[i]", "x[...] does not index a tensor"),
        ("tl.arange(0, TILE)", "tl.arange(0, n)", "tl.constexpr"),
        ("tl.exp(", "torch.exp(", "A kernel calls torch"),
    ],
    "scores": [
        (" * scale", "", "The scale is missing"),
        ("(j * HEADS + head) * DIM", "(j + head) * DIM", "as if there were one head"),
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
        (', mask=j < n, other=float("-inf")', "", "loads outside of s"),
        (", mask=j[:, None] < n, other=0.0", "", "loads outside of v"),
    ],
    "paged_scores": [
        ("page * SIZE + j % SIZE", "j", "does not read the table"),
        ("table + j // SIZE", "table + 0 * j", "stays in the first page"),
        ("table + j // SIZE", "table + j % SIZE", "loads outside of table"),
        (" + j % SIZE", "", "every key is its page's first"),
        ("page * SIZE + j % SIZE", "page + j % SIZE", "used as a slot"),
        ("page * SIZE + j % SIZE", "page * SIZE + j", "is the mask missing, or the place in the page, p % SIZE?"),
        (".to(tl.int64)", "", "does not fit into 32 bits"),
        ("tl.load(table + j // SIZE, mask=j < n, other=0)", "tl.load(table + j // SIZE)", "loads outside of table"),
    ],
    "decode": [
        ("h // GROUP", "h % KV_HEADS", "dealt out in turn"),
        ("tables + b * table_stride", "tables", "reads the first one's table"),
        ("acc / total", "acc", "not divided by the sum"),
        (" * scale", "", "The scale is missing"),
        (
            's = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float("-inf"))',
            "s = tl.sum(k * query[None, :], 1) * scale",
            "count as scores of 0",
        ),
        (
            "tl.load(v_cache + row[:, None] + d[None, :], mask=filled[:, None], other=0.0)",
            "tl.load(v_cache + row[:, None] + d[None, :])",
            "NaN comes out",
        ),
        ("m, total, acc = take(m, total, acc, s, v)", PLAIN, NO_MAXIMUM),
        (
            FULL,
            "slot = tl.load(tables + b * table_stride + position // SIZE, mask=filled, other=0) * SIZE"
            " + position % SIZE",
            "does not fit into 32 bits",
        ),
    ],
    "grouped": [
        ("(b * KV_HEADS + kv_head) * GROUP + r", "b * KV_HEADS * GROUP + kv_head + r * KV_HEADS", "dealt out in turn"),
        ("acc / total[:, None], mask=r[:, None] < GROUP", "acc / total[:, None]", "stores outside of out"),
        ("tl.max(s, 1)", "tl.max(s, 0)", "raises an error"),
        ("total = total * rescale + tl.sum(p, 1)", "total = total + tl.sum(p, 1)", "The sum so far"),
        ("acc = acc * rescale[:, None]", "acc = acc", "The output so far"),
        ('s = tl.where(filled[None, :], s, float("-inf"))', "", "count as scores of 0"),
        ("k_cache, slot, filled, kv_head", "k_cache, slot, filled, 0", "Several programs load"),
        (MAXIMUM, PLAIN_ROWS, NO_MAXIMUM),
        (MAXIMUM, MAXIMUM.replace("tl.max(s, 1)", "tl.max(tl.max(s, 1), 0)"), "NaN comes out of the arithm"),
        ('tl.full([ROWS], float("-inf"), tl.float32)', "tl.zeros([ROWS], tl.float32)", NO_MAXIMUM),
    ],
    "split": [
        (
            "return max(1, min(3 * processors // (batch * kv_heads), -(-tokens // 128))) if tokens >= 256 else 1",
            "return 1",
            "The smallest case that differs",
        ),
        ("-(-tokens // 128)", "tokens // 128", "The smallest case that differs"),
        ("max(1, min(", "(min(", "The smallest case that differs"),
        ("begin = split * tiles // splits * TILE", "begin = 0", "Several programs load the same keys"),
        ("tl.where(total[:, None] > 0, acc / total[:, None], 0.0)", "acc / total[:, None]", "0 / 0, as in"),
        ("tl.where(total[:, None] > 0, acc / total[:, None], 0.0)", "acc", "not divided by the sum"),
        ("weight = tl.exp(log - tl.max(log, 0))", "weight = tl.where(split < splits, 1.0, 0.0)", "are averaged"),
        ("m + tl.log(total)", "m", "The parts weigh exp(m)"),
        ("tl.exp(log - tl.max(log, 0))", "tl.exp(log)", NO_MAXIMUM),
        ("tokens >= 256", "tokens > 256", "The smallest case that differs"),
        (
            "part = row * splits + split\n    tl.store(parts",
            "part = row * splits\n    tl.store(parts",
            "Two programs store the same element",
        ),
        ("weight = tl.exp(log - tl.max(log, 0))", "weight = log", "NaN comes out of the arithm"),
        (
            "begin = split * tiles // splits * TILE\n"
            "    stop = tl.minimum((split + 1) * tiles // splits * TILE, length)",
            "per = tl.cdiv(length, splits)\n    begin = split * per\n    stop = begin + per",
            "elements of k_cache were loaded that nothing has written",
        ),
    ],
    "launch": [
        ("    return out\n", "", "is a `return` missing?"),
        ("tables.stride(0), dim", "tables.shape[1], dim", "tables.stride(0) elements apart"),
        (".to(tl.int64)", "", "does not fit into 32 bits"),
        ("max(1, min(8, tables.shape[1] * size // 128))", "1", "One program reads all 700 keys"),
        (
            "head = (b * kv_heads + kv_head) * GROUP + r",
            "head = b * kv_heads * GROUP + kv_head + r * kv_heads",
            "dealt out in turn",
        ),
        ("(batch * heads,)", "(batch,)", "Not all of"),
        ("@triton.jit\ndef join", "def join", "no @triton.jit above its def"),
        ("    join_kernel[(batch * heads,)]", "    0 and join_kernel[(batch * heads,)]", "Not all of tensor"),
    ],
}
RIGHT_EDITS = {
    "launch": [
        ("SPLITS=triton.next_power_of_2(splits)", "SPLITS=8"),
        ("TILE=32", "TILE=64"),
    ],
    "decode": [
        ("acc / total", "acc * (1 / total)"),
    ],
    "weights": [
        ("mask=mine)\n    tl.store", "mask=mine, other=0.0)\n    tl.store"),
    ],
}
