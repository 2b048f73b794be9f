"""Notebook 07 where Triton is not installed: a cell that would run a kernel says so in one line."""

import re

from IPython import get_ipython

SKIPPED = (
    "Skipped: it runs a Triton kernel, and Triton is for Linux. On Windows take WSL, on a Mac "
    "Colab."
)
RUNS_KERNELS = re.compile(r"import triton|\b(watch|written|ladder|load_model|trace_ragged)\b")


def skip_what_runs_kernels() -> None:
    """From the next cell on, skip each cell that names what Triton runs."""

    def skipped(lines: list[str]) -> list[str]:
        return [f"print({SKIPPED!r})\n"] if RUNS_KERNELS.search("".join(lines)) else lines

    shell = get_ipython()
    shell.input_transformers_post.append(skipped)
    print("Triton is not installed here: cells that run a kernel say so and are skipped.")
