"""Watch the loads and stores of a kernel, while Triton's interpreter runs it.

Each of the kernel's tensors has a margin, so an access outside of it is noticed.

    memory = Memory()
    given = memory.put_all(given)               # the same numbers, fenced
    memory.run(lambda: kernel[grid](*given.values()))
    memory.loads["k"], memory.stores["out"]     # program by program, element by element

In the interpreter, addresses are those of tensors on the CPU, so an address tells its element, and
one that is no tensor's stops the kernel before it reads or writes. Compiled kernels keep their
addresses to themselves: where there is a GPU, `tracer.interpreted` does this in a process of its
own, and kernels travel there as source (`source_of`).
"""

import inspect
import linecache
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from pagedlab.kernels.runtime import INTERPRETED

MARGIN = 4096  # elements on either side of a tensor
Program = tuple[int, ...]


class Access(NamedTuple):
    """One `tl.load` or `tl.store`.

    `elements` are flat indices into the tensor, masked ones left out.
    """

    program: Program
    step: int  # index of this load (or store) of the tensor within the program
    elements: np.ndarray


class Cut(NamedTuple):
    """An offset that has lost its upper bits.

    Args:
        name: of the tensor.
        element: indices of the one that was meant.
        meant: its offset in the tensor.
        got: what 32 bits keep of the offset.
    """

    name: str
    element: tuple[int, ...]
    meant: int
    got: int


@dataclass(eq=False)
class Outside(BaseException):
    """A kernel loads or stores outside of a tensor.

    It is no `Exception`: the interpreter would wrap it.

    Args:
        verb: "load" or "store".
        name: of the nearest tensor.
        size: of the tensor.
        element: that would be loaded or stored.
        program: that does it.
        cut: the offset that has lost its upper bits, if there is one.
    """

    verb: str
    name: str
    size: int
    element: int
    program: Program
    cut: Cut | None = None

    def __str__(self) -> str:
        return f"program {self.program} {self.verb}s {self.where} of {self.name}"

    @property
    def where(self) -> str:
        return f"element {self.element}" if abs(self.element) < 1 << 20 else "an address far away"


class Memory:
    """Tensors of a launch.

    Args:
        strict: stop the kernel at an access to other memory; otherwise let it pass.
    """

    def __init__(self, strict: bool = True) -> None:
        self.loads: defaultdict[str, list[Access]] = defaultdict(list)
        self.stores: defaultdict[str, list[Access]] = defaultdict(list)
        self.tensors: dict[str, torch.Tensor] = {}
        # of each tensor, flat: which elements held NaN when it was put here
        self.unwritten: dict[str, np.ndarray] = {}
        self._far: dict[str, int] = {}  # bytes that a tensor seems to be further
        self._strict = strict

    def put(self, name: str, tensor: torch.Tensor, far: int = 0) -> torch.Tensor:
        """Return a copy on the CPU with a margin on both sides.

        Args:
            name: of the tensor.
            tensor: to copy.
            far: accesses that many elements further count as accesses to the tensor too.
        """
        arena = tensor.new_zeros(tensor.numel() + 2 * MARGIN, device="cpu")
        own = arena[MARGIN : MARGIN + tensor.numel()].view(tensor.shape)
        self.tensors[name], self._far[name] = own.copy_(tensor), far * tensor.element_size()
        self.unwritten[name] = own.isnan().flatten().numpy()
        return own

    def put_all(self, given: dict[str, Any], **far: int) -> dict[str, Any]:
        """The arguments of a kernel, tensors put here."""
        return {
            n: self.put(n, x, far.get(n, 0)) if isinstance(x, torch.Tensor) else x
            for n, x in given.items()
        }

    def run(self, launch: Callable[[], object]) -> None:
        """Call `launch`, which launches kernels in the interpreter.

        `ValueError` where Triton compiles.
        """
        if not INTERPRETED:
            raise ValueError(
                "compiled kernels cannot be watched: set TRITON_INTERPRET=1 before Python starts"
            )
        from triton.runtime.interpreter import interpreter_builder as builder

        load, store = builder.create_masked_load, builder.create_masked_store
        steps: Counter[tuple[str, str, Program]] = Counter()

        def note(verb: str, pointers: Any, mask: Any) -> Any:
            """Pointers with what is far away brought near; what each element is goes on record."""
            flags = np.broadcast_to(np.atleast_1d(mask.data), np.atleast_1d(pointers.data).shape)
            addresses = np.atleast_1d(pointers.data)[flags].astype(np.int64)
            if not len(addresses):
                return pointers
            program = tuple(int(i) for i in builder.grid_idx)
            name = min(self.tensors, key=lambda name: self._distance(name, int(addresses[0])))
            tensor = self.tensors[name]
            start, far = tensor.data_ptr(), self._far[name]

            def near(addresses: Any) -> Any:
                return np.where(addresses - start < far // 2, addresses, addresses - far)

            elements = (near(addresses) - start) // tensor.element_size()
            is_wrong = (elements < 0) | (elements >= tensor.numel())
            if is_wrong.any():
                if self._strict:
                    element = int(elements[is_wrong][0])
                    cut = self._cut(int(addresses[is_wrong][0]))
                    raise Outside(verb, name, tensor.numel(), element, program, cut)
                return pointers
            kept = self.loads if verb == "load" else self.stores
            kept[name].append(Access(program, steps[verb, name, program], elements))
            steps[verb, name, program] += 1
            return type(pointers)(
                near(np.asarray(pointers.data).astype(np.int64)).astype(np.uint64), pointers.dtype
            )

        def noted_load(pointers: Any, mask: Any, *rest: Any) -> Any:
            return load(note("load", pointers, mask), mask, *rest)

        def noted_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            return store(note("store", pointers, mask), value, mask, *rest)

        # On the instance, in front of the methods; accesses without a mask come this way too.
        with (
            np.errstate(all="ignore"),  # infinities and NaN are the kernel's business
            patch.object(builder, "create_masked_load", noted_load),
            patch.object(builder, "create_masked_store", noted_store),
        ):
            launch()

    def _cut(self, address: int) -> Cut | None:
        """Return the element of a far tensor whose offset, without its upper bits, gives this."""
        for name, far in self._far.items():
            tensor = self.tensors[name]
            got = (address - tensor.data_ptr()) // tensor.element_size()
            first = far // tensor.element_size()
            element = (got - first) % (1 << 32)
            if far and element < tensor.numel():
                page, rest = divmod(first + element, tensor[0].numel())
                inside = (int(place) for place in np.unravel_index(rest, tensor.shape[1:]))
                return Cut(name, (page, *inside), first + element, got)
        return None

    def _distance(self, name: str, address: int) -> int:
        tensor, far = self.tensors[name], self._far[name]
        size = tensor.numel() * tensor.element_size()
        starts = {tensor.data_ptr(), tensor.data_ptr() + far}
        return min(max(start - address, address - start - size + 1, 0) for start in starts)


class Allocations(TorchFunctionMode):
    """While this is active, new tensors are fenced too: `with Allocations(memory): launch()`.

    Floats of `torch.empty` and its kin are NaN, so that an element without a store is seen.

    Args:
        memory: fences the tensors.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and fence the tensor that it makes."""
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not isinstance(made, torch.Tensor) or not made.numel():
            return made
        storages = {x.untyped_storage().data_ptr() for x in self.memory.tensors.values()}
        if made.untyped_storage().data_ptr() in storages:
            return made  # a view of a fenced tensor, or the tensor itself
        if "empty" in name and made.is_floating_point():
            made.fill_(torch.nan)
        return self.memory.put(f"tensor {len(storages)} (torch.{name})", made)


# Kernels as text ----------------------------------------------------------------------------------

_NUMBERS = count()


def define(source: str) -> dict[str, Any]:
    """Run source text that defines kernels, and return its names.

    Triton finds the text as it would in a file.
    """
    names: dict[str, Any] = {"__name__": "workshop"}
    file = f"<workshop {next(_NUMBERS)}>"
    text = f"import triton\nimport triton.language as tl\n{source}"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), names)  # noqa: S102 - the reader's own kernel, or ours
    return names


def source_of(kernel: Any) -> str:
    """The source of a kernel or function, with that of the kernels and the numbers that it uses by
    name.
    """
    parts: dict[str, str] = {}

    def add(item: Any) -> None:
        function = getattr(item, "fn", item)
        parts[function.__name__] = textwrap.dedent(inspect.getsource(function))
        for name in function.__code__.co_names:
            used = function.__globals__.get(name)
            used = getattr(used, "value", used)  # of a constexpr
            function_of: Any = getattr(used, "fn", used)
            module = function_of.__module__ if inspect.isfunction(function_of) else ""
            if name in parts:
                continue
            if inspect.ismodule(used):
                parts[name] = f"import {used.__name__} as {name}"
            elif module.startswith("pagedlab."):
                parts[name] = f"from {module} import {function_of.__name__} as {name}"
            elif module and not module.startswith("triton."):
                add(used)
            elif isinstance(used, (bool, int, float)):
                parts[name] = f"{name} = tl.constexpr({used!r})"

    add(kernel)
    return "\n".join(parts.values())
