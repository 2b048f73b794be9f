"""What this machine can do for the series, in a few lines that a notebook shows first."""

import os
import platform
from importlib.metadata import distributions

import torch


def describe() -> str:
    """Python, GPU, Triton and libraries: one fact a line, and what follows from it for the
    notebooks.
    """
    versions = {distribution.name: distribution.version for distribution in distributions()}
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    if gpu:
        card = (
            f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute capability "
            f"{gpu.major}.{gpu.minor}"
        )
    else:
        card = "none: everything runs on the CPU, and GPU figures are shown as measured elsewhere"
    if "triton" not in versions:
        triton = "not installed: the kernels of notebook 07 can be read, not run"
    elif gpu and gpu.major >= 8:
        triton = f"{versions['triton']}, compiled for this GPU"
    else:
        triton = (
            f"{versions['triton']}, in its interpreter on the CPU (slow, but line by line the same "
            "program)"
        )
    used = ("torch", "transformers", "jupyterlab", "anywidget")
    libraries = ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in used)
    python = f"{platform.python_version()} on {platform.system()}, {os.cpu_count()} cores"
    rows = {"Python": python, "GPU": card, "Triton": triton, "libraries": libraries}
    return "\n".join(f"{name:<10} {fact}" for name, fact in rows.items())
