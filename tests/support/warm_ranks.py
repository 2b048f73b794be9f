"""Ranks that start in a tenth of a second: copies of a process that has imported torch already."""

from __future__ import annotations

import os
import sys
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from subprocess import PIPE, TimeoutExpired
from typing import IO, Any

from support import interpreter
from support.warm import processes


def start_the_original() -> None:
    """Start the process that is copied, unless it runs."""
    processes()
    forkserver.ensure_running()


def run(command: list[str], environment: dict[str, str], stdin: Any, stderr: Any, new_session: bool) -> None:
    """Be the process of `python -c CODE ARGUMENT ...`."""
    os.environ.clear()
    os.environ.update(environment)
    if new_session:
        os.setsid()
    os.dup2(stdin.detach(), 0)
    os.dup2(stderr.detach(), 2)
    interpreter.spare()
    _, _, code, *arguments = command
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})


class WarmRank:
    """What `pagedlab.recipes.ranks.workers` asks of `subprocess.Popen`."""

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int,
        stderr: IO[bytes],
        env: dict[str, str],
        start_new_session: bool = False,
        **others: Any,
    ) -> None:
        assert stdin == PIPE
        read, write = os.pipe()
        self.stdin = open(write, "wb", buffering=0)  # noqa: SIM115 - open as long as the rank lives
        arguments = (command, env, DupFd(read), DupFd(stderr.fileno()), start_new_session)
        self._process = processes().Process(target=run, args=arguments)
        self._process.start()
        os.close(read)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired("rank", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
