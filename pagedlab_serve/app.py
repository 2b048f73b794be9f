"""OpenAI's HTTP API: completions, chats, streams, errors, metrics, and a live page.

    app = create_app(LLM())      # `pagedlab serve` serves it on http://127.0.0.1:8000

A handler turns an HTTP request into prompts for the engine, and waits for the pieces that the
engine's thread sends back. It always closes its ticket: if a client hangs up, its request is
aborted and its blocks are freed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from pagedlab.arguments import integer
from pagedlab.engine import LLM
from pagedlab.sampling_params import SamplingParams
from pagedlab_serve.engine_thread import (
    LOG,
    EngineThread,
    Loop,
    Piece,
    Scored,
    Ticket,
    piece_of,
    run_loop,
)
from pagedlab_serve.gate import EXPECTED, Gate, error_response
from pagedlab_serve.logprobs import OfCompletion, Spelling, of_chat
from pagedlab_serve.metrics import Metrics
from pagedlab_serve.openai_api import (
    COMPLETION_TOKENS,
    ApiError,
    ChatRequest,
    CompletionRequest,
    ErrorBody,
)
from pagedlab_serve.prompts import Room

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_LOGPROBS = 250_000  # in one answer; about 20 MB of JSON
MAX_BODY_BYTES = 1 << 20  # of a request
MOST_NOTED = 100  # unknown fields that the log names
MOST_NAME = 80  # characters of the name of such a field

T = TypeVar("T")
Names = Callable[[str | None], set[str]]
SaltFor = Callable[[str | None, str | None], str | None]
Asked = CompletionRequest | ChatRequest
MakeChoice = Callable[[Piece], dict[str, Any]]


def salt_for(tenant: str | None, cache_salt: str | None) -> str | None:
    """Return the salt of a request's blocks.

    Requests share blocks only if they have the same tenant and the same cache_salt. The salt is a
    list in JSON, because a concatenation of the two could be equal for different pairs.

    Args:
        tenant: the owner of the API key; None without keys.
        cache_salt: the salt that the request asks for, if any.
    """
    return None if tenant is None and cache_salt is None else json.dumps([tenant, cache_salt])


class LivePage(Protocol):
    """A page that shows what the engine does.

    Attributes:
        files: the media type of each file, and the function that reads it.
    """

    files: Mapping[str, tuple[str, Callable[[], str]]]

    def look(self, llm: LLM, tenant: str | None, since: int) -> dict[str, Any]:
        """Return the steps that the page does not have yet."""


@dataclass
class Serving:
    """The parts of an app that its handlers share.

    Args:
        engine: the engine's thread.
        live: the live page, if it is installed.
        metrics: figures for Prometheus.
        card: the model, in OpenAI's form.
        tenants: digest of a key -> its tenant; None without keys.
        salt: makes the prefix cache's salt of (tenant, the request's cache_salt).
        default_max_tokens: new tokens of a chat that does not say.
        noted: unknown fields that the log has named.
    """

    engine: EngineThread
    live: LivePage | None
    metrics: Metrics
    card: dict[str, Any]
    tenants: Mapping[str, str] | None
    salt: SaltFor
    default_max_tokens: int
    noted: set[str] = field(default_factory=set)

    @property
    def spell(self) -> Spelling:
        """The bytes and the names of tokens."""
        return self.engine.encoder.spell

    def tenant_of(self, key: str) -> str | None:
        """Return the tenant of a key; None without keys. `ApiError` for an unknown key."""
        if self.tenants is None:
            return None
        tenant = self.tenants.get(_digest(key))
        if tenant is None:
            problem = "this API key is not known" if key else "this server asks for an API key"
            raise ApiError(
                401,
                f"{problem}: send one as 'Authorization: Bearer KEY'",
                {"WWW-Authenticate": "Bearer"},
                type="authentication_error",
                code="invalid_api_key",
            )
        return tenant

    def refuse_key(self, authorization: str) -> ApiError | None:
        """Return the error for the value of an Authorization header; None if it is valid."""
        scheme, _, key = authorization.partition(" ")
        try:
            self.tenant_of(key.strip() if scheme.lower() == "bearer" else "")
        except ApiError as error:
            return error
        return None

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` if the request names another model than the loaded one."""
        if name not in (None, self.card["id"]):
            message = f"there is no model {name!r} here; there is {self.card['id']!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def note_unknown(self, body: Asked) -> None:
        """Name the fields that this server does not know in its log, each once."""
        names = list(body.model_extra or ())
        if body.stream_options:
            names += [f"stream_options.{name}" for name in body.stream_options.model_extra or ()]
        for name in names:
            name = name[:MOST_NAME]
            if name not in self.noted and len(self.noted) < MOST_NOTED:
                self.noted.add(name)
                LOG.warning("the field %r is ignored: this server does not know it", name)

    def head(self, prefix: str, kind: str) -> dict[str, Any]:
        """Return the fields at the start of every answer."""
        return {
            "id": f"{prefix}-{uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.card["id"],
        }

    async def submit(
        self, request: Request, body: Asked, tenant: str | None, max_tokens: int
    ) -> Ticket:
        """Queue the prompts of a request.

        Args:
            request: the HTTP request.
            body: its body.
            tenant: the owner of its API key.
            max_tokens: new tokens, at most, if the body does not say.

        Raises:
            ApiError: If the body is invalid, or the queue is full.
        """
        self.check_model(body.model)
        self.note_unknown(body)
        prompts = body.prompts()
        params = body.sampling(max_tokens)
        check_bias(body, self.engine.encoder.vocab_size)
        ticket = Ticket(self.engine, params, body.stream, tenant)
        salt = self.salt(tenant, body.cache_salt)
        room = Room()
        if body.max_tokens is not None:
            room = Room(params.max_tokens, body.max_tokens_name)

        async def submit() -> None:
            ids = await self.engine.encode(prompts, room)
            check_logprobs(body, params, ids)
            if isinstance(body, CompletionRequest) and body.echo:
                ticket.echoes = await self.engine.encoder.echo(prompts)
                if body.logprobs is not None:
                    ticket.scored = [await self.engine.score(one, body.logprobs) for one in ids]
            await self.engine.submit(ticket, ids, salt)

        await unless_gone(request, submit())
        return ticket


async def get_serving(request: Request) -> Serving:
    """Return the app's `Serving`."""
    return request.app.state.serving


Shared = Annotated[Serving, Depends(get_serving)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def get_tenant(serving: Shared, bearer: Bearer) -> str | None:
    """Return the tenant of a request; None without keys. `ApiError` for an unknown key."""
    return serving.tenant_of(bearer.credentials if bearer else "")


Tenant = Annotated[str | None, Depends(get_tenant)]
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
ANSWERS = ERRORS | {
    200: {
        "description": "one JSON object, or a stream of them",
        "content": {"text/event-stream": {}},
    }
}
router = APIRouter()


# Generation ---------------------------------------------------------------------------------------


@router.post("/v1/completions", responses=ANSWERS)
async def completions(
    request: Request, body: CompletionRequest, serving: Shared, tenant: Tenant
) -> Response:
    """Continue one prompt or several."""
    ticket = await serving.submit(request, body, tenant, COMPLETION_TOKENS)
    begun = dict[int, OfCompletion]()  # by choice
    lengths = Counter[int]()  # of the text of each choice

    def choice(piece: Piece) -> dict[str, Any]:
        if body.max_tokens == 0:  # the engine generates at least one token
            reason = "length" if piece.finish_reason else None
            piece = piece._replace(text="", logprobs=(), finish_reason=reason)
        text = piece.text
        prompt: Sequence[Scored] = ()
        if piece.choice not in begun:
            echo = ticket.echoes[piece.choice // body.n] if body.echo else None
            begun[piece.choice] = OfCompletion(serving.spell, echo)
            if echo is not None:
                text = echo.text + text
                prompt = ticket.scored[piece.choice // body.n] if ticket.scored else ()
        lengths[piece.choice] += len(text)
        if body.logprobs is None:
            return _choice(piece, None, text=text)
        most = lengths[piece.choice] if piece.finish_reason else None
        logprobs = begun[piece.choice](prompt, piece.logprobs, most)
        return _choice(piece, logprobs, text=text)

    return await _answer(
        request, body, ticket, serving.head("cmpl", "text_completion"), choice, choice
    )


@router.post("/v1/chat/completions", responses=ANSWERS)
async def chat_completions(
    request: Request, body: ChatRequest, serving: Shared, tenant: Tenant
) -> Response:
    """Answer a chat with the assistant's next message."""
    begun = set[int]()  # choices that have a piece

    def logprobs(piece: Piece) -> dict[str, Any] | None:
        return of_chat(serving.spell, piece.logprobs) if body.logprobs else None

    def message(piece: Piece) -> dict[str, Any]:
        whole = {"role": "assistant", "content": piece.text, "refusal": None}
        return _choice(piece, logprobs(piece), message=whole)

    def delta(piece: Piece) -> dict[str, Any]:
        role = {} if piece.choice in begun else {"role": "assistant"}
        begun.add(piece.choice)
        return _choice(piece, logprobs(piece), delta={**role, "content": piece.text})

    ticket = await serving.submit(request, body, tenant, serving.default_max_tokens)
    head = serving.head("chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion")
    return await _answer(request, body, ticket, head, message, delta)


def _choice(piece: Piece, logprobs: dict[str, Any] | None, **content: Any) -> dict[str, Any]:
    return {
        "index": piece.choice,
        **content,
        "logprobs": logprobs,
        "finish_reason": piece.finish_reason,
    }


async def _answer(
    request: Request,
    body: Asked,
    ticket: Ticket,
    head: dict[str, Any],
    full: MakeChoice,
    part: MakeChoice,
) -> Response:
    """Return a stream, or the whole answer.

    Args:
        request: the HTTP request. If its client hangs up, the ticket is closed.
        body: of the request.
        ticket: of the request.
        head: the first fields of the answer.
        full: makes a choice of a whole output.
        part: makes a choice of a piece.
    """
    if body.stream:
        return EventStream(ticket, _events(ticket, body, head, part))

    async def end() -> None:
        async for _ in ticket:
            pass

    try:
        await unless_gone(request, end())  # raises the error of the engine's thread, if any
    finally:
        ticket.close()

    def encode() -> bytes:
        choices = list[str]()
        for completion in ticket.completions:
            for output in completion.outputs:
                # Each choice on its own, so that other threads run in between.
                choices.append(json.dumps(full(piece_of(len(choices), output))))
        begin = json.dumps({**head, "usage": _usage(ticket, body)})[:-1]
        return f'{begin}, "choices": [{", ".join(choices)}]}}'.encode()

    # An answer may be megabytes. Encoded in a thread, it hardly delays other clients.
    content = await asyncio.to_thread(encode)
    return Response(content, media_type="application/json")


def check_bias(body: Asked, vocab_size: int) -> None:
    """Raise `ApiError` if logit_bias names a token that the model does not have."""
    for token in body.logit_bias:
        if not 0 <= token < vocab_size:
            raise ApiError(400, f"logit_bias: token ids go from 0 to {vocab_size - 1}, got {token}")


def check_logprobs(body: Asked, params: SamplingParams, prompts: Sequence[Sequence[int]]) -> None:
    """Raise `ApiError` if an answer would have more than `MOST_LOGPROBS` log-probabilities.

    Args:
        body: of the request.
        params: of the request.
        prompts: the token ids of each prompt. With an echo, they have log-probabilities too.
    """
    if params.logprobs is None:
        return
    num_tokens = len(prompts) * params.max_tokens
    tokens = body.max_tokens_name
    if isinstance(body, CompletionRequest) and body.echo:
        num_tokens += sum(map(len, prompts))
        tokens = f"(prompt tokens + {tokens})"
    asked = num_tokens * params.n * (params.logprobs + 1)
    if asked > MOST_LOGPROBS:
        likeliest = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
        raise ApiError(
            400,
            f"prompts * n * {tokens} * ({likeliest} + 1) is {asked:,} "
            f"log-probabilities, and this server gives at most {MOST_LOGPROBS:,} in one answer: "
            "lower one of them",
        )


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. It is cancelled if the client hangs up."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    listening = asyncio.create_task(hang_up())
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client has hung up")  # only the metrics see this
        return await working
    finally:
        working.cancel()
        listening.cancel()


async def _events(
    ticket: Ticket, body: Asked, head: dict[str, Any], part: MakeChoice
) -> AsyncIterator[str]:
    """Yield server-sent events: one for each piece, the usage if requested, and [DONE].

    A stream that fails ends with an event that has the error, and without [DONE].
    """
    counts = bool(body.stream_options and body.stream_options.include_usage)
    usage: dict[str, Any] = {"usage": None} if counts else {}
    try:
        async for pieces in ticket:
            for piece in pieces:
                event = partial(_choice_event, part, piece, head, usage)
                # The log-probabilities of a prompt are megabytes, as in a whole answer.
                yield await asyncio.to_thread(event) if ticket.scored else event()
        if counts:
            yield _event({**head, "choices": [], "usage": _usage(ticket, body)})
    except ApiError as error:  # the status is already sent, so the error is an event
        yield f"data: {bytes(error_response(error).body).decode()}\n\n"
    else:
        yield "data: [DONE]\n\n"


def _choice_event(
    part: MakeChoice, piece: Piece, head: dict[str, Any], usage: dict[str, Any]
) -> str:
    return _event({**head, "choices": [part(piece)], **usage})


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _usage(ticket: Ticket, body: Asked) -> dict[str, int]:
    prompt = sum(len(completion.prompt_token_ids) for completion in ticket.completions)
    new = 0
    if body.max_tokens != 0:  # for 0, the engine's one token is not part of the answer
        for completion in ticket.completions:
            new += sum(len(output.token_ids) for output in completion.outputs)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class EventStream(StreamingResponse):
    """A stream that closes its ticket at its end, when the client hangs up, and on an error.

    Args:
        ticket: of the request.
        events: the events to send.
    """

    def __init__(self, ticket: Ticket, events: AsyncIterator[str]) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticket.close()


# Everything else ----------------------------------------------------------------------------------


@router.get("/v1/models", responses=ERRORS)
async def models(serving: Shared, tenant: Tenant) -> dict[str, Any]:
    """List the loaded model."""
    return {"object": "list", "data": [serving.card]}


@router.get("/v1/models/{model:path}", responses=ERRORS)
async def model(
    model: Annotated[str, Path(description="The name of the model.")],
    serving: Shared,
    tenant: Tenant,
) -> dict[str, Any]:
    """Describe the loaded model."""
    serving.check_model(model)
    return serving.card


@router.get("/health")
async def health(serving: Shared) -> dict[str, str]:
    """Answer as soon as the engine's thread is between two steps."""
    await serving.engine.call(lambda llm: None)
    return {"status": "ok"}


@router.get("/metrics", responses=ERRORS)
async def metrics(serving: Shared, tenant: Tenant) -> Response:
    """Return the figures for Prometheus."""
    text = await serving.engine.call(lambda llm: serving.metrics.text(serving.engine, llm))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/blocks", responses=ERRORS)
async def blocks(
    serving: Shared,
    tenant: Tenant,
    since: Annotated[int, Query(description="The number of the first step.")] = 0,
) -> JSONResponse:
    """Return the data of the live page, from one step on."""
    live = serving.live
    if live is None:
        raise ApiError(404, "this server has no live page")
    return JSONResponse(await serving.engine.call(lambda llm: live.look(llm, tenant, since)))


async def page(request: Request) -> Response:
    """Return a file of the live page.

    The files contain no data. The page reads these from /blocks, with an API key if keys are used.
    """
    media_type, read = request.app.state.serving.live.files[request.url.path]
    policy = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline' data:"}
    return Response(read(), media_type=media_type, headers=policy)


# The app ------------------------------------------------------------------------------------------


def _tenants(api_keys: Mapping[str, str] | Iterable[str] | None) -> dict[str, str] | None:
    """Return the tenant of each key, by the key's digest; None without keys.

    Without a mapping, each key is its own tenant. Only digests are stored, and the time of a
    look-up does not depend on how much of a key is right.
    """
    if api_keys is None:
        return None
    keys = [] if isinstance(api_keys, str) else list(api_keys)
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ValueError(
            "api_keys is a list of keys, or a mapping from keys to tenants: at least one, and none "
            "empty"
        )
    if isinstance(api_keys, Mapping):
        return {_digest(key): api_keys[key] for key in keys}
    return {_digest(key): _digest(key) for key in keys}


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def create_app(  # noqa: PLR0913 - the options of the server
    llm: LLM,
    *,
    api_keys: Mapping[str, str] | Iterable[str] | None = None,
    salt: SaltFor = salt_for,
    max_waiting: int = 128,
    default_max_tokens: int = 256,
    allowed_hosts: Iterable[str] | None = LOOPBACK,
    plain_content: bool = False,
    loop: Loop = run_loop,
    live_page: Callable[[Names | None], LivePage] | None = None,
) -> FastAPI:
    """Return an app that serves an engine, and owns it from startup to shutdown.

    Args:
        llm: the engine.
        api_keys: accepted keys; None for no keys. A mapping names the tenant of each key.
            Otherwise each key is its own tenant.
        salt: makes the prefix cache's salt of (tenant, the request's cache_salt), see `salt_for`.
        max_waiting: requests that may wait for their first step; further ones get status 429.
        default_max_tokens: new tokens of a chat that does not say.
        allowed_hosts: names that the server answers to; None for any.
        plain_content: special tokens in the text of a chat message, such as <|im_end|>, are plain
            text. Otherwise they are special tokens, as in vLLM, so a user's message can end itself
            and begin another one.
        loop: the loop of the engine's thread, see `run_loop`.
        live_page: makes a page that shows the blocks; None for no page. pagedlab_lessons has one.
    """
    default_max_tokens = integer("default_max_tokens", default_max_tokens, 1)
    tenants = _tenants(api_keys)
    metrics = Metrics()
    engine = EngineThread(llm, max_waiting, metrics.observe, loop, plain_content)
    live = None
    if live_page is not None:
        live = live_page(None if tenants is None else engine.names)
    card = {
        "id": llm.model.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pagedlab",
    }
    serving = Serving(
        engine,
        live,
        metrics,
        card,
        tenants,
        salt,
        default_max_tokens,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    app = FastAPI(title="pagedlab", lifespan=lifespan, redoc_url=None)
    app.state.serving = serving
    app.include_router(router)
    for path in live.files if live is not None else ():
        app.add_api_route(path, page, include_in_schema=False, response_model=None)
    hosts = None if allowed_hosts is None else tuple(allowed_hosts)
    app.add_middleware(
        Gate, hosts=hosts, max_bytes=MAX_BODY_BYTES, metrics=metrics, refuse_key=serving.refuse_key
    )
    for kind in EXPECTED:
        app.add_exception_handler(kind, lambda request, error: error_response(error))
    return app
