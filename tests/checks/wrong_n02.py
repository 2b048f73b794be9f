"""Plausible wrong answers to the exercises of notebooks 00, 02 and 03. test_exercises.py runs them all."""

from pagedlab import BlockPool, BlockTable
from support import broken

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "block_pool": [
        (
            "self.in_use(block_id)\n        self.counts[block_id] -= 1",
            "self.counts[block_id] -= self.counts[block_id] > 0",
            "pool.release(a) must raise ValueError.",
        ),
        (
            "not 0 <= block_id < self.num_blocks or",
            "block_id >= self.num_blocks or",
            "pool.share(-1) must raise ValueError.",
        ),
        (
            '        if not self.free_ids:\n            raise OutOfBlocks("no block is free")\n',
            "",
            "d = pool.allocate() must raise OutOfBlocks.",
        ),
        ("+= 1\n        return block_id", "+= 1", "share must return the block's id."),
        ("list(range(num_blocks))", "list(range(1, num_blocks))", "counts or num_free differ."),
        ("self.counts = [", "MyBlockPool.counts = [", "Two pools have the same"),
        (
            "block_id = self.free_ids.pop()",
            "block_id = 0\n        while self.counts[block_id] >= 0:\n            block_id = 0",
            "it is still running after 1,000,000 steps: look for a loop t",
        ),
    ],
    "slot": [
        (
            "block_ids[position // block_size] * block_size + position % block_size",
            "block_ids[0] * block_size + position",
        ),
        ("] * block_size", "]"),
        ("[position // block_size] * block_size + position % block_size", "[position % len(block_ids)] * block_size"),
        ("position // block_size", "position / block_size", "TypeError: list indices must be integers or slices"),
    ],
    "block_table": [
        (
            "blocks_for(self.num_tokens + n, self.pool.block_size)",
            "((self.num_tokens + n) // self.pool.block_size + 1)",
            "the tables differ.",
        ),
        (
            "if needed > self.pool.num_free:",
            "if not self.pool.num_free:",
            "which raises as it should and must change nothing",
        ),
        (
            "while self.block_ids:\n            self.pool.release(self.block_ids.pop())",
            "self.block_ids = []",
            "block 0 counts 1 but 0 tables list it.",
        ),
        (
            "def __init__(self, pool):\n        self.pool = pool\n        self.block_ids = []",
            "block_ids = []\n\n    def __init__(self, pool):\n        self.pool = pool",
            "the tables differ.",
        ),
        (
            "self.block_ids[position // size] * size + position % size",
            "self.block_ids[0] * size + position",
            "a maps blocks [0, 2, 3]: the slots",
        ),
        ("return []", "return None", "a.append() must return its copies, as (source, destination)."),
    ],
    "copy_on_write": [
        (
            "[self.pool.share(block_id) for block_id in self.block_ids]",
            "self.block_ids",
            "block 0 counts 1 but 2 tables list it.",
        ),
        ("self.num_tokens % size != 0 and", "self.num_tokens > 0 and", "the tables differ."),
        ("            self.pool.release(source)\n", "", "block 0 counts 2 but 1 tables list it."),
        (
            "BlockCopy(source, destination)",
            "BlockCopy(destination, source)",
            "a.append() must return its copies, as (source, destination).",
        ),
    ],
    "copies_after_forks": [
        (" if num_tokens % block_size else 0", ""),
        ("return num_forks if num_tokens", "return 1 if num_forks and num_tokens"),
        ("num_tokens % block_size", "num_tokens & (block_size - 1)"),
    ],
    "truncate": [
        (
            "if not 0 <= num_tokens <= table.num_tokens:",
            "num_tokens = max(0, num_tokens)\n    if num_tokens > table.num_tokens:",
            "a.truncate(-1) must raise ValueError.",
        ),
        ("table.pool.release(table.block_ids.pop())", "break", "the tables differ."),
        (".pop())", ".pop(0))", "the tables differ."),
        ("if not 0 <= num_tokens <= table.num_tokens:", "if num_tokens < 0:", "a.truncate(1) must raise ValueError."),
    ],
}
RIGHT_EDITS = {"block_pool": [("self.free_ids.pop()", "self.free_ids.pop(0)")]}
WRONG = {
    "table_by_hand": [[0, -1, 1], "0 1 2", [10, 11]],  # test_checks.py has more
    "broken_pools": [
        {"A": "counted", "B": "exclusive", "C": "atomic"},
        {"A": "conserved", "B": "exclusive", "C": "counted"},
        {"A": "leaky", "B": "exclusive", "C": "atomic"},
    ],
    "copy_on_write": [broken.CountsForks],  # test_checks.py has the others of broken
    "order_of_frees": [list("dcba"), list("abcd"), list("abc")],
}
RIGHT = {
    "table_by_hand": [[8, 1, 0], (0, 1, 2)],
    "block_pool": [BlockPool],
    "block_table": [BlockTable],
    "copy_on_write": [BlockTable],
    "truncate": [BlockTable.truncate],
    "order_of_frees": [list("abdc")],
}
