"""The exercises' checks: `check.NAME(answer)` says whether an answer is right.

    from pagedlab.checks import check
    check.block_pool(MyBlockPool)

The result shows itself as the last line of a cell. Its status is one of three:

    not attempted   the stub is untouched: the answer is `...`, or a function or method in it has
                    `...` as its body or raises `NotImplementedError`
    failed          the smallest counterexample that was found, with the expected result beside
                    the answer's
    passed          what the answer now proves

Nothing that an answer does, not even an endless loop, ends in a traceback from here.

How to write a check. A check is registered under its function's name, in a cell of a notebook or in
a module `pagedlab/checks/<topic>.py`. A module's checks are listed in `TOPICS` below. If values can
be compared, write a right answer, the cases to try, and what a right answer proves:

    @compared("Right at every fill of the last block.", [(1, 4), (4, 4), (5, 4)])
    def waste(num_tokens: int, block_size: int) -> int:
        "Slots of the last block that stay empty."
        return -num_tokens % block_size

Otherwise write a function of the answer and decorate it with `exercise`. It returns what a right
answer proves and raises `Wrong` for a wrong one. It runs the reader's code inside `trying`. For
classes, `search` runs sequences of operations on the answer beside a reference, short ones first,
and shrinks what fails; blocks.py shows how.

In the notebook an exercise is one cell with the tag `exercise`: the stub, then `check.NAME(...)`.
It uses nothing of the cells above but imports. Folded below it are three hints and
`<details><summary>Solution</summary>` with one ```python fence, which takes the stub's place.
tests/checks/wrong_<topic>.py lists three wrong answers for each check.
"""

from importlib import import_module

from pagedlab.checks.comparing import Wrong, agree, compare, first_wrong, say, shape, trying
from pagedlab.checks.results import REGISTERED, Check, CheckResult, compared, exercise, to_write
from pagedlab.checks.searching import Trial, replay, search
from pagedlab.lessons.readers_code import StillRunning, bounded, explain

__all__ = [
    "TOPICS",
    "CheckResult",
    "StillRunning",
    "Trial",
    "Wrong",
    "agree",
    "bounded",
    "check",
    "compare",
    "compared",
    "exercise",
    "explain",
    "first_wrong",
    "replay",
    "say",
    "search",
    "shape",
    "to_write",
    "trying",
]

# The module of each check, so that a check imports what it needs itself and no more. Some modules
# need torch, which a browser does not have.
TOPICS = {
    "blocks": (
        "block_of",
        "block_pool",
        "slot",
        "block_table",
        "broken_pools",
        "copy_on_write",
        "copies_after_forks",
        "truncate",
        "order_of_frees",
    ),
    "fragmentation": ("users_that_fit", "last_block_waste", "largest_block", "useless_holes"),
    "sharing": ("reorder_beams", "beam_blocks", "saved_prefill"),
    "prefix": ("prefix_cache", "leaf_first", "foreign_kv"),
    "softmax": ("softmax_step", "merge_halves", "shared_heads"),
    "kernel": ("weights", "scores", "online_step", "paged_scores", "decode", "grouped", "split"),
    "launched": ("launch",),
    "qwen": ("paged_bytes", "attend_one"),
    "scheduling": ("patient", "victim", "swap_or_recompute", "must_preempt"),
    "speed": ("step_floor", "step_time", "in_vain"),
    "parallel": ("mlp_part", "heads_of_rank", "wire_bytes"),
    "speculative": ("roll_back", "kept_tokens", "acceptance_rule"),
    "serving": ("engine_loop", "closed_salt"),
}
_TOPIC_OF = {name: topic for topic, names in TOPICS.items() for name in names}


class Checks:
    """Every check as an attribute: `check.slot(my_slot)` returns a CheckResult.

    `help(check.slot)` says what the answer to an exercise is. `dir(check)` lists the checks.
    """

    def __getattr__(self, name: str) -> Check:
        if name in _TOPIC_OF:
            import_module(f"{__name__}.{_TOPIC_OF[name]}")
        if name not in REGISTERED:
            raise AttributeError(f"there is no check {name!r}; there are {', '.join(dir(self))}")
        return REGISTERED[name]

    def __dir__(self) -> list[str]:
        return sorted({*_TOPIC_OF, *REGISTERED})


def _listed() -> str:
    """Return the names of all checks, a topic a line."""
    lines = [f"    {topic:<15} {', '.join(names)}" for topic, names in TOPICS.items()]
    return "The checks by topic:\n\n" + "\n".join(lines)


Checks.__doc__ = f"{Checks.__doc__}\n    {_listed()}\n"
check = Checks()
