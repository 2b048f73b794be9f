"""One thread that owns the engine, and the coroutines that talk to it.

    coroutine ---- functions ---> inbox ---> the thread: empties its inbox, runs a step, and again
    coroutine <--- pieces of text, through the coroutine's event loop ---/

An `LLM` is not made for two threads at once. So requests are added, aborted and looked at by
functions in the inbox, which run between two steps. No request waits for the answer of another one:
a function that arrives while a step runs is called after that step. Tokenizing takes long and needs
no engine, so another thread does it before.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from pagedlab.arguments import integer
from pagedlab.blocks import OutOfBlocks
from pagedlab.engine import LLM
from pagedlab.outputs import WAS_RESET, Completion, Output
from pagedlab.recipes.logprobs import score
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab_fast.runner import FastRunner
from pagedlab_serve.logprobs import Scored
from pagedlab_serve.openai_api import ApiError

LOG = logging.getLogger("pagedlab_serve")
T = TypeVar("T")
Work = Callable[[], None]
Inbox = queue.SimpleQueue[Work | None]  # None ends the loop
Loop = Callable[[Inbox, Callable[[], bool], Work], None]
BLOCKS_BUSY = 0.05  # seconds until a prompt for which blocks are short is tried again
IDLE = 1.0  # seconds without work, after which garbage is collected
# steps in a window at most; with 8, first tokens came later from 60 requests a second on
STREAMED_STEPS = 5
# Seconds that a thread may keep the interpreter. A GPU takes several steps in the default, 0.005.
SWITCH = 0.0005
# A full garbage collection visits each cached block. With 300,000 blocks, that takes 0.2 s.
NEVER = 10**9
USUAL_SWITCH = sys.getswitchinterval()
USUAL_THRESHOLDS = gc.get_threshold()
_owned: WeakSet[LLM] = WeakSet()  # engines that a thread owns now


class EngineError(ApiError):
    """The engine failed or was stopped while a request was in it. The request is aborted."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, code="engine_error")


class NotFinite(ApiError):
    """The logits of a request are not finite. Other requests go on."""

    def __init__(self, message: str) -> None:
        super().__init__(500, message, code="logits_not_finite")


def run_loop(inbox: Inbox, busy: Callable[[], bool], step: Work) -> None:
    """Empty the inbox and run a step, again and again, until the inbox holds None.

    Args:
        inbox: functions to call between two steps.
        busy: returns whether there are requests. Without any, the loop sleeps.
        step: runs a step.
    """
    collected = False
    while True:
        try:
            timeout = None if collected else IDLE
            while (work := inbox.get(block=not busy(), timeout=timeout)) is not None:
                work()
            return
        except queue.Empty:
            collected = not busy()
            if collected:
                gc.collect()  # it takes long, so it waits until the engine is idle
            else:
                step()


@contextmanager
def tuned_for_streams(llm: LLM) -> Iterator[None]:
    """Within this block, tokens come evenly: no thread, window or collection delays them long.

    The last engine that is served restores the settings of the process.
    """
    runner = llm.runner if isinstance(llm.runner, FastRunner) else None
    steps = runner.max_streamed_steps if runner else 0
    sys.setswitchinterval(SWITCH)
    gc.set_threshold(*USUAL_THRESHOLDS[:2], NEVER)
    if runner:
        runner.max_streamed_steps = STREAMED_STEPS
    yield
    if runner:
        runner.max_streamed_steps = steps
    _owned.discard(llm)
    if not _owned:
        sys.setswitchinterval(USUAL_SWITCH)
        gc.set_threshold(*USUAL_THRESHOLDS)


class Piece(NamedTuple):
    """New text of one choice.

    Args:
        choice: index of the choice.
        text: the new text.
        finish_reason: of the last piece; else None.
        logprobs: log-probabilities of the new tokens; empty unless requested.
    """

    choice: int
    text: str
    finish_reason: str | None
    logprobs: Sequence[TokenLogprob]

    def joined(self, later: Piece) -> Piece:
        """Return this piece and the next one of the same choice as one."""
        logprobs = [*self.logprobs, *later.logprobs]
        return later._replace(text=self.text + later.text, logprobs=logprobs)


class Ticket:
    """One HTTP request in the engine. Iterate over it for its pieces, and always `close` it.

    There may be several prompts: output j of prompt i is choice i * n + j. `completions` is
    complete once the iteration is over.

    Args:
        owner: the thread that runs it.
        params: of all prompts.
        stream: whether there are pieces, or only the end.
    """

    def __init__(self, owner: EngineThread, params: SamplingParams, stream: bool) -> None:
        self.params = params
        self.stream = stream
        self.completions: list[Completion] = []
        self.began = perf_counter()
        self.loop = asyncio.get_running_loop()
        self._owner = owner
        # Only the engine's thread uses these.
        self.ids: dict[int, int] = {}  # id of an unfinished request -> its first choice
        self.sent: dict[int, int] = defaultdict(int)  # tokens of a choice that are in its pieces
        self.ended: set[int] = set()  # choices whose last piece is made
        # Only the event loop uses these.
        self._pieces: dict[int, Piece] = {}  # by choice
        self._has_ended = False
        self._error: Exception | None = None
        self._has_news = asyncio.Event()

    def put(self, news: News) -> None:
        """Take news, in the event loop. Pieces that nobody has read yet are joined."""
        for piece in news.pieces:
            earlier = self._pieces.get(piece.choice)
            self._pieces[piece.choice] = earlier.joined(piece) if earlier else piece
        self._has_ended = news.has_ended
        self._error = news.error
        self._has_news.set()

    async def __aiter__(self) -> AsyncIterator[list[Piece]]:
        while self._pieces or not self._has_ended:
            await self._has_news.wait()
            self._has_news.clear()
            pieces, self._pieces = self._pieces, {}
            if pieces:
                yield list(pieces.values())
        if self._error is not None:
            raise self._error

    async def end(self) -> None:
        """Wait for the end, and raise the error of the engine's thread, if any."""
        async for _ in self:
            pass

    def close(self) -> None:
        """Abort the requests that are not finished. A second call does nothing.

        Their blocks are free after the present step.
        """
        self._owner.post(lambda: self._owner.drop(self))


class News(NamedTuple):
    """What a step brings a ticket: new pieces, and perhaps its end or an error."""

    ticket: Ticket
    pieces: list[Piece]
    has_ended: bool
    error: Exception | None = None


class EngineThread:
    """Runs an engine in one thread, between `start` and `stop`.

    Args:
        llm: the engine.
        max_waiting: requests that may wait for their first step. Further ones are refused.
        observe: called in the thread when a request has ended.
        loop: the loop of the thread, see `run_loop`.
    """

    def __init__(
        self,
        llm: LLM,
        max_waiting: int = 128,
        observe: Callable[[Ticket, Completion], None] = lambda *_: None,
        loop: Loop = run_loop,
    ) -> None:
        self.max_waiting = integer("max_waiting", max_waiting, 1)
        self._llm = llm
        self._observe = observe
        self._loop = loop
        self._inbox: Inbox = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}  # by the ids of unfinished requests
        self._waiting: set[int] = set()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # nothing may be put into the inbox after None

    # Called by coroutines ----------------------------------------------------------------------

    async def submit(self, ticket: Ticket, ids: list[list[int]], salt: str | None) -> None:
        """Queue all prompts or none.

        Args:
            ticket: of the request.
            ids: the token ids of each prompt.
            salt: of the prefix cache.

        Raises:
            ValueError: If the engine cannot run a prompt.
            ApiError: If the queue is full.
        """
        await self.call(lambda llm: self._add(ticket, ids, salt))

    async def score(self, ids: list[int], top: int) -> list[Scored]:
        """Return a prompt's tokens with their log-probabilities, once enough blocks are free.

        Args:
            ids: the token ids of the prompt.
            top: how many of the likeliest tokens to report at each position.

        Raises:
            ValueError: If the prompt is too long for the pool.
            NotFinite: If its logits are not finite.
        """
        while True:
            try:
                scores = await self.call(lambda llm: score(llm, ids, top))
                return list(zip(ids, scores, strict=True))
            except OutOfBlocks:
                await asyncio.sleep(BLOCKS_BUSY)
            except FloatingPointError as error:
                raise NotFinite(str(error)) from None

    async def call(self, function: Callable[[LLM], T]) -> T:
        """Run `function(llm)` between two steps and return its result."""
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
        """Have a function called between two steps. It must not raise.

        Return False if the thread has ended: then the function is not called.
        """
        with self._lock:
            if self._thread is not None:
                self._inbox.put(work)
            return self._thread is not None

    def start(self) -> None:
        """Start the thread, which owns the `LLM` until `stop`.

        Raises:
            RuntimeError: If another thread owns the `LLM`.
        """
        with self._lock:
            if self._thread is not None:
                return
            if self._llm in _owned:
                raise RuntimeError("this LLM is served already: stop that server first")
            _owned.add(self._llm)
            self._thread = threading.Thread(target=self._run, name="pagedlab-engine", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Abort all requests and end the thread. Then the caller owns the `LLM` again."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
                thread.join()

    # Called in the thread ----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their first step."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests that have begun and not ended."""
        return len(self._tickets) - len(self._waiting)

    def drop(self, ticket: Ticket) -> None:
        """Abort the requests of a ticket that are not finished."""
        for request_id in list(ticket.ids):
            self._forget(request_id)
            self._llm.abort(request_id)

    def _run(self) -> None:
        """Run the loop until it ends. If a step fails, all requests end, and the loop goes on."""
        with tuned_for_streams(self._llm):
            while True:
                try:
                    self._loop(self._inbox, lambda: bool(self._tickets), self._step)
                    break
                except Exception as error:
                    LOG.exception("the engine failed")
                    self._fail(f"the engine failed: {type(error).__name__}: {error}")
            self._fail("the server is shutting down")

    def _add(self, ticket: Ticket, prompts: list[list[int]], salt: str | None) -> None:
        if len(self._waiting) + len(prompts) > self.max_waiting:
            taken = f"{len(self._waiting)} of {self.max_waiting} places are taken"
            message = f"the queue has no room for {len(prompts)} more, {taken}: try again soon"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
        try:
            for i, ids in enumerate(prompts):
                request_id = self._llm.add(ids, ticket.params, salt=salt)
                ticket.ids[request_id] = i * ticket.params.n
                self._tickets[request_id] = ticket
                self._waiting.add(request_id)
        except Exception:
            self.drop(ticket)
            raise

    def _forget(self, request_id: int) -> None:
        ticket = self._tickets.pop(request_id)
        del ticket.ids[request_id]
        self._waiting.discard(request_id)

    def _step(self) -> None:
        touched = self._llm.step()
        if not touched:
            raise RuntimeError(f"{len(self._tickets)} requests are open, and no step is left")
        news = []
        for completion in touched:
            if completion.request_id in self._tickets:  # it may be dropped, with its ticket
                news.append(self._handle(completion))
        self._send([each for each in news if each.pieces or each.has_ended])

    def _handle(self, completion: Completion) -> News:
        """Return the news for a ticket after a step of one of its requests."""
        ticket = self._tickets[completion.request_id]
        self._waiting.discard(completion.request_id)
        pieces = self._new_pieces(ticket, completion) if ticket.stream else []
        problem = next((output.error for output in completion.outputs if output.error), None)
        if problem is not None:
            self.drop(ticket)
            error = EngineError(problem) if problem == WAS_RESET else NotFinite(problem)
            return News(ticket, pieces, True, error)
        if completion.finished:
            self._observe(ticket, completion)
            ticket.completions.append(completion)
            ticket.completions.sort(key=lambda done: done.request_id)
            self._forget(completion.request_id)
        return News(ticket, pieces, has_ended=not ticket.ids)

    def _new_pieces(self, ticket: Ticket, completion: Completion) -> list[Piece]:
        """Return the new text of each choice that has some or ends."""
        pieces = []
        first = ticket.ids[completion.request_id]
        for choice, output in enumerate(completion.outputs, first):
            if choice in ticket.ended:
                continue
            is_last = output.finish_reason is not None
            text = output.take()
            if is_last:
                ticket.ended.add(choice)
            if text or is_last:
                pieces.append(piece_of(choice, output, text, ticket.sent[choice]))
                ticket.sent[choice] = len(output.token_ids)
        return pieces

    def _fail(self, message: str) -> None:
        """Tell all clients of an error, and abort their requests, even if that fails as well."""
        tickets = set(self._tickets.values())
        self._send([News(ticket, [], True, EngineError(message)) for ticket in tickets])
        for ticket in tickets:
            try:
                self.drop(ticket)
            except Exception:
                LOG.exception("a request could not be aborted")

    def _send(self, news: Sequence[News]) -> None:
        """Have each event loop hand its news out. Of a loop that is closed, nobody waits."""
        by_loop = defaultdict(list)
        for each in news:
            by_loop[each.ticket.loop].append(each)
        for loop, own in by_loop.items():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, own)


def _deliver(news: Sequence[News]) -> None:
    for each in news:
        each.ticket.put(each)


def piece_of(choice: int, output: Output, text: str, num_sent: int = 0) -> Piece:
    """Return a piece of an output.

    Args:
        choice: index of the choice.
        output: the output.
        text: the text of the piece.
        num_sent: tokens that are in earlier pieces.
    """
    reason = None if output.error else output.finish_reason  # OpenAI's API has no such reason
    return Piece(choice, text, reason, (output.logprobs or [])[num_sent:])
