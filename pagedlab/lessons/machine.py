"""What this machine can do for the series, in a few lines that a notebook shows first."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def describe() -> str:
    """Python, GPU, Triton and libraries: one fact a line, and what follows from it for the notebooks."""
    import torch

    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        capability = f"{gpu.major}.{gpu.minor}"
        card = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute capability {capability}"
    else:
        gpu, card = None, "none: everything runs on the CPU, and GPU figures are shown as measured elsewhere"
    if find_spec("triton") is None:
        triton = "not installed: the kernels of notebook 07 can be read, not run"
    elif gpu and gpu.major >= 8:
        triton = f"{version('triton')}, compiled for this GPU"
    else:
        triton = f"{version('triton')}, in its interpreter on the CPU (slow, but line by line the same program)"
    libraries = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "jupyterlab", "anywidget"))
    rows = {
        "Python": f"{platform.python_version()} on {platform.system()}, {os.cpu_count()} cores",
        "GPU": card,
        "Triton": triton,
        "libraries": libraries,
    }
    return "\n".join(f"{name:<10} {fact}" for name, fact in rows.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
