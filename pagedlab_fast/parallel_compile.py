"""Compile many Triton kernels in parallel. One after another, they take most of a first start.

Triton compiles a kernel when it is launched for the first time, and the launch waits for it. Here
kernels are compiled in threads, and none runs:

- `JITFunction.run(..., warmup=True)` compiles what a launch needs, and launches nothing;
- `AsyncCompileMode` passes each of these compilations to an executor, and does not wait;
- a compiled kernel is loaded onto the GPU when its `run` is read.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import torch

from pagedlab.kernels.runtime import triton


def compile_in_parallel(launch_all: Callable[[], None]) -> None:
    """Compile and load all kernels that `launch_all` launches. None of them runs."""
    # AsyncCompileMode sets a context variable, and an error or an interrupt leaves it set. In a
    # copy of the context it is gone afterwards, whatever happened.
    copy_context().run(_compile_in_threads, launch_all)


def _compile_in_threads(launch_all: Callable[[], None]) -> None:
    with _threads() as threads:
        with triton.AsyncCompileMode(threads) as mode, _compiling_only():
            launch_all()
        list(threads.map(_load, mode.future_kernels.values()))


def _threads() -> ThreadPoolExecutor:
    """A thread for each processor, all on the GPU that is current here."""
    # each thread has a current GPU of its own, and begins with 0
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else -1
    return ThreadPoolExecutor(os.cpu_count(), initializer=torch.cuda.set_device, initargs=(gpu,))


@contextmanager
def _compiling_only() -> Iterator[None]:
    """Meanwhile, what launches a kernel compiles it instead."""
    run = triton.JITFunction.run

    def compile_only(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return run(kernel, *args, warmup=True, **options)

    triton.JITFunction.run = compile_only
    try:
        yield
    finally:
        triton.JITFunction.run = run


def _load(kernel: Any) -> None:
    """Load a compiled kernel. Triton 3.6 also compiles what launches it then."""
    _ = kernel.result().run
