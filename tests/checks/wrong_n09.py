"""Plausible wrong answers to the exercises of notebook 09, and right ones that differ from the solution."""

from pagedlab_lessons.checks.n09 import Continuous, FirstThatFits

from pagedlab.scheduler import Scheduler


class CountsByRequest(Scheduler):
    """Right as well: a count for each request, kept by those who were let in."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.times = {}

    def next_waiting(self):
        first = self.waiting[0]
        fits = [request for request in self.waiting if self.may_admit(request)]
        if first in fits or not fits or self.times.get(first, 0) == 3:
            return first
        self.times[first] = self.times.get(first, 0) + 1
        return fits[0]


# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "schedule": [
        (
            "        while self.waiting and",
            "        is_idle = not self.running\n        while is_idle and self.waiting and",
            "compute all their tokens?",
        ),
        (
            "self.waiting.popleft())",
            "self.waiting.popleft())\n            break",
            "compute all their tokens?",
        ),
        (" and self.may_admit(self.waiting[0])", "", "OutOfBlocks: append(6)"),
        ("            seq.table.append(stop - start)\n", "", "A token that is computed needs a slot"),
        ("len(self.running) < self.max_sequences", "True", "compute all their tokens?"),
        ("return self.plan", "pass", "schedule returns the plan: return self.plan"),
        ("seq.table.append(stop - start)", "seq.table.append(stop)", "`stop` is exclusive"),
    ],
    "must_preempt": [
        ("% block_size == 0", "% block_size < block_size", "Lengths [1] in blocks of 4: a sequence needs a new block"),
        ("% block_size == 0", "% block_size == block_size - 1"),
        (
            "sum(tokens % block_size == 0 for tokens in held) > free",
            "any(tokens % block_size == 0 for tokens in held) and not free",
        ),
        ("(tokens % block_size == 0 for", "(tokens > 0 and tokens % block_size == 0 for"),
    ],
    "swap_or_recompute": [
        ("moved = 2 * tokens", "moved = tokens", "A swap takes 0.01638 s, recomputing 0.01355 s."),
        ("computed = 2 * tokens", "computed = tokens", "A swap takes"),
        ("moved < computed", "moved >= computed", "A swap takes"),
    ],
    "victim": [
        ("def victim(", "def my_victim("),
        ("reversed(self.running[1:])", "reversed(self.running)"),
        ("reversed(self.running[1:])", "self.running[1:]"),
    ],
    "patient": [
        ("def next_waiting(", "def my_waiting(", "The first in the queue is passed 3 times at most"),
        ("elif self.passed < 3:", "else:", "The first in the queue is passed 3 times at most"),
        (
            "first = self.waiting[0]",
            "return min(self.waiting, key=lambda sequence: sequence.num_prompt_tokens)",
            "The first in the queue is passed 3 times at most",
        ),
        (
            "in self.waiting:",
            "in sorted(self.waiting, key=lambda sequence: sequence.num_prompt_tokens):",
            "The first in the queue is passed 3 times at most",
        ),
    ],
}
RIGHT_EDITS = {"schedule": [("return self.plan", "self.plan.chunks.reverse()\n        return self.plan")]}
WRONG = {"schedule": [Scheduler], "patient": [FirstThatFits]}
RIGHT = {"schedule": [Continuous], "patient": [CountsByRequest]}
