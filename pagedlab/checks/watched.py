"""How notebook 07's kernels are checked: in Triton's interpreter, every load and store watched.

What is wrong gets a name where it can be had: a reach behind a tensor, an element that nobody or
everybody stores, a slot that nobody has written, or numbers that are just those which a known
mistake gives. Where Triton compiles, the check runs in a process of its own. Triton is imported
when a kernel is checked.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pagedlab.checks import (
    StillRunning,
    Wrong,
    bounded,
    compare,
    exercise,
    explain,
    first_wrong,
    say,
)

if TYPE_CHECKING:
    import torch

    Numbers = dict[str, torch.Tensor]

Cases = dict[str, dict[str, Any]]  # what a case can show, and how it is made
# what to say, and the outputs of such a kernel; a puzzle's `given` by name
Mistakes = dict[str, Callable[[Any], Any]]
FAR = (
    1 << 27
) + 12_345  # added to page ids: their slots fit into 32 bits, the elements' offsets do not
RULE = [  # arguments of my_splits
    *(
        (1, 8, 16_384, 132),
        (256, 2, 1_024, 132),
        (1, 2, 100, 132),
        (1, 2, 255, 132),
        (32, 8, 4_096, 132),
    ),
    *(
        (7, 4, 4_096, 132),
        (1, 1, 131_072, 108),
        (200, 2, 512, 108),
        (1, 2, 256, 132),
        (5, 2, 700, 132),
    ),
]


def puzzle(name: str, cases: Cases, mistakes: Mistakes, proves: str) -> None:
    """Register a check that runs where Triton is interpreted, which may be another process."""

    def run(answer: Any) -> str:
        from pagedlab.kernels.runtime import INTERPRETED
        from pagedlab.lessons.puzzles import splits_for
        from pagedlab.lessons.tracer import interpreted

        if not INTERPRETED:
            result = interpreted(f"pagedlab.checks:check.{name}", answer)
            if result.status != "passed":
                raise Wrong(
                    result.message,
                    result.expected,
                    result.got,
                    *result.operations,
                    setup=result.setup,
                )
            return result.message
        if name == "split":
            compare(answer["my_splits"], splits_for, RULE)
        for said, case in cases.items():
            try:
                _try(name, answer, mistakes, **case)
            except Wrong as wrong:
                wrong.setup = f"{said}."
                raise
        return proves

    run.__name__ = name
    exercise(run)


def _try(
    name: str, answer: Any, mistakes: Mistakes, far: bool = False, splits: int = 0, **case: Any
) -> None:
    """One launch of a puzzle's kernel; `Wrong`, with a name for the mistake, unless it computes
    what it should.
    """
    from pagedlab.lessons.fence import Memory
    from pagedlab.lessons.puzzles import PUZZLES

    _decorated(answer)
    puzzle, memory = PUZZLES[name], Memory()
    given, options = puzzle.given(**case), dict[str, Any]()
    expected = puzzle.expected(given)
    if far:
        table, offset = (
            "tables" if "tables" in given else "table",
            FAR * given["k_cache"][0].numel(),
        )
        fenced = memory.put_all(given | {table: given[table] + FAR}, k_cache=offset, v_cache=offset)
    else:
        fenced = memory.put_all(given)
    if splits:
        options = {"splits": splits, "put": lambda label, x: memory.put(label, x.fill_(math.nan))}
    run_watched(memory, lambda: puzzle.launch(answer, fenced, **options), answer, expected, far)
    # put by the launch itself
    between = {label: x for label, x in memory.tensors.items() if label not in given}
    stored_once(memory, between | expected)
    got = {out: fenced[out] for out in expected}
    wrong = [
        (out, at) for out, x in expected.items() if (at := first_wrong(x, got[out], within=2e-5))
    ]
    message = named_mistake(given, expected, got, mistakes) if wrong else ""
    if not message and name in ("grouped", "split"):
        loaded_once(memory, given["k_cache"].shape)
    for out, (*row, i) in wrong:
        # the row that a number stands in, eight numbers of it
        part = slice(i // 8 * 8, i // 8 * 8 + 8)
        where = (
            f"{out}[{', '.join([*map(str, row), f'{part.start}:{part.stop}'.removeprefix('0')])}]"
        )
        raise Wrong(
            message or unnamed_mistake(got, memory),
            *(say(x[out][tuple(row)][part]) for x in (expected, got)),
            where,
        )


def run_watched(
    memory: Any,
    launch: Callable[[], object],
    answer: Any,
    expected: Numbers,
    far: bool = False,
    most_steps: int = 100_000,
) -> None:
    """Launch kernels under watch; `Wrong` if they reach outside of a tensor or raise an error.

    Args:
        memory: the fenced tensors.
        launch: launches the reader's kernels on them.
        answer: the reader's kernel, or several by name.
        expected: the right outputs, for the message.
        far: whether page ids were made so large that offsets need 64 bits.
        most_steps: instructions in loops after which the kernels count as endless.
    """
    from pagedlab.lessons.fence import Outside

    try:
        with bounded(most_steps):
            memory.run(launch)
    except Outside as error:
        inside, did = (
            f"elements 0 to {error.size - 1} of {error.name}",
            f"{error.verb}s {error.where}",
        )
        raise Wrong(_reach(error, far), inside, f"program {error.program} {did}") from None
    except Wrong:
        raise
    except (Exception, StillRunning) as error:  # Triton's interpreter wraps what went wrong
        first = "; ".join(
            f"{out}{_index(x.shape, 0)} = {say(x.flatten()[0])}" for out, x in expected.items()
        )
        message = _beginners_mistake(answer, error) or "Your kernel raises an error."
        raise Wrong(message, first, explain(error.__cause__ or error)) from None


def _functions(answer: Any) -> list[Any]:
    """The Python functions of an answer: of each kernel, the function that was decorated."""
    answers = answer.values() if isinstance(answer, dict) else [answer]
    return [getattr(part, "fn", part) for part in answers]


def _decorated(answer: Any) -> None:
    """`Wrong` if a kernel has no `@triton.jit`."""
    kernels = {"answer": answer} if not isinstance(answer, dict) else answer
    for name, kernel in kernels.items():
        if name != "my_splits" and inspect.isfunction(kernel):
            called = kernel.__name__
            message = f"{called} is a plain Python function: write @triton.jit above its def."
            raise Wrong(message, f"{called} is a Triton kernel", f"{called} is a Python function")


def _beginners_mistake(answer: Any, error: BaseException) -> str:
    """A sentence for an error that a PyTorch user meets first; empty for all others."""
    said = str(error.__cause__ or error)
    if "'function' object is not subscriptable" in said:
        return "A kernel is launched that has no @triton.jit above its def."
    if "arange" in said and "constexpr" in said:
        return (
            "tl.arange takes numbers that are known when the kernel is compiled (tl.constexpr).\n"
            "Take a tile of constant size, and a mask for what is too much."
        )
    for function in _functions(answer):
        if name := _indexed_parameter(function):
            return (
                f"{name}[...] indexes a tensor. In a kernel {name} is an address: "
                f"tl.load({name} + i) reads,\ntl.store({name} + i, value) writes."
            )
        if "torch." in _source(function) and isinstance(
            error.__cause__ or error, (NameError, TypeError)
        ):
            return "A kernel calls torch: inside a kernel only Triton's functions work (tl.exp, tl.sum)."
    return ""


def _source(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def _indexed_parameter(function: Any) -> str:
    """The first parameter that a kernel indexes with [...], or an empty string."""
    parameters = set(inspect.signature(function).parameters)
    for node in ast.walk(ast.parse(_source(function))):
        indexed = node.value if isinstance(node, ast.Subscript) else None
        if isinstance(indexed, ast.Name) and indexed.id in parameters:
            return indexed.id
    return ""


def _reach(error: Any, far: bool) -> str:
    """What to say of a load or store outside of a tensor."""
    if far:
        wide = "page ids have to become 64 bits wide before they\nare multiplied."
        return f"The offset of an element does not fit into 32 bits: {wide}"
    if error.name in ("table", "tables"):
        return (
            "It loads outside of the table: position p is in page table[p // SIZE], and a mask "
            "keeps the rest out."
        )
    if error.element < 0:
        return f"It {error.verb}s before the start of {error.name}: look at the address."
    if error.element > 4 * error.size:
        return f"It {error.verb}s far outside of {error.name}: look at the address."
    return f"It {error.verb}s outside of {error.name}: a mask has to keep that out."


def _index(shape: Sequence[int], element: int) -> list[int]:
    from numpy import unravel_index

    return [int(place) for place in unravel_index(element, shape)]


def _programs(accesses: Any) -> defaultdict[int, dict[Any, None]]:
    """The programs that load or store each element, in their order."""
    programs = defaultdict[int, dict[Any, None]](dict)
    for access in accesses:
        for element in access.elements.tolist():
            programs[element][access.program] = None
    return programs


def stored_once(memory: Any, expected: Numbers) -> None:
    """`Wrong` unless each element of the outputs is stored once."""
    for out, numbers in expected.items():
        programs = _programs(memory.stores[out])
        for element, (first, *others) in programs.items():
            if others:
                message = (
                    f"Two programs store the same element of {out}. Each has a share of its own: "
                    "its number says"
                )
                message += "\nwhich one, and a mask keeps it from its neighbour's."
                one = f"one program stores {out}{_index(numbers.shape, element)}"
                raise Wrong(message, one, f"programs {first} and {others[0]} both do")
        for element in range(numbers.numel()):
            if element not in programs:
                every = f"all {numbers.numel()} elements of {out} stored"
                some = f"{len(programs)} are; nobody stores {out}{_index(numbers.shape, element)}"
                raise Wrong(f"Not all of {out} is written.", every, some)


def loaded_once(memory: Any, shape: Sequence[int]) -> None:
    """`Wrong` if several programs load an element of the keys."""
    by = _programs(memory.loads["k_cache"])
    element = max(by, key=lambda element: len(by[element]), default=0)
    if len(by[element]) > 1:
        own = "those of its KV head, and of its split"
        message = f"Several programs load the same keys. Each has some of its own: {own}."
        some = f"{len(by[element])} of them load k_cache{_index(shape, element)}"
        raise Wrong(message, "one program for each element of the keys", some)


def named_mistake(
    given: dict[str, Any], expected: Numbers, got: Numbers, mistakes: Mistakes
) -> str:
    """The mistake that gives just these numbers, if there is one."""
    for message, wrong in mistakes.items():
        numbers = wrong(SimpleNamespace(**given))
        numbers = (
            dict(zip(expected, numbers, strict=True))
            if isinstance(numbers, tuple)
            else {"out": numbers}
        )
        if all(
            got[out].isclose(x, rtol=1e-4, atol=1e-5, equal_nan=True).all()
            for out, x in numbers.items()
        ):
            return message
    return ""


def unnamed_mistake(got: Numbers, memory: Any) -> str:
    """What to say of wrong numbers that no known mistake gives."""
    if not any(x.isnan().any() for x in got.values()):
        return "It computes something else. The first row that differs:"
    for name, loads in memory.loads.items():
        unwritten = memory.unwritten[name].copy()
        for store in memory.stores[name]:
            unwritten[store.elements] = False
        if any(unwritten[load.elements].any() for load in loads):
            return (
                f"NaN comes out: elements of {name} were loaded that nothing has written. 0 x NaN is "
                "NaN, so masking\nthe scores is not enough: the load needs a mask, and other=0.0."
            )
    return (
        "NaN comes out of the arithmetic: no load took in an unwritten element. Look for 0 / 0, for "
        "\n0 x infinity, and for minus infinity taken from itself or used as a weight."
    )
