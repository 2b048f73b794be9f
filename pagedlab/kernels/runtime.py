"""Triton: a compiler if there is a GPU, else an interpreter.

This is decided when triton is first imported, so every kernel imports it from here.
"""

import torch

from pagedlab.kernels import choose_interpreter

choose_interpreter()

import triton  # noqa: E402 - after the choice
import triton.language as tl  # noqa: E402

INTERPRETED: bool = triton.knobs.runtime.interpret
# Triton launches kernels on the current GPU, so a tensor's must be that.
on_device_of = torch.cuda.device_of

_version = [int(part) for part in triton.__version__.split(".")[:2]]

if INTERPRETED is True and _version < [3, 7]:
    from triton.runtime import interpreter

    _parts = vars(interpreter)
    _patch = _parts["_patch_lang_tensor"]

    def _with_index(tensor: type[tl.tensor], *scope: object) -> None:
        """Convert a tensor to an integer; the interpreter's way does not work with NumPy 2.4."""
        _patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    _parts["_patch_lang_tensor"] = _with_index


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is n or more.

    Triton's own function takes 1.7 us, and most launches call it once or twice.
    """
    return 1 << (n - 1).bit_length()
