"""Wrong answers to the exercises of notebook 15: each has one mistake that readers make."""

from pagedlab_lessons.capstone import Workbench

from pagedlab import BlockTable, Scheduler

EDITS = {
    "my_pool": [
        (" + len(self.cached)", "", "cached"),
        ("self.cached.pop(block_id, None)", "pass", "cached"),
        (" and self.keeps(block_id)", "", "ValueError"),
        ("if not self.free_ids", "if self.cached", "evicts it last"),
    ],
    "my_table": [
        ("self.pool.release(source)", "pass"),
        ("+ must_copy > self.pool.num_free", "> self.pool.num_free"),
        ("self.pool.forget(self.block_ids[-1])", "pass", "forgotten"),
        ('self.pool.emit("copy", destination, source)', "pass", "emits a copy"),
        ("destination, source)\n            self", "source, destination)\n            self", "its destination"),
    ],
    "my_cache": [
        ("contents != [salt, token_ids[:end]]", "contents[1:] != [token_ids[:end]]", "different past"),
        ("token_ids[:-1]", "token_ids", "last token"),
        ("self.pool.forget(block_id)", "continue", "longer prompt"),
        ('self.pool.emit("hit", block_id)', "pass", "emits a hit"),
        ("self.stats.hit_tokens += table.num_tokens", "pass", "hit_tokens"),
        ("self.block_table(self.pool)", "BlockTable(self.pool)", "never runs"),
    ],
    "my_attention": [
        ("[:length]", ""),
        ("1 + length - n", "length - n"),
        ("repeat_interleave(q.shape[1] // kv_heads, dim=1)", "repeat(1, q.shape[1] // kv_heads, 1)", "differs"),
    ],
    "my_scheduler": [
        ("self.running[-1]", "self.running[0]", "youngest"),
        ("self.waiting[0]", "self.waiting[-1]", "first waiting"),
        ("min(sequence.num_uncomputed, self.budget)", "min(sequence.num_uncomputed, self.budget, 1)", "Steps"),
        ("min(sequence.num_uncomputed, self.budget)", "sequence.num_uncomputed", "budget"),
        ("len(self.running) >= self.max_sequences or ", "", "Too many run."),
        ("(self.running and not self.may_admit(sequence))", "not self.may_admit(sequence)", "no chunk"),
        ("self.register(self.plan.chunks[-1])", "pass", "register"),
        (" and not self.plan.preempted", "", "admits none"),
    ],
    "my_sample": [
        (" / asked.temperature", "", "temperatures"),
        (", right=True", "", "temperatures"),
        (".double()", "", "temperatures"),
        ("number * shares[-1]", "numbers[0] * shares[-1]", "temperatures"),
    ],
    "my_step": [
        ("self.cache.copy_blocks(plan.copies)", "pass", "tokens"),
        ("self.update(plan, self.sample(plan, logits))", "[]"),
        ("return self.update", "self.update", "NoneType"),
    ],
}


def bench(name, part):
    """A workbench with one part that is wrong."""
    made = Workbench()
    made.parts[name] = part
    return made


class Leaks(BlockTable):
    def free(self):
        self.block_ids, self.num_tokens = self.block_ids[:1], 0
        super().free()


class NeverPreempts(Scheduler):
    def may_admit(self, sequence):
        return not self.running and super().may_admit(sequence)


class DropsCopies(Scheduler):
    def schedule(self):
        plan = super().schedule()
        plan.copies.clear()
        return plan


WRONG = {
    "my_engine": [
        bench("my_table", Leaks),
        bench("my_scheduler", NeverPreempts),
        bench("my_scheduler", DropsCopies),
    ]
}
