"""Kernels compiled side by side: one after the other they are most of a first start's time."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import torch

from pagedlab.kernels.runtime import triton


def compile_together(launches: Callable[[], None]) -> None:
    """Compile and load what kernels `launches` would launch, as many at once as there are
    processors; none runs.
    """
    launch = triton.JITFunction.run

    def only_compile(kernel: Any, *args: Any, warmup: bool, **how: Any) -> Any:
        return launch(kernel, *args, warmup=True, **how)

    # each thread has its own, and begins at 0
    here = torch.cuda.current_device() if torch.cuda.is_available() else -1

    def work() -> None:
        with ThreadPoolExecutor(
            os.cpu_count(), initializer=torch.cuda.set_device, initargs=(here,)
        ) as threads:
            with triton.AsyncCompileMode(threads) as mode:
                triton.JITFunction.run = only_compile
                try:
                    launches()
                finally:
                    triton.JITFunction.run = launch
            # Asked for what launches it, a kernel is loaded, and Triton 3.6 compiles that too.
            list(threads.map(lambda kernel: kernel.result().run, mode.future_kernels.values()))

    copy_context().run(work)  # or the mode would stay on after an error or an interrupt
