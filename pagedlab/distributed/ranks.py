"""Several processes that run one model: how they start, find each other, talk, and notice that one
is gone.

Rank 0 is the process that made the engine; the others are its children, or all of them were started
by torchrun. They meet in a `Store` of torch.distributed, for children a file in a folder that only
this user can open. What travels is flat tensors of numbers, over gloo bound to 127.0.0.1, or over
NCCL between GPUs: no Python object.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pagedlab.interrupts import deferred_interrupts

SECONDS = 30.0  # how long a rank that is alive may leave the others waiting
START_SECONDS = 300.0  # to import torch and load the model
PATIENCE = 5.0  # seconds to end in order
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
# who says so: the other end is gone or silent
NETWORK = re.compile("gloo|nccl|connection|timed out", re.IGNORECASE)


class Verb(IntEnum):
    """What rank 0 asks of the others. The integers that follow are named in `shared.serve`."""

    STOP, RUN, FOLLOW, PLAY, NEW_CACHE, FIT, COPY, SWAP_OUT, SWAP_IN, FORGET = range(10)
    SHOW_BATCH, SHOW_BLOCKS, POISON = range(10, 13)


class RankLost(ConnectionError):
    """A rank ended or no longer answers.

    The other ranks have been stopped; a new engine starts new ones.
    """


def reached(event: torch.cuda.Event, seconds: float) -> bool:
    """Whether the device comes to the event within so many seconds."""
    deadline = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-5)
    return True


class Ranks:
    """This process among `size` that share a model, and the collectives between them.

    replayed, plan_bytes rank 0 told.

    Args:
        kind: "cpu", or "cuda", GPU number `rank`. Bytes so far: payload_bytes `all_reduce` summed,
            but for graphs that are
    """

    def __init__(self, rank: int, size: int, kind: str, children: Children | None = None) -> None:
        self.rank, self.size, self.children = rank, size, children
        self.device = torch.device(f"cuda:{rank}" if kind == "cuda" else "cpu")
        self.payload_bytes = self.plan_bytes = 0
        self.lost: str | None = None  # why these ranks can no longer work
        self._control: Any = None
        self._data: Any = None
        self._seconds = SECONDS
        self._graphs: dict[Any, Any] = {}
        self._sum, self._share = dist.AllreduceOptions(), dist.BroadcastOptions()
        self._sum.asyncOp = self._share.asyncOp = (
            False  # on a GPU's current stream: no other to wait for
        )

    def connect(self, store: Any, seconds: float) -> None:
        """Join the others.

        Each calls this once it has its part of the model, since nobody waits long from now on: an
        answer may take `seconds`. `RankLost` if a child ends before it is here, or somebody takes
        too long.
        """
        store.add("ready", 1)
        deadline = time.monotonic() + START_SECONDS
        while int(store.get("ready")) < self.size:
            said = self.children.obituary() if self.children else None
            if said or time.monotonic() > deadline:
                raise RankLost(
                    said or f"after {START_SECONDS:.0f} s not every rank has loaded the model"
                )
            time.sleep(0.02)
        self._seconds, patience = seconds, timedelta(seconds=seconds)
        # only the constructor reads it, and empty is as good as none
        before = os.environ.get("GLOO_SOCKET_IFNAME", "")
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK  # whatever the host is called
        try:
            self._control = self._data = dist.ProcessGroupGloo(
                store, self.rank, self.size, patience
            )
        finally:
            os.environ["GLOO_SOCKET_IFNAME"] = before
        if self.device.type == "cuda":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)  # read at the first sum
            torch.cuda.set_device(self.device)
            store = dist.PrefixStore("data", store)
            self._data = dist.ProcessGroupNCCL(store, self.rank, self.size, patience)  # type: ignore[arg-type]
            if self.children:
                threading.Thread(
                    target=self._watch, args=(self.children.processes, self._data), daemon=True
                ).start()

    def _watch(self, children: list[Popen[bytes]], data: Any) -> None:
        """Once a child has ended, break off the sums: a kernel that waits for a dead rank would
        wait for ever.
        """
        while all(child.poll() is None for child in children):
            time.sleep(0.2)
        if not self.lost:
            data.abort()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Replace x by the sum of every rank's x, and return it."""
        self.payload_bytes += x.numel() * x.element_size()
        if work := self._data.allreduce([x], self._sum):
            work.wait()
        return x

    def share(self, x: torch.Tensor) -> None:
        """Replace x by rank 0's x; on a GPU the host does not wait."""
        if work := self._data.broadcast([x], self._share):
            work.wait()

    def tell(self, verb: int, numbers: torch.Tensor) -> None:
        """Rank 0: send a verb and its numbers, int64 [n] on the CPU, to all others."""
        self.plan_bytes += 8 * (2 + len(numbers))
        self._control.broadcast(torch.tensor([verb, len(numbers)]), 0).wait()
        self._control.broadcast(numbers, 0).wait()

    def listen(self) -> tuple[int, torch.Tensor]:
        """The others: wait for the next verb and its numbers."""
        head, patiently = torch.empty(2, dtype=torch.int64), dist.BroadcastOptions()
        # between two requests a rank waits as long as it takes
        patiently.timeout = timedelta(days=365)
        self._control.broadcast([head], patiently).wait()
        verb, length = head.tolist()
        numbers = torch.empty(length, dtype=torch.int64)
        self._control.broadcast(numbers, 0).wait()
        return verb, numbers

    def collect(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's x, flat and on the CPU. All have one length and one dtype."""
        own = x.detach().cpu().flatten()
        everybody = [torch.empty_like(own) for _ in range(self.size)]
        self._control.allgather(
            [[other.view(torch.uint8) for other in everybody]], [own.view(torch.uint8)]
        ).wait()
        return everybody

    def call(
        self,
        verb: int,
        numbers: torch.Tensor | Sequence[int] = (),
        work: Callable[[], Any] | None = None,
        wait: bool = True,
    ) -> Any:
        """Rank 0: tell the others, do one's own part of the work, and wait for its end.

        If it fails on the way, the ranks are out of step and all are stopped. `RankLost` if that
        was so before.
        """
        if self.lost:
            raise RankLost(self.lost)
        try:
            self.tell(verb, torch.as_tensor(numbers, dtype=torch.int64))
            result = work() if work else None
        except BaseException as error:
            self.fail(error)
        if wait:  # else a sum that was broken off would pass for a result
            self.wait()
        return result

    def follow(self, *numbers: int) -> None:
        """Rank 0: have the others ready to `play`, within these limits."""
        self.call(Verb.FOLLOW, numbers)

    def play(self, steps: Sequence[int], work: Callable[[], Any]) -> None:
        """Rank 0: have all ranks launch these steps, `work` here, and wait for none of them."""
        self.call(Verb.PLAY, steps, work, wait=False)

    def wait(self, done: torch.cuda.Event | None = None) -> None:
        """Rank 0: until the device has come to `done`, or is done with all.

        `RankLost` if sums cannot be complete.
        """
        try:
            if self.device.type == "cuda":
                done = done or torch.cuda.current_stream().record_event()
            if done and not reached(
                done, self._seconds
            ):  # a sum within a graph has no limit of its own
                raise RuntimeError(
                    f"timed out: the sums are not complete after {self._seconds:.0f} s"
                )
            if self.children and self.children.obituary():
                raise RuntimeError("a rank has ended")  # and NCCL's sums were broken off
        except BaseException as error:
            self.fail(error)

    def hold(self, graphs: dict[Any, Any]) -> None:
        """Know the graphs that sums are part of, in place of earlier ones: NCCL's group can end
        only after they did.
        """
        self._graphs.clear()
        self._graphs = graphs

    def fail(self, error: BaseException) -> NoReturn:
        """Stop all ranks: `RankLost` if one of them is gone or silent, else the error that rank 0
        had itself.
        """
        with deferred_interrupts():
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        if isinstance(error, RankLost):
            raise error
        said = None
        if isinstance(error, Exception):  # an interrupt stays an interrupt
            said = self.children.obituary(grace=0.5) if self.children else None
            if not said and isinstance(error, RuntimeError) and NETWORK.search(str(error)):
                reason = str(error).splitlines()[0].rpartition("] ")[2][:200]
                said = f"a rank does not answer, or its connection is gone ({reason})"
        self.lost = (
            f"{said or f'a step failed half-way ({error!r})'}. The other ranks are stopped: make a "
            "new LLM"
        )
        self.end(patience=0)
        if said is None:
            raise error
        raise RankLost(self.lost) from error

    def stop(self, verb: int) -> None:
        """Rank 0: tell the others to end, and see that they do. Again is harmless."""
        if self.lost is None:
            self.lost = "the ranks of this engine are closed: make a new LLM"
            with suppress(RuntimeError):
                self.tell(verb, torch.empty(0, dtype=torch.int64))
        self.end()

    def end(self, patience: float = PATIENCE) -> None:
        """Stop the children, and leave NCCL's group: its destructor can wait for ever for ranks
        that have ended.
        """
        if self.children:
            self.children.stop(patience)
        group, self._data = self._data, None
        if group is not None and self.device.type == "cuda":
            # ends sums at once, itself with the graphs
            breaking = threading.Thread(target=group.abort, daemon=True)
            with suppress(RuntimeError):  # Python 3.12 starts none while it ends
                breaking.start()
            with suppress(RuntimeError):  # what was launched still uses the group's memory
                reached(torch.cuda.current_stream(self.device).record_event(), PATIENCE)
            self.hold({})
            if breaking.ident:
                breaking.join(PATIENCE)
            else:
                group.abort()


class Children:
    """Ranks 1 to size - 1 as child processes of rank 0.

    Each runs `serve_child`, and ends itself when the pipe that is its standard input closes: rank 0
    stops, or dies of whatever cause.
    """

    def __init__(self, size: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pagedlab-ranks-"))  # made with mode 700
        path = str(self.folder / "store")
        self.store = dist.FileStore(path, size)
        home = str(Path(__file__).parents[2])  # it need not be installed
        code = (
            f"import sys; sys.path.insert(0, {home!r}); from pagedlab.distributed import "
            "serve_child; serve_child()"
        )
        env = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // size))} | os.environ
        stdin, pipe = os.pipe()
        self._pipe = os.fdopen(pipe, "wb")
        self.processes: list[Popen[bytes]] = []
        for rank in range(1, size):
            words = [sys.executable, "-c", code, str(rank), str(size), path]
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                # A session of its own: Ctrl-C is for rank 0 alone, which says what becomes of the
                # others.
                child = Popen(
                    words, stdin=stdin, stdout=DEVNULL, stderr=log, env=env, start_new_session=True
                )
            self.processes.append(child)
        os.close(stdin)

    def obituary(self, grace: float = 0.0) -> str | None:
        """Which child has ended, how, and its last words; None while all live, and for `grace`
        seconds more, since a connection breaks a moment before the process that held it is gone.
        """
        deadline = time.monotonic() + grace
        while True:
            for rank, process in enumerate(self.processes, 1):
                if process.poll() is not None:
                    log = self.folder / f"rank{rank}.log"
                    lines = (
                        log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                    )
                    words = f": {lines[-1][:300]}" if lines else ""
                    return f"rank {rank} has ended (exit code {process.returncode}){words}"
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)

    def stop(self, patience: float = PATIENCE) -> None:
        """Let the children end, kill who has not after `patience` seconds, and leave nothing
        behind.
        """
        self._pipe.close()
        deadline = time.monotonic() + patience
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
