"""How ranks start, talk, meet in sums, and end.

    rank 0                          another rank
    start   --engine-->             make the same engine, with its own share of the model
    step    --copies, inputs-->     copy blocks and run, as rank 0 does: all meet in each sum
    end     --kill-->               it also ends by itself, when rank 0 dies of any cause

The sums go over gloo on 127.0.0.1, or over NCCL between GPUs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pagedlab.blocks import BlockCopy

TIMEOUT = 30.0  # seconds that a rank may let the others wait in a step
START_TIMEOUT = 300.0  # seconds to import torch and load the model
PATIENCE = 5.0  # seconds until NCCL's sums have ended
GRACE = 0.5  # seconds from a broken connection to the end of a process
LOCALHOST = "127.0.0.1"
SILENT = "a rank does not answer"
context: Any = multiprocessing.get_context("spawn")  # a process with CUDA cannot be forked


class RankLost(ConnectionError):
    """A rank has ended or does not answer. The engine's next call starts new ones."""


class Ranks:
    """This process and the others that share a model.

    Args:
        rank: number of this process.
        size: number of ranks.
        device: of this rank.
        store: where the ranks meet; None for rank 0, which makes it.

    Attributes:
        engine: makes an engine from a `Ranks`; the other ranks call it.
        others: their processes.
        copies: block copies for the next step.
        graphs: containers of CUDA graphs with sums; the end clears them.
        payload_bytes: summed so far, except in replayed CUDA graphs.
        plan_bytes: sent so far to each other rank.
    """

    def __init__(self, rank: int, size: int, device: str = "cpu", store: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self.engine: Callable[..., Any] | None = None
        self.copies: list[BlockCopy] = []
        self.graphs: list[Any] = []
        self.payload_bytes = 0
        self.plan_bytes = 0
        self.others: list[Any] = []
        self._pipes: list[Connection] = []
        self._store = store
        self._group: Any = None
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    # ------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Rank 0: start the other ranks."""
        listener = socket.create_server((LOCALHOST, 0))
        port = listener.getsockname()[1]
        own: Any = {
            "is_master": True,
            "wait_for_workers": False,
            "master_listen_fd": listener.detach(),
        }
        self._store = dist.TCPStore(LOCALHOST, port, **own)
        threads = max(1, torch.get_num_threads() // self.size)
        # IPython's %reset takes it away, and multiprocessing reads it.
        vars(sys.modules["__main__"]).setdefault("__spec__", None)
        for rank in range(1, self.size):
            pipe, theirs = context.Pipe()
            place = rank, self.size, f"cuda:{rank}" if self.device.type == "cuda" else "cpu"
            arguments = theirs, threads, port, self.engine, place
            process = context.Process(target=follow, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.others.append(process)
            self._pipes.append(pipe)

    def connect(self) -> None:
        """Join the other ranks, once this rank has loaded its share of the model.

        Raises:
            RankLost: If a rank ends meanwhile, or takes too long.
        """
        self.least("ready", 0)
        patience = timedelta(seconds=TIMEOUT)
        if self.device.type == "cpu":
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined] # noqa: SLF001
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOCALHOST)]  # noqa: SLF001
            options._timeout = patience  # noqa: SLF001
            self._group = dist.ProcessGroupGloo(self._store, self.rank, self.size, options)
            return
        # NCCL reads both when it connects.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast
        torch.cuda.set_device(self.device)
        self._group = dist.ProcessGroupNCCL(self._store, self.rank, self.size, patience)  # type: ignore[arg-type]
        self.watch(self._group)
        # NCCL connects at the first sum, and waits for the others without a limit.
        first = threading.Thread(target=self._add_up_zeros, daemon=True)
        first.start()
        self._wait_until(lambda: not first.is_alive(), START_TIMEOUT)
        self.wait()

    def _add_up_zeros(self) -> None:
        torch.cuda.set_device(self.device)
        self.all_reduce(torch.zeros(1, device=self.device))

    def watch(self, group: Any) -> None:
        """Abort NCCL's sums when another rank has ended or this group ends.

        Otherwise a kernel that waits for a rank that has ended would wait without a limit.
        """

        def abort_in_time() -> None:
            while not self._closing.wait(0.2) and not self._ended():
                pass
            group.abort()

        self._closing.clear()
        self._watcher = threading.Thread(target=abort_in_time, daemon=True)
        self._watcher.start()

    def end(self) -> None:
        """End the other ranks, and leave the group. A second call does nothing."""
        for process in self.others:
            process.kill()
            process.join()
        self.others = []
        self._pipes = []
        self.copies = []
        if self._watcher:
            # NCCL's abort first ends the running sums; then it waits until their graphs are gone.
            self._closing.set()
            with suppress(RuntimeError, RankLost):  # the device may have failed
                done = torch.cuda.current_stream(self.device).record_event()
                self._wait_until(done.query, PATIENCE)
            for container in self.graphs:
                container.clear()
            self._watcher.join(PATIENCE)
            self._watcher = None
        self._group = None  # frees its ports
        self._store = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """End the other ranks if the block does not reach its end: they may wait in a sum."""
        is_whole = False
        try:
            yield
            is_whole = True
        finally:
            if not is_whole:
                self.end()

    # ------------------------------------------------------------------ a step

    @contextmanager
    def step(self, inputs: Any) -> Iterator[None]:
        """Rank 0: have the other ranks do what this block does.

        Args:
            inputs: as of `TensorParallelLLM.follow`.

        Raises:
            RankLost: If a rank is gone or silent.
        """
        with self.together():
            if not self.others:
                self.start()
                self.connect()
            message = ForkingPickler.dumps((self.copies, inputs))
            self.copies = []
            self.plan_bytes += len(message)
            try:
                for pipe in self._pipes:
                    pipe.send_bytes(message)
            except OSError:
                self._report_loss()
            yield

    def all_reduce(self, x: Tensor) -> Tensor:
        """Replace x by the sum of every rank's x, and return it."""
        self.payload_bytes += x.numel() * x.element_size()
        self._meet(self._group.allreduce, x, dist.AllreduceOptions())
        return x

    def share(self, x: Tensor) -> None:
        """Replace x by rank 0's x. On a GPU the host does not wait."""
        self._meet(self._group.broadcast, x, dist.BroadcastOptions())

    def _meet(self, collective: Callable[..., Any], x: Tensor, options: Any) -> None:
        # On a GPU it stays on the current stream, so that no other stream has to be waited for.
        options.asyncOp = False
        try:
            work = collective([x], options)
            if work is not None:  # None: it is on the GPU's current stream
                work.wait()
        except RuntimeError:
            self._report_loss()

    def least(self, name: str, number: int) -> int:
        """Return the least of every rank's number of this name, at the start.

        Raises:
            RankLost: If a rank ends meanwhile, or takes too long.
        """
        self._store.set(f"{name} {self.rank}", str(number))
        keys = [f"{name} {rank}" for rank in range(self.size)]
        self._wait_until(lambda: self._store.check(keys), START_TIMEOUT, pause=0.02)
        return min(int(self._store.get(key)) for key in keys)

    # ------------------------------------------------------------------ a rank that is lost

    def wait(self, event: torch.cuda.Event | None = None) -> None:
        """Wait until a GPU has reached the event, or has done all its work.

        Raises:
            RankLost: If a sum is not complete in time. gloo and NCCL limit none in a CUDA graph.
        """
        if self.device.type == "cuda":
            event = event or torch.cuda.current_stream().record_event()
            with self.together():
                self._wait_until(event.query, TIMEOUT)

    def _wait_until(self, is_over: Callable[[], bool], seconds: float, pause: float = 1e-5) -> None:
        """Ask again and again. `RankLost` if a rank ends before it is over, or time is up."""
        deadline = time.monotonic() + seconds
        while True:
            over = is_over()
            lost = self._ended()  # asked last: sums that were aborted are over, too
            if lost:
                raise RankLost(lost)
            if over:
                return
            if time.monotonic() > deadline:
                raise RankLost(SILENT)
            time.sleep(pause)

    def _report_loss(self) -> None:
        """Raise `RankLost`: a connection is broken, and its process ends at once or never."""
        self._wait_until(lambda: False, GRACE)

    def _ended(self) -> str | None:
        """Say which rank has ended first; None if all live."""
        codes = [(process.exitcode, rank) for rank, process in enumerate(self.others, 1)]
        ended = [each for each in codes if each[0] is not None]
        if not ended:
            return None
        code, rank = min(ended)  # those that it made end have the largest code, 2
        return f"rank {rank} has ended (exit code {code})"


# Another rank -------------------------------------------------------------------------------------


def follow(pipe: Connection, num_threads: int, port: int, make_engine: Any, place: Any) -> None:
    """Be a rank other than 0: make an engine, and run what rank 0 runs.

    Args:
        pipe: from rank 0.
        num_threads: of torch.
        port: of rank 0's store.
        make_engine: takes a `Ranks`.
        place: number of this rank, number of ranks, device.
    """
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's, which ends the others
    torch.set_num_threads(num_threads)
    rank, size, device = place
    try:
        llm = make_engine(ranks=Ranks(rank, size, device, dist.TCPStore(LOCALHOST, port)))
        while True:
            llm.follow(*pipe.recv())
    except RankLost:  # the next ranks in the sum learn of it from this one
        os._exit(2)
    except Exception:
        traceback.print_exc()
        os._exit(1)  # not in order: a group that has lost a rank may wait for it


def _end_with_rank_0() -> None:
    """End this process when rank 0 has ended of any cause. The main thread may wait in a sum."""
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(0)
