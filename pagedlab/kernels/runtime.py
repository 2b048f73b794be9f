"""Triton itself: a compiler where there is a GPU, an interpreter where there is none.

Which of the two is settled when triton is first imported, so every kernel imports it from here.
"""

import contextlib
import os
import sys

import torch

if "triton" not in sys.modules and not torch.cuda.is_available():
    # no GPU: NumPy runs the same kernels, line by line
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl

__all__ = ["INTERPRETED", "on_device_of", "power_of_two", "tl", "triton"]

INTERPRETED: bool = triton.knobs.runtime.interpret

if INTERPRETED is True and [*map(int, triton.__version__.split(".")[:2])] < [3, 7]:
    from triton.runtime import interpreter

    _parts = vars(interpreter)
    _patch = _parts["_patch_lang_tensor"]

    def _with_index(tensor: type[tl.tensor], *scope: object) -> None:
        """It would take an array of one number for a number, which NumPy 2.4 and later refuse."""
        _patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    _parts["_patch_lang_tensor"] = _with_index


def on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """The tensor's GPU as the current one: Triton launches there, wherever the pointers lie."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def power_of_two(n: int) -> int:
    """The least power of two that is n or more.

    Triton's own takes 1.7 us, and most launches ask for one or two.
    """
    return 1 << (n - 1).bit_length()
