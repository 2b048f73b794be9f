"""Kernels that are compiled side by side: what is left behind if that fails or is interrupted. Nothing is."""

import threading

import pytest
import torch

pytest.importorskip("triton")

from concurrent.futures import ThreadPoolExecutor

from triton.runtime import _async_compile

from pagedlab.kernels.runtime import triton
from pagedlab_fast.parallel_compile import compile_in_parallel


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("in_a_thread", [False, True])
def test_after_a_failure_kernels_run_and_compile_as_before(error, in_a_thread):
    run = triton.JITFunction.run

    def fail():
        raise error("as asked for")

    def launches():
        assert triton.JITFunction.run is not run
        if not in_a_thread:
            fail()
        _async_compile.active_mode.get().submit("a kernel", fail, lambda kernel: None)

    with pytest.raises(error, match="as asked for"):
        compile_in_parallel(launches)
    assert triton.JITFunction.run is run
    with ThreadPoolExecutor(1) as threads, triton.AsyncCompileMode(threads):
        pass  # it would say that another is active


def test_kernels_are_compiled_and_loaded_where_they_were_asked_for(monkeypatch):
    told, loaded, gpu = [], [], threading.local()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: setattr(gpu, "number", number))

    class Kernel:
        @property
        def run(self):
            assert gpu.number == 3
            loaded.append(self)

    kernels = [Kernel() for _ in range(5)]

    def launches():
        for i, kernel in enumerate([*kernels, *kernels]):
            _async_compile.active_mode.get().submit(i % 5, lambda kernel=kernel: kernel, told.append)

    compile_in_parallel(launches)
    assert sorted(map(id, told)) == sorted(map(id, loaded)) == sorted(map(id, kernels))
