"""One thread that owns the engine, and the coroutines that talk to it.

    coroutine --- function ---> inbox --->  the thread: empties its inbox, runs one step, and again
    coroutine <--- pieces, through the coroutine's own event loop ------'

An `LLM` is not made for two threads at once, so nothing touches it from outside: adding, aborting and looking are
functions put into the inbox, run between two steps. Nobody waits for anybody else's answer: what arrives while
a step runs is part of the next one.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from pagedlab.detokenizer import Detokenizer
from pagedlab.engine import LLM, Prompt
from pagedlab.outputs import Completion, Output
from pagedlab.sampling import SamplingParams

T = TypeVar("T")
Work = Callable[[], None]
Inbox = queue.SimpleQueue[Work | None]  # None: stop
Loop = Callable[[Inbox, Callable[[], bool], Work], None]
_owned: WeakSet[LLM] = WeakSet()  # engines that a thread owns now


class QueueFull(Exception):
    """As many requests wait for their first step as are allowed to."""


class BadPrompt(ValueError):
    """A prompt that the model cannot continue."""


class EngineError(Exception):
    """The engine failed or was stopped while a request was in it. The request is aborted."""


def run_loop(inbox: Inbox, busy: Callable[[], bool], step: Work) -> None:
    """Empty the inbox, run a step, and again, until None comes. With nothing to step, sleep until something comes."""
    while True:
        try:
            while (work := inbox.get(block=not busy())) is not None:
                work()
            return
        except queue.Empty:
            step()


class Piece(NamedTuple):
    """New text of one choice; `finish_reason` comes with its last piece."""

    choice: int
    text: str
    finish_reason: str | None


class Text:
    """One text as it is written, handed out in pieces that need not be taken back."""

    def __init__(self, output: Output, tokenizer: Any) -> None:
        self._output = output
        # The engine keeps a detokenizer for the first text, and for all where there are stop strings.
        self._own = None if output.detokenizer else Detokenizer(tokenizer)
        self._detokenizer = output.detokenizer or self._own
        self._pushed = 0
        self.ended = False

    def take(self) -> tuple[str, str | None]:
        """What is new since the last call, and why the text has ended if it has."""
        reason, detokenizer = self._output.finish_reason, self._detokenizer
        assert detokenizer is not None
        if self._own:
            new = self._output.token_ids[self._pushed :]
            self._pushed += len(new)
            for token_id in new:
                self._own.push(token_id)
            if reason:
                self._own.finish(self._output.text)
        self.ended = reason is not None
        return detokenizer.take(self.ended), reason


class Ticket:
    """What a request was given: iterate over it for its pieces, and `close` it whatever happens.

    There may be several prompts. Text j of prompt i is choice i * n + j. `completions` can be read once the
    iteration is over. Without `stream` no pieces come, only the end.
    """

    def __init__(self, owner: EngineThread, params: SamplingParams, stream: bool) -> None:
        self.params = params
        self.stream = stream
        self.completions: list[Completion] = []
        self.began = perf_counter()
        self.loop = asyncio.get_running_loop()
        self._owner = owner
        self._pieces: asyncio.Queue[list[Piece] | Exception | None] = asyncio.Queue()
        # What follows belongs to the engine's thread.
        self.ids: dict[int, int] = {}  # of the requests that are not finished -> first choice
        self.texts: dict[int, Text] = {}

    async def __aiter__(self) -> AsyncIterator[list[Piece]]:
        while (item := await self._pieces.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def put(self, item: list[Piece] | Exception | None) -> None:
        """Called in the coroutine's event loop."""
        self._pieces.put_nowait(item)

    def close(self) -> None:
        """Abort what is not finished; its blocks are free after the present step. May be called twice."""
        self._owner.post(lambda: self._owner.drop(self))


class EngineThread:
    """Runs `llm` in one thread, between `start` and `stop`.

    max_waiting: requests that may wait for their first step; `QueueFull` for more. observe: called in the thread
    with "begun" after a request's first step and with "ended" after its last. loop: what the thread does.
    """

    def __init__(
        self,
        llm: LLM,
        max_waiting: int = 128,
        observe: Callable[[str, Ticket, Completion], None] | None = None,
        loop: Loop = run_loop,
    ) -> None:
        if max_waiting < 1:
            raise ValueError(f"max_waiting must be at least 1, got {max_waiting}")
        self.max_waiting = max_waiting
        self._llm = llm
        self._observe = observe or (lambda event, ticket, completion: None)
        self._loop = loop
        self._inbox: Inbox = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}  # by request id, of the requests that are not finished
        self._waiting: set[int] = set()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # nothing may be put into the inbox behind the end

    # ------------------------------------------------------------------ called by coroutines

    async def submit(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        stream: bool = False,
        salt: str | None = None,
    ) -> Ticket:
        """Queue all prompts or none. `QueueFull`, or `ValueError` (`BadPrompt`) that says what is wrong."""
        ticket = Ticket(self, params, stream)
        try:
            await self.call(lambda llm: self._add(ticket, prompts, salt))
        except BaseException:
            ticket.close()  # the caller may have gone just when it was added
            raise
        return ticket

    async def call(self, function: Callable[[LLM], T]) -> T:
        """Run `function(llm)` between two steps and return what it returns."""
        done: Future[T] = Future()

        def work() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(function(self._llm))
            except Exception as error:
                done.set_exception(error)

        if not self.post(work):
            raise EngineError("the server is shutting down")
        return await asyncio.wrap_future(done)

    def post(self, work: Work) -> bool:
        """Have `work` run between two steps; it must not raise. False if the thread has ended, and it will not run."""
        with self._lock:
            if self._thread is not None:
                self._inbox.put(work)
            return self._thread is not None

    def start(self) -> None:
        """Start the thread. Until `stop`, the `LLM` is its own; `RuntimeError` if another thread has it."""
        with self._lock:
            if self._thread is None:
                if self._llm in _owned:
                    raise RuntimeError("this LLM is served already: stop that server first, or make another LLM")
                _owned.add(self._llm)
                self._thread = threading.Thread(target=self._run, name="pagedlab-engine", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Abort everything and end the thread; the `LLM` is then the caller's again."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
                thread.join()
                _owned.discard(self._llm)

    # ------------------------------------------------------------------ in the thread

    @property
    def waiting(self) -> int:
        """Requests that no step has touched yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._tickets) - len(self._waiting)

    def _run(self) -> None:
        while True:
            try:
                self._loop(self._inbox, lambda: bool(self._tickets), self._step)
                break
            except Exception as error:  # those who wait hear of it, and the next ones are served
                self._fail(EngineError(f"the engine's loop failed: {type(error).__name__}: {error}"))
        self._fail(EngineError("the server is shutting down"))

    def _add(self, ticket: Ticket, prompts: Sequence[Prompt], salt: str | None) -> None:
        if len(prompts) > self.max_waiting:
            raise ValueError(
                f"{len(prompts)} prompts in one request, and the queue holds {self.max_waiting}: send fewer"
            )
        if len(self._waiting) + len(prompts) > self.max_waiting:
            raise QueueFull(
                f"the queue is full, {len(self._waiting)} of {self.max_waiting} places are taken: try again soon"
            )
        llm = self._llm
        checked = []
        for i, prompt in enumerate(prompts):
            try:
                checked.append(llm.model.checked_ids(prompt))
            except Exception as error:  # a chat template may raise anything, and it is about this prompt alone
                raise BadPrompt(f"prompt {i}: {error}" if len(prompts) > 1 else str(error)) from None
        try:
            for i, ids in enumerate(checked):
                request_id = llm.add(ids, ticket.params, stream=ticket.stream, salt=salt)
                ticket.ids[request_id] = i * ticket.params.n
                self._tickets[request_id] = ticket
                self._waiting.add(request_id)
        except ValueError:
            self.drop(ticket)
            raise

    def drop(self, ticket: Ticket) -> None:
        """Abort what is left of a ticket."""
        for request_id in list(ticket.ids):
            self._forget(request_id)
            self._llm.abort(request_id)

    def _forget(self, request_id: int) -> None:
        del self._tickets[request_id].ids[request_id]
        del self._tickets[request_id]
        self._waiting.discard(request_id)

    def _step(self) -> None:
        try:
            touched = self._llm.step()
            if not touched:
                raise RuntimeError(f"the engine has nothing to do, and {len(self._tickets)} requests are not finished")
        except Exception as error:
            self._fail(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
            return
        items: list[tuple[Ticket, list[Piece] | None]] = []
        for completion in touched:
            ticket = self._tickets.get(completion.request_id)
            if ticket is None:
                continue  # added by somebody else, before this thread took over
            if completion.request_id in self._waiting:
                self._waiting.discard(completion.request_id)
                self._observe("begun", ticket, completion)
            if ticket.stream and (pieces := self._read(ticket, completion)):
                items.append((ticket, pieces))
            if completion.finished:
                self._observe("ended", ticket, completion)
                ticket.completions.append(completion)
                self._forget(completion.request_id)
                if not ticket.ids:
                    ticket.completions.sort(key=lambda done: done.request_id)
                    items.append((ticket, None))
        self._send(items)

    def _read(self, ticket: Ticket, completion: Completion) -> list[Piece]:
        first, pieces = ticket.ids[completion.request_id], []
        for index, output in enumerate(completion.outputs, first):
            if index not in ticket.texts:
                ticket.texts[index] = Text(output, self._llm.model.tokenizer)
            if not ticket.texts[index].ended:
                piece, reason = ticket.texts[index].take()
                if piece or reason:
                    pieces.append(Piece(index, piece, reason))
        return pieces

    def _fail(self, error: EngineError) -> None:
        tickets = list(dict.fromkeys(self._tickets.values()))
        for ticket in tickets:
            self.drop(ticket)
        self._send([(ticket, error) for ticket in tickets])

    def _send(self, items: Sequence[tuple[Ticket, list[Piece] | Exception | None]]) -> None:
        """One wake-up for each event loop, however many clients it serves."""
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Any]]] = defaultdict(list)
        for ticket, item in items:
            loops[ticket.loop].append((ticket, item))
        for loop, batch in loops.items():
            try:
                loop.call_soon_threadsafe(_put_all, batch)
            except RuntimeError:  # the loop is closed, and nobody is left to read
                for ticket, _ in batch:
                    self.drop(ticket)


def _put_all(batch: list[tuple[Ticket, Any]]) -> None:
    for ticket, item in batch:
        ticket.put(item)
