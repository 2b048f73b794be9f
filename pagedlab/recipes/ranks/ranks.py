"""How ranks talk: the commands of rank 0, the sums of all, and what happens if one is gone.

The ranks meet in a `Store` of torch.distributed. After that, flat tensors of numbers travel between
them, and no Python object: over gloo on 127.0.0.1, or over NCCL between GPUs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pagedlab.recipes.ranks.commands import Command, Follow, Play, Stop, pack, unpack
from pagedlab.recipes.ranks.workers import PATIENCE, Workers

TIMEOUT = 30.0  # seconds that a running rank may let the others wait
START_TIMEOUT = 300.0  # seconds to import torch and load the model
LOCALHOST = "127.0.0.1"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class RankLost(ConnectionError):
    """A rank has ended or no longer answers. The other ranks are stopped: make a new engine."""


def reached(event: torch.cuda.Event, seconds: float) -> bool:
    """Return whether the device reaches the event within that many seconds."""
    deadline = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-5)
    return True


def finish(collective: Callable[..., Any], *arguments: Any) -> None:
    """Launch a collective and wait for it. `RankLost` if another rank is gone or silent."""
    try:
        work = collective(*arguments)
        if work is not None:  # None: it is on the GPU's current stream
            work.wait()
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition("] ")[2][:200]
        raise RankLost(f"a rank does not answer, or its connection is gone ({reason})") from error


class Ranks:
    """This process and the other ranks that share a model.

    Bytes so far: `payload_bytes` went through `all_reduce`, except in replayed CUDA graphs;
    `plan_bytes` are the commands of rank 0.

    Args:
        rank: number of this process.
        size: number of ranks.
        kind: "cpu", or "cuda" for GPU number `rank`.
        workers: the other ranks, if rank 0 started them.
    """

    def __init__(self, rank: int, size: int, kind: str, workers: Workers | None = None) -> None:
        self.rank = rank
        self.size = size
        self.workers = workers
        self.device = torch.device(f"cuda:{rank}" if kind == "cuda" else "cpu")
        self.payload_bytes = 0
        self.plan_bytes = 0
        self.lost: str | None = None  # why these ranks can no longer work
        self._control: Any = None  # the group for commands, on the CPU
        self._data: Any = None  # the group for sums, on the device
        self._timeout = TIMEOUT
        self._graphs: dict[Any, Any] = {}
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        # On a GPU these stay on the current stream, so that no other stream has to be waited for.
        self._sum_options = dist.AllreduceOptions()
        self._sum_options.asyncOp = False
        self._share_options = dist.BroadcastOptions()
        self._share_options.asyncOp = False

    def connect(self, store: Any, timeout: float) -> None:
        """Join the other ranks, once this rank's share of the model is loaded.

        Args:
            store: where the ranks meet.
            timeout: seconds that a rank may let the others wait from now on.

        Raises:
            RankLost: If a worker ends before it is ready, or a rank takes too long.
        """
        store.add("ready", 1)
        deadline = time.monotonic() + START_TIMEOUT
        while int(store.get("ready")) < self.size:
            report = self._exit_report()
            if report is None and time.monotonic() > deadline:
                report = f"after {START_TIMEOUT:.0f} s not every rank has loaded the model"
            if report:
                raise RankLost(report)
            time.sleep(0.02)
        self._timeout = timeout
        patience = timedelta(seconds=timeout)
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined] # noqa: SLF001
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOCALHOST)]  # noqa: SLF001
        options._timeout = patience  # noqa: SLF001
        self._control = dist.ProcessGroupGloo(store, self.rank, self.size, options)
        self._data = self._control
        if self.device.type == "cuda":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)  # NCCL reads it at the first sum
            torch.cuda.set_device(self.device)
            store = dist.PrefixStore("data", store)
            self._data = dist.ProcessGroupNCCL(store, self.rank, self.size, patience)  # type: ignore[arg-type]
            self._start_watcher()
            self._connect_nccl(deadline)

    def _connect_nccl(self, deadline: float) -> None:
        """Add up one number, at which NCCL connects the ranks. It waits for them without a limit.

        So another thread does it, and this one gives up if a worker ends or takes too long.
        """
        errors: list[Exception] = []

        def add_up() -> None:
            try:
                torch.cuda.set_device(self.device)
                number = torch.zeros(1, device=self.device)
                finish(self._data.allreduce, [number], self._sum_options)
                torch.cuda.synchronize(self.device)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=add_up, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.02)
            report = self._exit_report()
            if report is None and time.monotonic() > deadline:
                report = f"after {START_TIMEOUT:.0f} s NCCL has not connected the ranks"
            if report:
                raise RankLost(report)
        if errors:
            raise errors[0]

    def _start_watcher(self) -> None:
        self._watcher = threading.Thread(target=self._watch, args=(self._data,), daemon=True)
        self._watcher.start()

    def _watch(self, data: Any) -> None:
        """Abort NCCL's sums when a worker has ended or these ranks close.

        Otherwise a kernel that waits for a rank that has ended would wait without a limit.
        """
        while not self._closing.wait(0.2):
            if self._exit_report():
                break
        data.abort()

    def _exit_report(self, grace: float = 0.0) -> str | None:
        return self.workers.exit_report(grace) if self.workers else None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Replace x by the sum of every rank's x, and return it."""
        self.payload_bytes += x.numel() * x.element_size()
        finish(self._data.allreduce, [x], self._sum_options)
        return x

    def share(self, x: torch.Tensor) -> None:
        """Replace x by rank 0's x. On a GPU the host does not wait."""
        finish(self._data.broadcast, [x], self._share_options)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's x, flat and on the CPU. All have one length and one dtype."""
        own = x.detach().cpu().flatten()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        as_bytes = [part.view(torch.uint8) for part in parts]
        finish(self._control.allgather, [as_bytes], [own.view(torch.uint8)])
        return parts

    def broadcast(self, command: Command) -> None:
        """Rank 0: send a command to all other ranks."""
        numbers = pack(command)
        self.plan_bytes += 8 * (1 + len(numbers))
        finish(self._control.broadcast, torch.tensor([len(numbers)]), 0)
        finish(self._control.broadcast, numbers, 0)

    def receive(self) -> Command:
        """The other ranks: wait for the next command, however long rank 0 has nothing to do."""
        length = torch.empty(1, dtype=torch.int64)
        options = dist.BroadcastOptions()
        options.timeout = timedelta(days=365)
        finish(self._control.broadcast, [length], options)
        numbers = torch.empty(int(length), dtype=torch.int64)
        finish(self._control.broadcast, numbers, 0)
        return unpack(numbers, self.device)

    def call(
        self, command: Command, work: Callable[[], Any] | None = None, wait: bool = True
    ) -> Any:
        """Rank 0: have all ranks obey a command, and return what `work` returns.

        Args:
            command: for the other ranks.
            work: rank 0's own part.
            wait: wait until the device has finished.

        Raises:
            RankLost: If a rank is gone or silent, now or before. All ranks are stopped.
        """
        if self.lost:
            raise RankLost(self.lost)
        try:
            self.broadcast(command)
            result = work() if work else None
        except BaseException as error:
            self._fail(error)
        if wait:  # an aborted sum must not pass for a result
            self.wait()
        return result

    def follow(self, *limits: int) -> None:
        """Rank 0: have the other ranks ready to `play` within these limits."""
        self.call(Follow(list(limits)))

    def play(self, steps: Sequence[int], work: Callable[[], Any]) -> None:
        """Rank 0: have all ranks launch these steps, and wait for none of them."""
        self.call(Play(list(steps)), work, wait=False)

    def wait(self, done: torch.cuda.Event | None = None) -> None:
        """Rank 0: wait until the device has reached `done`, or has finished all its work.

        Raises:
            RankLost: If sums cannot be complete.
        """
        try:
            if self.lost:
                raise RankLost(self.lost)
            if done is None and self.device.type == "cuda":
                done = torch.cuda.current_stream().record_event()
            # gloo and NCCL limit no sum in a CUDA graph.
            if done is not None and not reached(done, self._timeout):
                late = f"timed out: the sums are not complete after {self._timeout:.0f} s"
                raise RankLost(f"a rank does not answer ({late})")
            report = self._exit_report()
            if report:  # and the watcher has aborted the sums
                raise RankLost(report)
        except BaseException as error:
            self._fail(error)

    def hold(self, graphs: dict[Any, Any]) -> None:
        """Remember the CUDA graphs that contain sums, and free those of the call before.

        NCCL's group can end only after them.
        """
        self._graphs.clear()
        self._graphs = graphs

    def _fail(self, error: BaseException) -> NoReturn:
        """Stop all ranks, because they are out of step, and raise the error or `RankLost`."""
        if self.lost:
            raise error
        report = None
        if isinstance(error, Exception):  # an interrupt stays an interrupt
            report = self._exit_report(grace=0.5)
            if report is None and isinstance(error, RankLost):
                report = str(error)
        reason = report or f"a step failed half-way ({error!r})"
        self.lost = f"{reason}. The other ranks are stopped: make a new LLM"
        self.shutdown(patience=0)
        if report:
            raise RankLost(self.lost) from error
        raise error

    def close(self) -> None:
        """Rank 0: end all ranks in order. A second call does nothing."""
        if self.lost is None:
            self.lost = "the ranks of this engine are closed: make a new LLM"
            with suppress(RankLost):  # it has stopped already
                self.broadcast(Stop())
        self.shutdown()

    def shutdown(self, patience: float = PATIENCE) -> None:
        """End the workers, leave the groups, and remove what they met in.

        Args:
            patience: seconds until a worker that still runs is killed.
        """
        if self.workers:
            self.workers.stop(patience)
        if self._watcher:
            # NCCL's abort first ends the running sums; then it waits until their graphs are gone.
            self._closing.set()
            with suppress(RuntimeError):  # the device may have failed
                reached(torch.cuda.current_stream(self.device).record_event(), PATIENCE)
            self.hold({})
            self._watcher.join(PATIENCE)
        self._control = None  # frees its ports
        self._data = None
        if self.workers:
            self.workers.remove_folder()  # the groups' store is in it
