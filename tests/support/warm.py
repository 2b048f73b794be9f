"""Processes and kernels that have imported torch and transformers already: it takes longer than many tests."""

import multiprocessing
import os
import sys
import tempfile
import time
from functools import cache

from ipykernel.kernelapp import launch_new_instance
from jupyter_client.provisioning import local_provisioner

IMPORTED = [
    "torch",
    "transformers.generation.utils",
    "transformers.models.qwen2.modeling_qwen2",
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "fastapi",
]


def pytest_configure():
    """As pytest's plugin: the kernels of nbmake are such processes."""
    local_provisioner.launch_kernel = Kernel


@cache
def processes():
    """Each process is a copy of one that has imported these, and nothing of this package.

    Where the system cannot copy a process, each imports for itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


class Kernel(multiprocessing.context.ForkServerProcess):
    """A notebook's kernel that is such a process, with what `jupyter_client` asks of a Popen."""

    stdin = stdout = stderr = None

    def __init__(self, command, env, cwd=None, **_):
        super().__init__(target=run_kernel, args=(command, env, cwd), daemon=True)
        processes()
        self.start()
        while os.getpgid(self.pid) != self.pid:  # signals go to its group: this must no longer be ours
            time.sleep(0.01)

    def poll(self):
        return self.exitcode

    def wait(self):
        self.join()


def enter(folder):
    """Leave pytest's folders but for those that a notebook finds when it is not tested."""
    os.chdir(folder)
    sys.path[:] = ["", *(place for place in sys.path if not place.endswith(("tests", "tools", "benchmarks")))]


def run(code, folder):
    """Run this code in such a process, in this folder. Raises an AssertionError if it fails or writes to stderr."""
    with tempfile.NamedTemporaryFile() as said:
        process = processes().Process(target=run_code, args=(code, folder, said.name))
        process.start()
        process.join()
        assert (process.exitcode, said.read()) == (0, b"")


def run_code(code, folder, said):
    """What the new process does."""
    os.dup2(os.open(said, os.O_WRONLY), 2)
    enter(folder)
    exec(code, {})


def run_kernel(command, env, cwd):
    """Be the kernel that this command starts, in a session of its own."""
    os.setsid()
    multiprocessing.current_process()._config["daemon"] = False  # so that it may have processes of its own
    os.environ.update(env)
    enter(cwd or ".")
    launch_new_instance(command[command.index("-f") :])
