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
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from pagedlab.arguments import integer
from pagedlab.blocks import OutOfBlocks
from pagedlab.engine import LLM, Prompt
from pagedlab.outputs import WAS_RESET, Completion, Output
from pagedlab.recipes.logprobs import score
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab_fast.runner import FastRunner
from pagedlab_serve.garbage import allow_full_collections, postpone_full_collections
from pagedlab_serve.logprobs import Echo
from pagedlab_serve.openai_api import ApiError
from pagedlab_serve.prompts import Encoder, Room

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
# Python's setting, which returns when the last engine has stopped.
USUAL_SWITCH = sys.getswitchinterval()
_owned: WeakSet[LLM] = WeakSet()  # engines that a thread owns now


class EngineError(ApiError):
    """The engine failed or was stopped while a request was in it. The request is aborted."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, type="server_error", code="engine_error")


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


def not_finite(message: str) -> ApiError:
    """The error of a request whose logits are not finite."""
    return ApiError(500, message, type="server_error", code="logits_not_finite")


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


def piece_of(
    choice: int,
    output: Output,
    text: str | None = None,
    num_reported: int = 0,
) -> Piece:
    """Return the whole output, or a piece of it.

    Args:
        choice: index of the choice.
        output: the output.
        text: the text of the piece; None for all.
        num_reported: tokens whose log-probabilities are in earlier pieces.
    """
    logprobs = (output.logprobs or [])[num_reported:]
    if text is None:
        text = output.text
    reason = None if output.error else output.finish_reason  # OpenAI's API has no such reason
    return Piece(choice, text, reason, logprobs)


Scored = tuple[int, TokenLogprob | None]  # a token of a prompt; nothing predicts the first
Item = list[Piece] | Exception | None  # an entry of a ticket's inbox; None is the end


class Ticket:
    """One HTTP request in the engine. Iterate over it for its pieces, and always `close` it.

    There may be several prompts: output j of prompt i is choice i * n + j. `completions` is
    complete once the iteration is over.

    Args:
        owner: the thread that runs it.
        params: of all prompts.
        stream: whether there are pieces, or only the end.
        tenant: owner of the API key; None without keys.
    """

    def __init__(
        self, owner: EngineThread, params: SamplingParams, stream: bool, tenant: str | None = None
    ) -> None:
        self.params = params
        self.stream = stream
        self.tenant = tenant
        self.completions: list[Completion] = []
        self.echoes: list[Echo] = []  # of each prompt, if the answer begins with it
        self.scored: list[list[Scored]] = []  # each prompt, if its log-probabilities are asked for
        self.began = perf_counter()
        self.loop = asyncio.get_running_loop()
        self.inbox: asyncio.Queue[Item] = asyncio.Queue()
        self._owner = owner
        # Only the engine's thread uses these.
        self.ids: dict[int, int] = {}  # id of an unfinished request -> its first choice
        self.ended: set[int] = set()  # choices whose last piece is sent
        self.num_reported = Counter[int]()  # choice -> tokens whose log-probabilities are sent

    async def __aiter__(self) -> AsyncIterator[list[Piece]]:
        while (item := await self.inbox.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        """Abort the requests that are not finished. A second call does nothing.

        Their blocks are free after the present step.
        """
        self._owner.post(lambda: self._owner.drop(self))


class EngineThread:
    """Runs an engine in one thread, between `start` and `stop`.

    Args:
        llm: the engine.
        max_waiting: requests that may wait for their first step. Further ones are refused.
        observe: called in the thread with "begun" after a request's first step, and with "ended"
            after its last.
        loop: the loop of the thread, see `run_loop`.
        plain_content: see `Encoder`.
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
        self._llm = llm
        self._observe = observe
        self._loop = loop
        self.encoder = Encoder(llm.model, plain_content)
        self._inbox: Inbox = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}  # by the ids of unfinished requests
        self._waiting: set[int] = set()
        self._thread: threading.Thread | None = None
        self._usual_steps = 0  # `max_streamed_steps` before `start`, and after `stop`
        self._lock = threading.Lock()  # nothing may be put into the inbox after None
        # Pieces that an event loop has not handed out yet.
        self._mail: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Item]]] = defaultdict(list)
        self._mail_lock = threading.Lock()

    # Called by coroutines ----------------------------------------------------------------------

    async def encode(self, prompts: Sequence[Prompt], room: Room) -> list[list[int]]:
        """Return the token ids of each prompt.

        Args:
            prompts: texts, lists of token ids, or chats.
            room: the new tokens that must fit into the context. If that is fewer than the
                request's max_tokens, the answer may end earlier.

        Raises:
            ApiError: If a prompt is invalid, or the queue is full.
        """
        self._find_room(len(prompts))
        return await self.encoder.encode(prompts, room)

    async def submit(self, ticket: Ticket, ids: list[list[int]], salt: str | None) -> None:
        """Queue all prompts or none.

        Args:
            ticket: of the request.
            ids: the token ids of each prompt.
            salt: of the prefix cache.

        Raises:
            ApiError: If the queue is full.
        """
        try:
            await self.call(lambda llm: self._add(ticket, ids, salt))
        except BaseException:
            ticket.close()  # the caller may be cancelled just after the request was added
            raise

    async def score(self, ids: list[int], top: int) -> list[Scored]:
        """Return a prompt's tokens with their log-probabilities, once enough blocks are free.

        Args:
            ids: the token ids of the prompt.
            top: how many of the likeliest tokens to report at each position.

        Raises:
            ApiError: If the prompt is too long for the pool, or its logits are not finite.
        """
        while True:
            try:
                scores = await self.call(lambda llm: score(llm, ids, top))
                return list(zip(ids, scores, strict=True))
            except OutOfBlocks:
                await asyncio.sleep(BLOCKS_BUSY)
            except ValueError as error:
                raise ApiError(400, str(error)) from None
            except FloatingPointError as error:
                raise not_finite(str(error)) from None

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
            if self._thread is None:
                if self._llm in _owned:
                    raise RuntimeError(
                        "this LLM is served already: stop that server first, or make another LLM"
                    )
                _owned.add(self._llm)
                if isinstance(self._llm.runner, FastRunner):
                    run_ahead = self._llm.runner.run_ahead
                    self._usual_steps = run_ahead.max_streamed_steps
                    run_ahead.max_streamed_steps = STREAMED_STEPS
                sys.setswitchinterval(SWITCH)  # a coroutine may not delay the engine
                postpone_full_collections()  # they wait until the engine is idle, see `run_loop`
                self._thread = threading.Thread(
                    target=self._run, name="pagedlab-engine", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Abort all requests and end the thread. Then the caller owns the `LLM` again."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
                thread.join()
                _owned.discard(self._llm)
                allow_full_collections()
                if isinstance(self._llm.runner, FastRunner):
                    self._llm.runner.run_ahead.max_streamed_steps = self._usual_steps
                if not _owned:
                    sys.setswitchinterval(USUAL_SWITCH)

    # Called in the thread ----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their first step."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests that have begun and not ended."""
        return len(self._tickets) - len(self._waiting)

    def _run(self) -> None:
        """Run the loop until it ends, and abort the requests that are left."""
        while True:
            try:
                self._loop(self._inbox, lambda: bool(self._tickets), self._step)
                break
            except Exception as error:  # present requests fail, later ones are served
                message = f"the engine's loop failed: {type(error).__name__}: {error}"
                self._fail(EngineError(message))
        self._fail(EngineError("the server is shutting down"))

    def names(self, tenant: str | None) -> set[str]:
        """Return the names of the tenant's running sequences."""
        names = set[str]()
        for sequence in self._llm.scheduler.running:
            ticket = self._tickets.get(sequence.request_id)
            if ticket is not None and ticket.tenant == tenant:
                names.add(sequence.name)
        return names

    def _find_room(self, count: int) -> None:
        """Raise `ApiError` if the queue has no room for that many prompts."""
        if count > self.max_waiting:
            problem = f"{count} prompts in one request, and the queue holds {self.max_waiting}"
            raise ApiError(400, f"{problem}: send fewer")
        if len(self._waiting) + count > self.max_waiting:
            message = (
                f"the queue is full, {len(self._waiting)} of {self.max_waiting} places are taken: "
                "try again soon"
            )
            headers = {"Retry-After": "1"}
            raise ApiError(429, message, headers, type="rate_limit_error", code="queue_full")

    def _add(self, ticket: Ticket, prompts: list[list[int]], salt: str | None) -> None:
        self._find_room(len(prompts))  # the queue may be full by now
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
        """Abort the requests of a ticket that are not finished."""
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
            if ticket is not None:  # None: it was added before this thread owned the engine
                items += self._handle(ticket, completion)
        self._send(items)

    def _handle(self, ticket: Ticket, completion: Completion) -> list[tuple[Ticket, Item]]:
        """Return the items for a ticket after a step of one of its requests."""
        items: list[tuple[Ticket, Item]] = []
        if completion.request_id in self._waiting:
            self._waiting.discard(completion.request_id)
            self._observe("begun", ticket, completion)
        if ticket.stream:
            pieces = self._read(ticket, completion)
            if pieces:
                items.append((ticket, pieces))
        error = next((output.error for output in completion.outputs if output.error), None)
        if error is not None:
            self.drop(ticket)
            failure = EngineError(error) if error == WAS_RESET else not_finite(error)
            items.append((ticket, failure))
        elif completion.finished:
            self._observe("ended", ticket, completion)
            ticket.completions.append(completion)
            self._forget(completion.request_id)
            if not ticket.ids:
                ticket.completions.sort(key=lambda done: done.request_id)
                items.append((ticket, None))
        return items

    def _read(self, ticket: Ticket, completion: Completion) -> list[Piece]:
        """Return the new text of each choice that has some or ends."""
        pieces = []
        first = ticket.ids[completion.request_id]
        for choice, output in enumerate(completion.outputs, first):
            if choice in ticket.ended:
                continue
            assert output.detokenizer is not None  # the engine makes one for each that streams
            is_last = output.finish_reason is not None
            text = output.detokenizer.take(is_last)
            if is_last:
                ticket.ended.add(choice)
            if text or is_last:
                reported = ticket.num_reported[choice]
                piece = piece_of(choice, output, text, reported)
                ticket.num_reported[choice] += len(piece.logprobs)
                pieces.append(piece)
        return pieces

    def _fail(self, error: EngineError) -> None:
        """Tell all clients of an error, and abort their requests, even if that fails as well."""
        tickets = set(self._tickets.values())
        request_ids = list(self._tickets)
        for request_id in request_ids:
            self._forget(request_id)
        self._send([(ticket, error) for ticket in tickets])
        for request_id in request_ids:
            try:
                self._llm.abort(request_id)
            except Exception:
                LOG.exception("a request could not be aborted")

    def _send(self, items: Sequence[tuple[Ticket, Item]]) -> None:
        """Put items into the mail, and wake up each event loop that has not been woken up yet."""
        with self._mail_lock:
            loops = {ticket.loop for ticket, _ in items}
            sleeping = {loop for loop in loops if not self._mail[loop] or loop.is_closed()}
            for ticket, item in items:
                self._mail[ticket.loop].append((ticket, item))
        for loop in sleeping:
            try:
                loop.call_soon_threadsafe(self._deliver, loop)
            except RuntimeError:  # the loop is closed, and its clients are gone
                for ticket, _ in self._mail.pop(loop, []):
                    self.drop(ticket)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand out the mail, in the event loop.

        All pieces of a choice that came while the loop was busy are joined.
        """
        with self._mail_lock:
            mail = self._mail.pop(loop, [])
        pieces: dict[Ticket, dict[int, Piece]] = defaultdict(dict)
        for ticket, item in mail:
            if isinstance(item, list):
                for piece in item:
                    earlier = pieces[ticket].get(piece.choice)
                    pieces[ticket][piece.choice] = _join(earlier, piece) if earlier else piece
        for ticket, latest in pieces.items():
            ticket.inbox.put_nowait(list(latest.values()))
        for ticket, item in mail:
            if not isinstance(item, list):
                ticket.inbox.put_nowait(item)


def _join(earlier: Piece, later: Piece) -> Piece:
    """Return two pieces of one choice as one."""
    return later._replace(
        text=earlier.text + later.text,
        logprobs=[*earlier.logprobs, *later.logprobs],
    )
