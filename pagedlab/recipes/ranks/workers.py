"""The processes of ranks 1 to size - 1, which rank 0 starts, watches and ends.

A worker's standard input is a pipe from rank 0. Rank 0 writes one byte into it when it stops; the
pipe closes without a byte when rank 0 dies of any cause. Either way the worker ends itself. Its
standard error goes into a file without a name, so that rank 0 can report the last line.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO

import torch
import torch.distributed as dist

STOP = b"."  # what rank 0 tells a worker that is to end
PATIENCE = 5.0  # seconds that a worker has to end in order
HOME = str(Path(__file__).parents[2])  # pagedlab need not be installed
CODE = f"""
import sys
sys.path.insert(0, {HOME!r})
from pagedlab.recipes.ranks import serve_worker
serve_worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""


class Workers:
    """Ranks 1 to size - 1 as child processes of rank 0.

    Args:
        size: number of ranks, rank 0 included.
    """

    def __init__(self, size: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pagedlab-ranks-"))  # only this user can open it
        path = str(self.folder / "store")
        self.store = dist.FileStore(path, size)
        self.processes: list[Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        environment = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // size))}
        environment.update(os.environ)
        for rank in range(1, size):
            log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker lives
            process = Popen(
                [sys.executable, "-c", CODE, str(rank), str(size), path],
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches rank 0 alone, which ends the workers
            )
            self.processes.append(process)
            self._logs.append(log)

    def exit_report(self, grace: float = 0.0) -> str | None:
        """Return which worker has ended, its exit code and its last line; None if all live.

        Args:
            grace: seconds to wait for an end. A connection breaks just before its process ends.
        """
        deadline = time.monotonic() + grace
        while True:
            for rank, process in enumerate(self.processes, start=1):
                if process.poll() is not None:
                    report = f"rank {rank} has ended (exit code {process.returncode})"
                    last_line = self._last_line(rank)
                    return f"{report}: {last_line}" if last_line else report
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)

    def _last_line(self, rank: int) -> str:
        log = self._logs[rank - 1]
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def stop(self, patience: float = PATIENCE) -> None:
        """End all workers. A second call does nothing.

        Args:
            patience: seconds until a worker that still runs is killed.
        """
        for process in self.processes:
            assert process.stdin is not None
            with suppress(OSError, ValueError):  # it has ended, or it was told before
                process.stdin.write(STOP)
                process.stdin.close()
        deadline = time.monotonic() + patience
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutExpired:
                process.kill()
                process.wait()

    def remove_folder(self) -> None:
        """Remove the store's folder, once nothing of this process uses the store.

        NCCL's group has a thread that asks the store once a second. While the file is missing, the
        store waits for it, for five minutes; and the group's end waits for that thread.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
