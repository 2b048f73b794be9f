"""Plausible wrong answers to the exercises of notebook 08, and right ones that differ from the solution."""

from pagedlab_lessons.broken import SuspectPool

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "peak_blocks": [
        (
            "            if step < answer:\n                held += -(-(prompt + step) // block_size)",
            "            held += -(-(prompt + answer - 1) // block_size)",
        ),
        ("range(max(answers, default=0))", "range(1)"),
        (
            "-(-(prompt + step) // block_size)\n        peak = max(peak, held)",
            "prompt + step\n        peak = max(peak, -(-held // block_size))",
        ),
    ],
    "mended_pool": [
        (
            "\n        if self.counts[block] == 0:\n            self.free_list.append(block)",
            "",
            "After pool.release(a): counts or num_free differ.",
        ),
        (
            "def release(",
            "def share(self, block):\n        return block\n\n    def unused(",
            "After pool.share(a): counts or num_free differ.",
        ),
        (
            "self.counts[block] -= 1\n        if self.counts[block] == 0:\n            self.free_list.append(block)",
            "super().release(block)\n        self.free_list = list(dict.fromkeys(self.free_list))",
            "After pool.release(a): counts or num_free differ.",
        ),
    ],
    "attend_one": [
        ("k.T * scale", "k.T", "attends to all positions up to its own"),
        ("scores.softmax(dim=-1)", "scores.exp() / scores.exp().sum(-1, keepdim=True)", "exp of a score"),
        ("triu(1 + length - n)", "triu(length)", "attends to all positions up to its own"),
        ("triu(1 + length - n)", "triu(length - n)", "0 x NaN is NaN"),
    ],
}
RIGHT_EDITS = {
    "peak_blocks": [
        # Between two ends the blocks only grow.
        ("in range(max(answers, default=0))", "in {answer - 1 for answer in answers}"),
    ],
}
WRONG = {"mended_pool": [SuspectPool]}
