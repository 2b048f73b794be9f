"""One thread that owns the engine, and the coroutines that talk to it.

    coroutine --- function ---> inbox --->  the thread: empties its inbox, runs one step, and again
    coroutine <--- pieces, through the coroutine's own event loop ------'

An `LLM` is not made for two threads at once, so nothing touches it from outside: adding, aborting
and looking are functions put into the inbox, run between two steps. Nobody waits for anybody else's
answer: what arrives while a step runs is part of the next one. What takes long and needs no engine,
a text's tokens, is made before, elsewhere.
"""

from __future__ import annotations

import asyncio
import gc
import queue
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from pagedlab.llm import LLM, Prompt
from pagedlab.outputs import Completion, Output
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.serving.openai_api import ApiError
from pagedlab.serving.prompts import Encoder
from pagedlab.validation import integer

T = TypeVar("T")
Work = Callable[[], None]
Inbox = queue.SimpleQueue[Work | None]  # None: stop
Loop = Callable[[Inbox, Callable[[], bool], Work], None]
IDLE = 1.0  # seconds
# steps in a window at most; with 8, first tokens came later from 60 requests a second on
STREAMED_STEPS = 5
# seconds that a thread keeps the interpreter from others; 0.005, the default, are steps of a GPU
SWITCH = 0.0005
# again when the last engine has stopped
USUAL, COLLECT = (
    sys.getswitchinterval(),
    gc.get_threshold(),
)
_owned: WeakSet[LLM] = WeakSet()  # engines that a thread owns now


class EngineError(ApiError):
    """The engine failed or was stopped while a request was in it. The request is aborted."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, type="server_error", code="engine_error")


def run_loop(inbox: Inbox, busy: Callable[[], bool], step: Work) -> None:
    """Empty the inbox, run a step, and again, until None comes.

    With nothing to step, sleep until something comes.
    """
    tidy = False
    while True:
        try:
            # A sleep that lasts is the time to look for garbage: among all cached blocks that takes
            # long.
            while (work := inbox.get(block=not busy(), timeout=None if tidy else IDLE)) is not None:
                work()
            return
        except queue.Empty:
            if tidy := not busy():
                gc.collect()
            else:
                step()


class Piece(NamedTuple):
    """New text of one choice, and how likely its tokens are if that is asked for; `finish_reason`
    comes with the last.

    Args:
        prompt: its tokens, and how likely they are.
    """

    choice: int
    text: str
    finish_reason: str | None
    said: Sequence[TokenLogprob]
    prompt: Sequence[tuple[int, TokenLogprob | None]]


def piece_of(
    choice: int, output: Output, completion: Completion, text: str | None = None, told: int = 0
) -> Piece:
    """All of a text, or this piece of it, with what is known of its tokens but the first `told`."""
    prompt = list(zip(completion.prompt_token_ids, completion.prompt_logprobs or (), strict=False))
    said, text = (output.logprobs or [])[told:], output.text if text is None else text
    return Piece(choice, text, output.finish_reason, said, prompt)


Item = list[Piece] | Exception | None  # what a ticket gets; None: that was all


class Ticket:
    """What a request was given: iterate over it for its pieces, and `close` it whatever happens.

    There may be several prompts. Text j of prompt i is choice i * n + j. `completions` can be read
    once the iteration is over. Without `stream` no pieces come, only the end. tenant: whose it is.
    """

    def __init__(
        self, owner: EngineThread, params: SamplingParams, stream: bool, tenant: str | None = None
    ) -> None:
        self.params, self.stream, self.tenant = params, stream, tenant
        self.completions: list[Completion] = []
        self.began = perf_counter()
        self.loop = asyncio.get_running_loop()
        self.inbox: asyncio.Queue[Item] = asyncio.Queue()
        self._owner = owner
        # What follows belongs to the engine's thread.
        self.ids: dict[int, int] = {}  # of the requests that are not finished -> first choice
        self.ended: set[int] = set()  # choices that have had their last piece
        self.told = Counter[int]()  # tokens of each choice whose log-probabilities were sent

    async def __aiter__(self) -> AsyncIterator[list[Piece]]:
        while (item := await self.inbox.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        """Abort what is not finished; its blocks are free after the present step.

        May be called twice.
        """
        self._owner.post(lambda: self._owner.drop(self))


class EngineThread:
    """Runs `llm` in one thread, between `start` and `stop`.

    "begun" after a request's first step and with "ended" after its last. loop: what the thread
    does.

    Args:
        max_waiting: requests that may wait for their first step; more are refused. observe: called
            in the thread with
    """

    def __init__(
        self,
        llm: LLM,
        max_waiting: int = 128,
        observe: Callable[[str, Ticket, Completion], None] = lambda *_: None,
        loop: Loop = run_loop,
        plain_content: bool = False,
    ) -> None:
        self.max_waiting = integer("max_waiting", max_waiting, 1)
        self._llm, self._observe, self._loop = llm, observe, loop
        self._encoder = Encoder(llm.model, plain_content)
        self._inbox: Inbox = queue.SimpleQueue()
        self._tickets: dict[
            int, Ticket
        ] = {}  # by request id, of the requests that are not finished
        self._waiting: set[int] = set()
        self._thread: threading.Thread | None = None
        self._usual_steps = 0  # `max_streamed_steps` before `start`, and after `stop`
        self._lock = threading.Lock()  # nothing may be put into the inbox behind the end
        # under way
        self._mail: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Item]]] = defaultdict(list)
        self._mail_lock = threading.Lock()

    # ------------------------------------------------------------------ called by coroutines

    async def submit(
        self, ticket: Ticket, prompts: Sequence[Prompt], salt: str | None, clamp: bool
    ) -> None:
        """Queue all prompts or none; `ApiError` says what is wrong. clamp: cut a max_tokens that
        does not fit.
        """
        self._find_room(len(prompts))
        ids = await self._encoder.encode(prompts, 1 if clamp else ticket.params.max_tokens)
        try:
            await self.call(lambda llm: self._add(ticket, ids, salt))
        except BaseException:
            ticket.close()  # the caller may have gone just when it was added
            raise

    async def call(self, function: Callable[[LLM], T]) -> T:
        """Run `function(llm)` between two steps and return what it returns."""
        done: Future[T] = Future()

        def work() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(function(self._llm))
                except Exception as error:
                    done.set_exception(error)

        if not self.post(work):
            raise EngineError("the server is shutting down")
        return await asyncio.wrap_future(done)

    def post(self, work: Work) -> bool:
        """Have `work` run between two steps; it must not raise.

        False if the thread has ended, and it will not run.
        """
        with self._lock:
            if self._thread is not None:
                self._inbox.put(work)
            return self._thread is not None

    def start(self) -> None:
        """Start the thread.

        Until `stop`, the `LLM` is its own; `RuntimeError` if another thread has it.
        """
        with self._lock:
            if self._thread is None:
                if self._llm in _owned:
                    raise RuntimeError(
                        "this LLM is served already: stop that server first, or make another LLM"
                    )
                _owned.add(self._llm)
                if run_ahead := self._llm.run_ahead:
                    self._usual_steps = run_ahead.max_streamed_steps
                    run_ahead.max_streamed_steps = STREAMED_STEPS
                sys.setswitchinterval(SWITCH)  # or a coroutine that writes keeps the engine waiting
                # no full collection while others wait, see `run_loop`
                gc.set_threshold(*COLLECT[:2], 10**9)
                self._thread = threading.Thread(
                    target=self._run, name="pagedlab-engine", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Abort everything and end the thread; the `LLM` is then the caller's again."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
                thread.join()
                _owned.discard(self._llm)
                if self._llm.run_ahead:
                    self._llm.run_ahead.max_streamed_steps = self._usual_steps
                if not _owned:
                    sys.setswitchinterval(USUAL)
                    gc.set_threshold(*COLLECT)

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
                self._fail(
                    EngineError(f"the engine's loop failed: {type(error).__name__}: {error}")
                )
        self._fail(EngineError("the server is shutting down"))

    def names(self, tenant: str | None) -> set[str]:
        """Of the tenant's texts that run now."""
        own = {
            request_id for request_id, ticket in self._tickets.items() if ticket.tenant == tenant
        }
        return {
            text.name
            for r in self._llm.scheduler.running
            if r.request_id in own
            for text in r.sequences
        }

    def _find_room(self, count: int) -> None:
        if count > self.max_waiting:
            raise ApiError(
                400,
                (
                    f"{count} prompts in one request, and the queue holds {self.max_waiting}: send "
                    "fewer"
                ),
            )
        if len(self._waiting) + count > self.max_waiting:
            said = (
                f"the queue is full, {len(self._waiting)} of {self.max_waiting} places are taken: "
                "try again soon"
            )
            raise ApiError(
                429, said, {"Retry-After": "1"}, type="rate_limit_error", code="queue_full"
            )

    def _add(self, ticket: Ticket, prompts: list[list[int]], salt: str | None) -> None:
        self._find_room(len(prompts))  # others may have come while the tokens were made
        try:
            for i, ids in enumerate(prompts):
                request_id = self._llm.add(ids, ticket.params, stream=ticket.stream, salt=salt)
                ticket.ids[request_id] = i * ticket.params.n
                self._tickets[request_id] = ticket
                self._waiting.add(request_id)
        except ValueError as error:
            self.drop(ticket)
            raise ApiError(400, str(error)) from None

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
                raise RuntimeError(
                    f"the engine has nothing to do, and {len(self._tickets)} requests are not "
                    "finished"
                )
        except Exception as error:
            self._fail(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
            return
        items: list[tuple[Ticket, Item]] = []
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
            if index not in ticket.ended:
                # the ticket streams, and so the engine makes one for each text
                assert output.detokenizer is not None
                reason = output.finish_reason
                text = output.detokenizer.take(reason is not None)
                if reason:
                    ticket.ended.add(index)
                if text or reason:
                    pieces.append(
                        piece := piece_of(index, output, completion, text, ticket.told[index])
                    )
                    ticket.told[index] += len(piece.said)
        return pieces

    def _fail(self, error: EngineError) -> None:
        tickets = set(self._tickets.values())
        for ticket in tickets:
            self.drop(ticket)
        self._send([(ticket, error) for ticket in tickets])

    def _send(self, items: Sequence[tuple[Ticket, Item]]) -> None:
        """One wake-up for each event loop, however many clients it serves, and none while it has
        one to come.
        """
        with self._mail_lock:
            loops = {ticket.loop for ticket, _ in items}
            sleeping = {loop for loop in loops if not self._mail[loop] or loop.is_closed()}
            for ticket, item in items:
                self._mail[ticket.loop].append((ticket, item))
        for loop in sleeping:
            try:
                loop.call_soon_threadsafe(self._deliver, loop)
            except RuntimeError:  # the loop is closed, and nobody is left to read
                for ticket, _ in self._mail.pop(loop, []):
                    self.drop(ticket)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop: hand out the mail.

        What came for a text while the loop was busy is one piece by now.
        """
        with self._mail_lock:
            mail = self._mail.pop(loop, [])
        pieces: dict[Ticket, dict[int, Piece]] = defaultdict(dict)
        for ticket, item in mail:
            if isinstance(item, list):
                for piece in item:
                    if earlier := pieces[ticket].get(piece.choice):
                        piece = piece._replace(
                            text=earlier.text + piece.text, said=[*earlier.said, *piece.said]
                        )
                    pieces[ticket][piece.choice] = piece
        for ticket, latest in pieces.items():
            ticket.inbox.put_nowait(list(latest.values()))
        for ticket, item in mail:
            if not isinstance(item, list):
                ticket.inbox.put_nowait(item)
