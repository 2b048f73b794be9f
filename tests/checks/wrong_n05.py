"""Plausible wrong answers to the exercises of notebook 05, and right ones that differ from the solution."""

from pagedlab_lessons.checks.n05 import ChecksOwnTokens

from pagedlab.prefix import PrefixCache

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "prefix_cache": [
        ("                break\n", "                continue\n", "Block 4 has KV of a different past."),
        ("token_ids[:-1]", "token_ids", "The last token must be left to compute."),
        (
            "            if name not in self.blocks:\n"
            "                self.pool.keep(block_id)\n"
            "                self.blocks[name] = block_id",
            "            self.pool.keep(block_id)\n            self.blocks[name] = block_id",
            "register gives a known hash another block",
        ),
        ("size, salt)", "size, salt or None)", "Block 0 has KV of a different past."),
        ("if block != block_id", "if block > block_id", "finds another number of tokens"),
        (
            "return hash_chain(token_ids, self.pool.block_size, salt)",
            "size = self.pool.block_size\n"
            "        starts = range(0, len(token_ids) // size * size, size)\n"
            "        return [hash_chain(token_ids[i : i + size], size, salt)[0] for i in starts]",
            "Block 1 has KV of a different past.",
        ),
        (
            "self.pool.share(self.blocks[name])",
            "self.blocks[name]",
            "ValueError: block 1 is free already",
        ),
        (
            "zip(self.names(token_ids, salt), table.block_ids)",
            "zip(self.names(token_ids, salt)[:1], table.block_ids)",
            "A longer prompt must find every full block that was just registered.",
        ),
    ],
    "leaf_first": [
        (
            "min(leaves",
            "min(last_used",
            "A block that is the parent of a cached one has to stay.",
        ),
        ("min(leaves", "max(leaves"),
        ("min(leaves, key=lambda block: last_used[block])", "leaves[0]"),
    ],
}
WRONG = {
    "foreign_kv": [["AT", "BT"], ["AT", "A", "AT"], ["C"], "AT"],
}
RIGHT = {
    "prefix_cache": [PrefixCache, ChecksOwnTokens],  # the last one's flaw needs two that collide
    "foreign_kv": [["AT", "B", "BT"], ["A", "ATT", "B", "BTT"]],
}
