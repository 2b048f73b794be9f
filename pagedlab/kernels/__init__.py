"""The Triton kernels, each with the function that launches it. pagedlab_fast has further kernels.

This module imports none of them. It says on which devices they run.

runtime      Triton, as a compiler or as an interpreter
attention    paged attention: decode, ragged, merge
plan         the launch plan of a call of attention
cache        writes new KV into its slots
"""

import importlib.util
import os
import sys
from functools import lru_cache

import torch


def choose_interpreter() -> None:
    """Have Triton interpret its kernels if there is no GPU. Nothing changes once it is imported."""
    if "triton" not in sys.modules and not torch.cuda.is_available():
        # NumPy runs the same kernels line by line.
        os.environ.setdefault("TRITON_INTERPRET", "1")


@lru_cache
def why_not(device: torch.device) -> str:
    """Return why Triton does not compile for this device; "" if it does."""
    if device.type != "cuda":
        return "no GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"compute capability {major}.{minor}, and Triton needs 8.0"


def compiles_for(device: torch.device) -> bool:
    """Whether Triton is installed and compiles for this device."""
    return not why_not(device)
