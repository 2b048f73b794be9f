"""The exercises' checks: `check.NAME(answer)` says whether an answer is right.

    from pagedlab_lessons.checks import check
    check.block_pool(MyBlockPool)

The result shows itself as the last line of a cell. Its status is one of three:

    not attempted   a stub is left: the answer is `...`, or a function or method in it has `...` as
                    its body or raises `NotImplementedError`
    failed          the smallest counterexample that was found, with the expected result beside
                    the answer's
    passed          what the answer now proves

Nothing that an answer does, not even an endless loop or `exit()`, ends in a traceback from here.
Only an interrupt by the reader does. A check stops after a million steps, or after a minute where
the system has an alarm. A loop inside of a C function hears neither.

How to write a check. A check is registered under its function's name, in a cell of a notebook or in
the module with the notebook's number. protocol.py lists the checks of each, and has all names.
If values can be compared, write a right answer, the cases to try, and what a right answer proves:

    @compared("Right at every fill of the last block.", [(1, 4), (4, 4), (5, 4)])
    def waste(num_tokens: int, block_size: int) -> int:
        "Slots of the last block that stay empty."
        return -num_tokens % block_size

Otherwise write a function of the answer and decorate it with `exercise`. It returns what a right
answer proves and raises `Wrong` for a wrong one. It runs the reader's code inside `trying`.
`search` runs sequences of operations on the answer beside a reference, short ones first, and
shrinks what fails; n02.py shows how.

In the notebook an exercise is one cell with the tag `exercise`: the stub, then `check.NAME(...)`.
It uses nothing of the cells above but imports. Folded below it are hints and
`<details><summary>Solution</summary>` with one ```python fence, which takes the stub's place.
tests/checks/wrong_nNN.py lists three wrong answers for each check.
"""

# ruff: noqa: F403, F405 - the names of protocol.py are the package's

from importlib import import_module

from pagedlab_lessons.checks.protocol import *


class Checks:
    """Every check as an attribute: `check.slot(my_slot)` returns a CheckResult.

    `help(check.slot)` says what the answer to an exercise is. `dir(check)` lists the checks.
    """

    def __getattr__(self, name: str) -> Check:
        if name in MODULE_OF:
            import_module(f"{__name__}.{MODULE_OF[name]}")
        if name not in REGISTERED:
            raise AttributeError(f"there is no check {name!r}; there are {', '.join(dir(self))}")
        return REGISTERED[name]

    def __dir__(self) -> list[str]:
        return sorted({*MODULE_OF, *REGISTERED})


check = Checks()
