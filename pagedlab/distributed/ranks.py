"""Several processes that run one model: how they start, find each other, talk, and notice that one is gone.

Rank 0 is the process that made the engine; the others are its children, or all of them were started by torchrun.
They meet in a `Store` of torch.distributed, for children a file in a folder that only this user can open. What
travels is flat tensors of numbers, over gloo bound to 127.0.0.1, or over NCCL between GPUs: no Python object.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

LOOPBACK = "127.0.0.1"
SECONDS = 30.0  # how long a rank that is alive may leave the others waiting
START_SECONDS = 300.0  # to import torch and load the model
_FOREVER = timedelta(days=365)  # between two requests a rank waits as long as it takes


class RankLost(ConnectionError):
    """A rank ended or no longer answers. The other ranks have been stopped; a new engine starts new ones."""


class Ranks:
    """This process among `size` that share a model, and the collectives between them.

    payload_bytes: of the tensors summed by `all_reduce` so far. plan_bytes: of what rank 0 told the others.
    """

    def __init__(self, rank: int, size: int, device: torch.device, children: Children | None = None) -> None:
        self.rank, self.size, self.device, self.children = rank, size, device, children
        self.payload_bytes = self.plan_bytes = 0
        self.lost: str | None = None  # why these ranks can no longer work
        self._data: Any = None

    def connect(self, store: Any) -> None:
        """Join the others. Each calls this once it has its part of the model, since nobody waits long from now on."""
        patience = timedelta(seconds=SECONDS)
        # Rank 0 speaks first; for the others the next word may be hours away.
        idle = patience if self.rank == 0 else _FOREVER
        self._control = _gloo(dist.PrefixStore("control", store), self.rank, self.size, idle)
        self._data = _group(dist.PrefixStore("data", store), self.rank, self.size, patience, self.device)
        if self.children and self.device.type == "cuda":
            self.children.on_death(self._data.abort)  # a kernel that waits for a dead rank would wait for ever

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Replace x by the sum of every rank's x, and return it."""
        self.payload_bytes += x.numel() * x.element_size()
        self._data.allreduce(x).wait()
        return x

    def tell(self, verb: int, numbers: torch.Tensor) -> None:
        """Rank 0: send a verb and its numbers, int64 [n] on the CPU, to all others."""
        self.plan_bytes += 8 * (2 + len(numbers))
        self._control.broadcast(torch.tensor([verb, len(numbers)]), 0).wait()
        if len(numbers):
            self._control.broadcast(numbers, 0).wait()

    def listen(self) -> tuple[int, torch.Tensor]:
        """The others: wait for the next verb and its numbers."""
        head = torch.empty(2, dtype=torch.int64)
        self._control.broadcast(head, 0).wait()
        verb, length = head.tolist()
        numbers = torch.empty(length, dtype=torch.int64)
        if length:
            self._control.broadcast(numbers, 0).wait()
        return verb, numbers

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        x = torch.tensor([number])
        self._control.allreduce(x, dist.ReduceOp.MIN).wait()
        return int(x)

    def collect(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's x, flat and on the CPU. All have one length and one dtype."""
        own = x.detach().cpu().flatten()
        everybody = [torch.empty_like(own) for _ in range(self.size)]
        self._control.allgather([[other.view(torch.uint8) for other in everybody]], [own.view(torch.uint8)]).wait()
        return everybody

    def call(self, verb: int, numbers: torch.Tensor | Sequence[int] = (), work: Callable[[], Any] | None = None) -> Any:
        """Rank 0: tell the others, and do one's own part of the work.

        If it fails on the way, the ranks are out of step: all are stopped. `RankLost` if that was so before.
        """
        if self.lost:
            raise RankLost(self.lost)
        try:
            self.tell(verb, torch.as_tensor(numbers, dtype=torch.int64))
            result = work() if work else None
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # else a sum that was broken off would pass for a result
            if self.children and self.children.someone_died:
                raise RuntimeError("NCCL was stopped, since a rank has ended")
            return result
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> NoReturn:
        """Stop all ranks: `RankLost` if one of them is gone or silent, else the error that rank 0 had itself."""
        said = self.children.obituary(grace=0.5) if self.children else None
        silent = isinstance(error, RuntimeError) and any(word in str(error) for word in _NETWORK_WORDS)
        if said is None and silent:
            reason = str(error).splitlines()[0].rpartition("] ")[2][:200]
            said = f"a rank does not answer, or its connection is gone ({reason})"
        self.lost = f"{said or f'a step failed half-way ({error!r})'}. The other ranks are stopped: make a new LLM"
        if self.children:
            self.children.stop(patience=0)
        self.disconnect()
        if said is None:
            raise error
        raise RankLost(self.lost) from error

    def stop(self, verb: int) -> None:
        """Rank 0: tell the others to end, and see that they do. Again is harmless."""
        if self.lost is None:
            self.lost = "the ranks of this engine are closed: make a new LLM"
            with suppress(RuntimeError):
                self.tell(verb, torch.empty(0, dtype=torch.int64))
        if self.children:
            self.children.stop()
        self.disconnect()

    def disconnect(self) -> None:
        """Leave NCCL's group. To leave that to its destructor can wait for ever for ranks that have ended."""
        group, self._data = self._data, None
        if group is not None and self.device.type == "cuda":
            group.abort()


# What gloo says when the other end is gone or silent.
_NETWORK_WORDS = ("gloo", "Gloo", "Connection", "NCCL", "Timed out", "timed out")


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A gloo group that listens on the loopback interface only, whatever the host is called."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    os.environ["GLOO_SOCKET_IFNAME"] = names[0]
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _group(store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> Any:
    if device.type != "cuda":
        return _gloo(store, rank, size, timeout)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(device)
    return dist.ProcessGroupNCCL(store, rank, size, timeout)  # type: ignore[arg-type]  # its other constructor


# Child processes --------------------------------------------------------------------------------------------------


class Children:
    """Ranks 1 to size - 1 as child processes of rank 0.

    Each runs `entry`, "module:function", with `options` and its rank, as JSON on its standard input. That pipe
    stays open: when it closes, because rank 0 stops or dies of whatever cause, the child ends itself.
    """

    def __init__(self, entry: str, size: int, options: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pagedlab-ranks-"))  # made with mode 700
        self.store = dist.FileStore(str(self.folder / "store"), size)
        self._stopping = self.someone_died = False
        module, function = entry.split(":")
        code = f"from {module} import {function}; {function}()"
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        env = os.environ | {"PYTHONPATH": path}
        env.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // size)))
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, size):
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, env=env
                )
            self.processes.append(process)
            line = options | {"rank": rank, "size": size, "store": str(self.folder / "store"), "seconds": SECONDS}
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # a child that is dead already is found below
                process.stdin.write(json.dumps(line).encode() + b"\n")
                process.stdin.flush()

    def obituary(self, grace: float = 0.0) -> str | None:
        """Which child has ended, how, and its last words; None while all live, and for `grace` seconds more.

        A connection breaks a moment before the process that held it is gone: then a little grace is needed.
        """
        deadline = time.monotonic() + grace
        while all(process.poll() is None for process in self.processes):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)
        for rank, process in enumerate(self.processes, 1):
            if process.poll() is not None:
                log = self.folder / f"rank{rank}.log"
                lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                words = f": {lines[-1][:300]}" if lines else ""
                return f"rank {rank} has ended (exit code {process.returncode}){words}"
        return None

    def on_death(self, callback: Callable[[], Any]) -> None:
        """Call `callback` once, from a thread, when a child ends that was not stopped."""

        def watch() -> None:
            while not self._stopping and all(process.poll() is None for process in self.processes):
                time.sleep(0.2)
            if not self._stopping:
                self.someone_died = True
                callback()

        threading.Thread(target=watch, daemon=True).start()

    def stop(self, patience: float = 5.0) -> None:
        """Let the children end, kill who has not after `patience` seconds, and leave nothing behind."""
        self._stopping = True
        for process in self.processes:
            if process.stdin and not process.stdin.closed:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        deadline = time.monotonic() + patience
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def child_options() -> dict[str, Any]:
    """In a child: its options. From now on the process ends when rank 0 closes the pipe."""
    global SECONDS
    options = json.loads(sys.stdin.buffer.readline() or b"null")
    if options is None:
        raise SystemExit("rank 0 ended before it said what to do")
    SECONDS = options["seconds"]

    def watch() -> None:
        os.read(0, 1)  # not through sys.stdin, whose lock a thread must not hold when Python ends
        shutil.rmtree(Path(options["store"]).parent, ignore_errors=True)
        os._exit(0)  # the main thread may be inside a collective that nobody will finish

    threading.Thread(target=watch, daemon=True).start()
    return options


def wait_until_ready(store: Any, size: int, children: Children | None) -> None:
    """Until every other rank has set its key in the store; `RankLost` if a child ends before that."""
    deadline = time.monotonic() + START_SECONDS
    while not store.check([f"ready{rank}" for rank in range(1, size)]):
        said = children.obituary() if children else None
        if said is None and time.monotonic() > deadline:
            said = f"after {START_SECONDS:.0f} s not every rank has loaded the model"
        if said:
            raise RankLost(said)
        time.sleep(0.02)
