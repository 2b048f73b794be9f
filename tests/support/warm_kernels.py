"""A plugin of pytest: notebooks get kernels that have imported torch already.

    python -m pytest -p tests.support.warm_kernels tests/test_notebooks.py

Each notebook still has a process and names of its own. But that process is a copy of one that has imported what most
notebooks import: to import it takes longer than most of their cells. Of this package it has imported nothing. In CI,
job `qwen` starts each kernel from nothing.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from jupyter_client.provisioning import local_provisioner

from tests.support.warm import IMPORTED, can_copy, processes

ALSO_IMPORTED = ["matplotlib.pyplot", "anywidget", "ipykernel.kernelapp"]


def pytest_collection_modifyitems(items: list[Any]):
    """Notebooks run first, since they take the longest: processes that share the tests end together then."""
    items.sort(key=lambda item: item.path.name != "test_notebooks.py")


def run(command: list[str], folder: str | None, environment: dict[str, str], has_own_group):
    """Be the kernel that this command starts, in a group of its own: Jupyter sends signals to a kernel's group."""
    os.setsid()
    has_own_group.set()
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    from ipykernel.kernelapp import launch_new_instance

    options = command[command.index("ipykernel_launcher") + 1 :]
    launch_new_instance(argv=options)


class WarmKernel:
    """What Jupyter asks of a kernel's process, as `subprocess.Popen` has it."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], *, cwd: str | None = None, env: dict[str, str], **options):
        has_own_group = processes().Event()
        self._process = processes().Process(target=run, args=(command, cwd, env, has_own_group))
        self._process.start()
        assert has_own_group.wait(60), "no kernel started"
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int):
        os.kill(self.pid, number)

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()


if can_copy():
    if shutil.which("nvidia-smi") is None:  # Triton reads it when it is first imported, and transformers imports it
        os.environ.setdefault("TRITON_INTERPRET", "1")
    processes().set_forkserver_preload([*IMPORTED, *ALSO_IMPORTED])
    local_provisioner.launch_kernel = WarmKernel
