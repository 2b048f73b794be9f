"""The Triton kernels, each with its launch beside it; accelerate/fused.py has its own.

This module says where they run, and imports none of them.

runtime      Triton, as compiler or interpreter
attention    paged attention: decode, ragged, merge; plan, how a call is cut
cache        new KV into its slots, whole blocks into other blocks
sampling     the next token of each row, and the next step's inputs
"""

import importlib.util
from functools import lru_cache

import torch


@lru_cache
def why_not(device: torch.device) -> str:
    """What keeps Triton from compiling for this device, "" if nothing does."""
    if device.type != "cuda":
        return "no GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    has = torch.cuda.get_device_capability(device)
    return "" if has >= (8, 0) else "compute capability {}.{}, and Triton needs 8.0".format(*has)


def compiles_for(device: torch.device) -> bool:
    """Whether Triton is installed and compiles for this device."""
    return not why_not(device)
