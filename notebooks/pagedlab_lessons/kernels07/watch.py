"""Watch the loads and stores of a kernel, while Triton's interpreter runs it.

Each of the kernel's tensors has a margin, so an access outside of it is noticed.

    memory = Memory()
    given = memory.put_all(given)               # the same numbers, watched
    memory.run(lambda: kernel[grid](*given.values()))
    memory.accesses["load", "k"]                # program by program, element by element

In the interpreter, addresses are those of tensors on the CPU, so an address tells its element, and
one that is no tensor's stops the kernel first. Where kernels are compiled, what is `interpreted`
runs in a process of its own, and kernels travel there as source (`source_of`).

    loads_in_puzzle    by a reader's kernel, in a puzzle's example
    loads_of_rungs     by each rung of the ladder
    trace_ragged       by the library's kernel: prompts and new tokens in one launch
"""

import inspect
import linecache
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import wraps
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from pagedlab.kernels.attention import triton_attention
from pagedlab.kernels.runtime import INTERPRETED
from pagedlab_lessons.kernels07 import ladder
from pagedlab_lessons.kernels07.puzzles import (
    BATCH,
    PUZZLES,
    Access,
    Given,
    Loads,
    Program,
    pages_of,
)

_Result = TypeVar("_Result")
MARGIN = 4096  # elements on either side of a tensor
WORKSHOP = "workshop"  # the module of kernels that are defined from text


@dataclass(eq=False)
class Outside(BaseException):
    """A kernel loads or stores outside of a tensor.

    It is no `Exception`: the interpreter would wrap it.

    Args:
        verb: "load" or "store".
        name: of the nearest tensor.
        size: of the nearest tensor.
        element: that would be loaded or stored.
        program: that does it.
    """

    verb: str
    name: str
    size: int
    element: int
    program: Program

    def __str__(self) -> str:
        return f"program {self.program} {self.verb}s {self.where} of {self.name}"

    @property
    def where(self) -> str:
        is_near = abs(self.element) < 1 << 20
        return f"element {self.element}" if is_near else "an address far away"


class Memory(TorchFunctionMode):
    """Tensors of a launch. An access to other memory stops the kernel.

    New tensors are watched too. Floats of `torch.empty` and its kin are NaN, so that an element
    without a store is seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: Iterator[str] = iter(())  # of the first new tensors
        # by "load" or "store", and the name of the tensor
        self.accesses: defaultdict[tuple[str, str], list[Access]] = defaultdict(list)
        self.tensors: dict[str, torch.Tensor] = {}
        # of each tensor, element by element: whether nothing has written it
        self.unwritten: dict[str, np.ndarray] = {}
        self.empty_load = ""  # a tensor of which such an element was loaded
        self._far: dict[str, int] = {}  # elements that a tensor seems to be further

    def put(self, name: str, tensor: torch.Tensor, far: int = 0) -> torch.Tensor:
        """Return a copy on the CPU with the same strides, and with a margin on both sides.

        Args:
            name: of the tensor.
            tensor: to copy; floats that are NaN count as not written.
            far: accesses that many elements further count as accesses to the tensor too.
        """
        last = sum(
            (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        arena = tensor.new_zeros(last + 1 + 2 * MARGIN, device="cpu")
        inside = arena[MARGIN:-MARGIN]
        own = inside.as_strided(tensor.shape, tensor.stride())
        self.tensors[name], self._far[name] = own.copy_(tensor), far
        self.unwritten[name] = inside.isnan().numpy()
        return own

    def put_all(self, given: Given, **far: int) -> Given:
        """The arguments of a kernel, tensors put here."""
        return {
            n: self.put(n, x, far.get(n, 0)) if isinstance(x, torch.Tensor) else x
            for n, x in given.items()
        }

    def run(self, launch: Callable[[], object]) -> None:
        """Call `launch`, which launches kernels in the interpreter."""
        from triton.runtime.interpreter import interpreter_builder as builder

        load, store = builder.create_masked_load, builder.create_masked_store

        def near(verb: str, pointers: Any, mask: Any) -> Any:
            """Note what is loaded or stored; return pointers into the tensors that are here."""
            addresses = np.asarray(pointers.data).astype(np.int64)
            is_touched = np.broadcast_to(mask.data, addresses.shape)
            if not is_touched.any():
                return pointers
            program = tuple(int(i) for i in builder.grid_idx)
            name = self._nearest(int(addresses[is_touched][0]))
            tensor, unwritten = self.tensors[name], self.unwritten[name]
            offsets = self._offsets(name, addresses)
            elements = offsets[is_touched]
            is_wrong = (elements < 0) | (elements >= len(unwritten))
            if is_wrong.any():
                raise Outside(verb, name, len(unwritten), int(elements[is_wrong][0]), program)
            if verb == "store":
                unwritten[elements] = False
            elif unwritten[elements].any():
                self.empty_load = self.empty_load or name
            earlier = self.accesses[verb, name]
            step = sum(access.program == program for access in earlier)
            earlier.append(Access(program, step, elements))
            found = tensor.data_ptr() + offsets * tensor.element_size()
            return type(pointers)(found.astype(np.uint64), pointers.dtype)

        def noted_load(pointers: Any, mask: Any, *rest: Any) -> Any:
            return load(near("load", pointers, mask), mask, *rest)

        def noted_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            return store(near("store", pointers, mask), value, mask, *rest)

        # On the instance, in front of the methods; accesses without a mask come this way too.
        with (
            self,
            np.errstate(all="ignore"),  # infinities and NaN are the kernel's business
            patch.object(builder, "create_masked_load", noted_load),
            patch.object(builder, "create_masked_store", noted_store),
        ):
            launch()

    def _offsets(self, name: str, addresses: Any) -> Any:
        """Return the element at each address, what is far away brought near."""
        tensor, far = self.tensors[name], self._far[name]
        offsets = (addresses - tensor.data_ptr()) // tensor.element_size()
        return np.where(offsets < far // 2, offsets, offsets - far)

    def _nearest(self, address: int) -> str:
        """Return the tensor that an address is in, or next to."""

        def distance(name: str) -> int:
            offset = int(self._offsets(name, address))
            last = len(self.unwritten[name]) - 1
            return max(-offset, offset - last, 0) * self.tensors[name].element_size()

        return min(self.tensors, key=distance)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and watch the tensor that it makes."""
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not isinstance(made, torch.Tensor) or not made.numel():
            return made
        storages = {x.untyped_storage().data_ptr() for x in self.tensors.values()}
        if made.untyped_storage().data_ptr() in storages:
            return made  # a view of a watched tensor, or the tensor itself
        if "empty" in name and made.is_floating_point():
            made.fill_(torch.nan)
        label = next(self.names, f"tensor {len(storages)} (torch.{name})")
        return self.put(label, made)


# Kernels as text ----------------------------------------------------------------------------------


def define(source: str) -> dict[str, Any]:
    """Run source text that defines kernels, and return its names.

    Triton finds the text as it would in a file.
    """
    names = {"__name__": WORKSHOP}
    file = f"<{WORKSHOP} {len(linecache.cache)}>"
    text = f"import triton\nimport triton.language as tl\n{source}"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), names)  # noqa: S102 - the reader's own kernel, or ours
    return names


def source_of(kernel: Any) -> str:
    """The source of a kernel or function, with that of the kernels and the numbers that it uses by
    name.
    """
    parts = {}

    def add(item: Any) -> None:
        function = getattr(item, "fn", item)
        parts[function.__name__] = textwrap.dedent(inspect.getsource(function))
        for name in function.__code__.co_names:
            used = function.__globals__.get(name)
            used = getattr(used, "fn", getattr(used, "value", used))  # of a kernel, of a constexpr
            if name in parts:
                continue
            if inspect.ismodule(used):
                parts[name] = f"import {used.__name__} as {name}"
            elif isinstance(used, (bool, int, float)):
                parts[name] = f"{name} = tl.constexpr({used!r})"
            elif inspect.isfunction(used) and used.__module__ not in ("__main__", WORKSHOP):
                parts[name] = f"from {used.__module__} import {used.__name__} as {name}"
            elif inspect.isfunction(used):
                add(used)

    add(kernel)
    return "\n".join(parts.values())


# Where Triton is interpreted ----------------------------------------------------------------------


class _Text(NamedTuple):
    name: str
    source: str


def _packed(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _packed(value) for key, value in item.items()}
    return _Text(getattr(item, "fn", item).__name__, source_of(item)) if callable(item) else item


def _unpacked(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _unpacked(value) for key, value in item.items()}
    return define(item.source)[item.name] if isinstance(item, _Text) else item


def interpreted(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Run a function with Triton interpreted: where it compiles here, in a process of its own."""

    @wraps(function)
    def run(*args: Any, **named: Any) -> _Result:
        if INTERPRETED:
            return function(*args, **named)
        given = inspect.signature(function).bind(*args, **named)
        # not run again there
        alone = patch.multiple(sys.modules["__main__"], create=True, __file__=None, __spec__=None)
        with (
            patch.dict(os.environ, TRITON_INTERPRET="1"),
            alone,
            ProcessPoolExecutor(1, get_context("spawn")) as child,
        ):
            return child.submit(_called, run, _packed(given.arguments)).result()

    return run


def _called(run: Callable[..., _Result], given: Given) -> _Result:
    return run(**_unpacked(given))


# What kernels load --------------------------------------------------------------------------------


def _watched(launch: Callable[..., object], given: Given) -> Loads:
    """Run a kernel on these arguments, and watch it."""
    memory = Memory()
    given = memory.put_all(given)
    stopped = ""
    try:
        memory.run(lambda: launch(*given.values()))
    except Outside as error:
        stopped = f"Stopped: {error}."
    except Exception as error:  # from the reader's kernel
        stopped = f"Stopped: {error.__cause__ or error}"
    loads = {name: found for (verb, name), found in memory.accesses.items() if verb == "load"}
    return Loads(given, loads, stopped)


@interpreted
def loads_in_puzzle(name: str, answer: Any) -> Loads:
    """Run a kernel, or the parts of puzzle 7, on a puzzle's example."""
    puzzle = PUZZLES[name]
    given = puzzle.given()
    return _watched(lambda *x: puzzle.launch(answer, dict(zip(given, x, strict=True))), given)


@interpreted
def loads_of_rungs(lengths: Sequence[int], own: Any = None) -> dict[str, Loads]:
    """Run each rung, "rung 1, one page at a time", and a reader's kernel as "yours".

    Args:
        lengths: of sequences that each get a new token.
        own: the reader's kernel of puzzle 5, 6, 7 or 8.
    """
    four_splits = ladder.SPLIT | {"my_splits": lambda *_: 4}
    kernels = {"yours": ladder.decoder(own, tile=32)} if own else {}
    kernels |= ladder.RUNGS
    kernels["rung 8, splits and their merge"] = ladder.decoder(four_splits, tile=32)
    given = PUZZLES["decode"].given(lengths=lengths, size=16)
    batch = {name: given[name] for name in BATCH}
    return {name: _watched(run, batch) for name, run in kernels.items()}


@interpreted
def trace_ragged(lengths: Sequence[int], queries: Sequence[int]) -> Loads:
    """One launch of the library's kernel for sequences of these lengths, the last `queries[b]`
    tokens of each new.
    """
    pairs = [*zip(queries, lengths, strict=True)]
    if not all(0 < new <= length for new, length in pairs):
        raise ValueError(f"each sequence has 1 to all of its tokens new: {queries} of {lengths}")
    k, v, tables = pages_of(list(lengths), 16, 2, 16)
    tensors = torch.zeros(sum(queries), 4, 16), k, v, tables, torch.tensor(lengths).int()
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    given = {**dict(zip(BATCH, tensors, strict=True)), "query_starts": starts}
    return _watched(triton_attention, given)
