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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import Receive, Scope, Send

from pagedlab.arguments import integer
from pagedlab.engine import LLM
from pagedlab_serve.engine_thread import LOG, EngineThread, Loop, Piece, Ticket, piece_of, run_loop
from pagedlab_serve.gate import Gate
from pagedlab_serve.logprobs import Places, Scored, of_chat, of_completion
from pagedlab_serve.metrics import Metrics
from pagedlab_serve.openai_api import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    ErrorBody,
    error_response,
)
from pagedlab_serve.prompts import Encoder

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COMPLETION_TOKENS = 16  # new tokens of a completion whose request does not say, as with OpenAI
MOST_LOGPROBS = 250_000  # in one answer; about 20 MB of JSON
MOST_NOTED = 100  # unknown fields that the log names
MOST_NAME = 80  # characters of the name of such a field
PLACE = b'<div id="swagger-ui">'  # what the script of /docs fills
NO_SCRIPT = (
    b"<p>The script of this page comes from cdn.jsdelivr.net. Without it, "
    b'<a href="openapi.json">openapi.json</a> lists the same paths and fields.</p>'
)

T = TypeVar("T")
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

    def look(self, llm: LLM, since: int) -> dict[str, Any]:
        """Return the steps that the page does not have yet."""


@dataclass
class Serving:
    """The parts of an app that its handlers share.

    Args:
        engine: the engine's thread.
        encoder: makes token ids of prompts.
        live: the live page, if it is installed.
        metrics: figures for Prometheus.
        card: the model, in OpenAI's form.
        tenants: digest of a key -> its tenant; None without keys.
        salt: makes the prefix cache's salt of (tenant, the request's cache_salt).
        default_max_tokens: new tokens of a chat that does not say.
        noted: unknown fields that the log has named.
    """

    engine: EngineThread
    encoder: Encoder
    live: LivePage | None
    metrics: Metrics
    card: dict[str, Any]
    tenants: Mapping[str, str] | None
    salt: SaltFor
    default_max_tokens: int
    noted: set[str] = field(default_factory=set)

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` if the request names another model than the loaded one."""
        if name not in (None, self.card["id"]):
            message = f"there is no model {name!r} here; there is {self.card['id']!r}"
            raise ApiError(404, message, "model", "model_not_found")

    def check_sizes(self, body: Asked, prompts: list[list[int]], max_tokens: int) -> None:
        """Raise `ApiError` for an unknown token in logit_bias, or for too many log-probabilities.

        Args:
            body: of the request.
            prompts: the token ids of each prompt.
            max_tokens: new tokens, at most.
        """
        most = self.encoder.vocab_size - 1
        if not all(0 <= token <= most for token in body.logit_bias):
            raise ApiError(400, f"a token id goes from 0 to {most}", "logit_bias")
        echoed = sum(map(len, prompts)) if isinstance(body, CompletionRequest) and body.echo else 0
        tokens = body.n * (echoed + len(prompts) * max_tokens)
        if body.top is not None and tokens * (body.top + 1) > MOST_LOGPROBS:
            raise ApiError(
                400,
                f"the answer could have {tokens * (body.top + 1):,} log-probabilities, and this "
                f"server gives {MOST_LOGPROBS:,} at most: ask for fewer tokens, or fewer of each",
                "logprobs",
            )

    def note_unknown(self, body: Asked) -> None:
        """Name the fields that this server does not know in its log, each once."""
        for name in [*(body.model_extra or ()), *(body.stream_options.model_extra or ())]:
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


async def get_serving(request: Request) -> Serving:
    """Return the app's `Serving`."""
    return request.app.state.serving


Shared = Annotated[Serving, Depends(get_serving)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def get_tenant(serving: Shared, bearer: Bearer) -> str | None:
    """Return the tenant of a request; None without keys. `ApiError` for an unknown key."""
    if serving.tenants is None:
        return None
    tenant = serving.tenants.get(_digest(bearer.credentials)) if bearer else None
    if tenant is None:
        raise ApiError(
            401,
            "this server asks for an API key that it knows: send 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return tenant


Tenant = Annotated[str | None, Depends(get_tenant)]
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
router = APIRouter(responses=ERRORS)


# Generation ---------------------------------------------------------------------------------------


@dataclass
class Echo:
    """A prompt at the beginning of a completion.

    Args:
        text: the text.
        tokens: the log-probabilities; empty if they are not asked for.
    """

    text: str
    tokens: list[Scored]


@router.post("/v1/completions", response_model=None)
async def completions(
    request: Request, body: CompletionRequest, serving: Shared, tenant: Tenant
) -> Response:
    """Continue one prompt or several."""
    ticket, echoes = await _submit(request, serving, body, tenant, COMPLETION_TOKENS)
    spell = serving.encoder.spell
    places = dict[int, Places]()  # by choice, from its first piece on

    def choice(piece: Piece) -> dict[str, Any]:
        text = piece.text
        tokens: list[Scored] = [(each.token_id, each) for each in piece.logprobs]
        if piece.choice not in places:
            places[piece.choice] = Places(spell)
            if body.echo:
                echo = echoes[piece.choice // body.n]
                text = echo.text + text
                tokens = echo.tokens + tokens
        logprobs = None
        if body.logprobs is not None:
            logprobs = of_completion(spell, places[piece.choice], tokens)
        return _choice(piece, logprobs, text=text)

    head = serving.head("cmpl", "text_completion")
    return await _answer(request, body, ticket, head, choice, choice)


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(
    request: Request, body: ChatRequest, serving: Shared, tenant: Tenant
) -> Response:
    """Answer a chat with the assistant's next message."""
    ticket, _ = await _submit(request, serving, body, tenant, serving.default_max_tokens)
    begun = set[int]()  # choices that have a piece

    def logprobs(piece: Piece) -> dict[str, Any] | None:
        return of_chat(serving.encoder.spell, piece.logprobs) if body.logprobs else None

    def message(piece: Piece) -> dict[str, Any]:
        whole = {"role": "assistant", "content": piece.text, "refusal": None}
        return _choice(piece, logprobs(piece), message=whole)

    def delta(piece: Piece) -> dict[str, Any]:
        role = {} if piece.choice in begun else {"role": "assistant"}
        begun.add(piece.choice)
        return _choice(piece, logprobs(piece), delta={**role, "content": piece.text})

    head = serving.head("chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion")
    return await _answer(request, body, ticket, head, message, delta)


def _choice(piece: Piece, logprobs: dict[str, Any] | None, **content: Any) -> dict[str, Any]:
    return {
        "index": piece.choice,
        **content,
        "logprobs": logprobs,
        "finish_reason": piece.finish_reason,
    }


async def _submit(
    request: Request, serving: Serving, body: Asked, tenant: str | None, max_tokens: int
) -> tuple[Ticket, list[Echo]]:
    """Queue the prompts of a request, and return what a completion gives back of them.

    Args:
        request: the HTTP request.
        serving: the parts of the app.
        body: of the request.
        tenant: the owner of its API key.
        max_tokens: new tokens, at most, if the body does not say.

    Raises:
        ApiError: If the body is invalid, or the queue is full.
    """
    serving.check_model(body.model)
    serving.note_unknown(body)
    try:
        params = body.sampling(max_tokens)
        ticket = Ticket(serving.engine, params, body.stream)
        prompts = body.prompts()
        echoes = list[Echo]()

        async def submit() -> None:
            ids = await serving.encoder.encode(prompts)
            serving.check_sizes(body, ids, params.max_tokens)
            if isinstance(body, CompletionRequest) and body.echo:
                for prompt, own in zip(prompts, ids, strict=True):
                    text = await serving.encoder.text(prompt)
                    top = body.logprobs
                    tokens = [] if top is None else await serving.engine.score(own, top)
                    echoes.append(Echo(text, tokens))
            await serving.engine.submit(ticket, ids, serving.salt(tenant, body.cache_salt))

        await unless_gone(request, ticket, submit())
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return ticket, echoes


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
        request: the HTTP request.
        body: of the request.
        ticket: of the request.
        head: the first fields of the answer.
        full: makes a choice of a whole output.
        part: makes a choice of a piece.
    """
    if body.stream:
        return EventStream(ticket, _events(ticket, body, head, part))

    def encode() -> str:
        outputs = [output for completion in ticket.completions for output in completion.outputs]
        choices = [full(piece_of(i, output, output.text)) for i, output in enumerate(outputs)]
        return json.dumps({**head, "choices": choices, "usage": _usage(ticket)})

    await unless_gone(request, ticket, ticket.end())
    # An answer may be megabytes. Encoded in a thread, it hardly delays other clients.
    return Response(await asyncio.to_thread(encode), media_type="application/json")


async def unless_gone(request: Request, ticket: Ticket, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client hangs up before, the ticket is closed."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    listening = asyncio.create_task(hang_up())
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client has hung up")  # only the metrics see this
        return working.result()
    finally:
        listening.cancel()
        if not working.done():
            working.cancel()
            ticket.close()


async def _events(
    ticket: Ticket, body: Asked, head: dict[str, Any], part: MakeChoice
) -> AsyncIterator[str]:
    """Yield server-sent events: one for each piece, the usage if requested, and [DONE].

    A stream that fails ends with an event that has the error, and without [DONE].
    """
    counts = body.stream_options.include_usage
    usage = {"usage": None} if counts else {}
    try:
        async for pieces in ticket:
            for piece in pieces:
                yield _event({**head, "choices": [part(piece)], **usage})
        if counts:
            yield _event({**head, "choices": [], "usage": _usage(ticket)})
    except ApiError as error:  # the status is already sent, so the error is an event
        yield _event(error.body.model_dump())
    else:
        yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _usage(ticket: Ticket) -> dict[str, int]:
    prompt = sum(len(completion.prompt_token_ids) for completion in ticket.completions)
    outputs = [output for completion in ticket.completions for output in completion.outputs]
    new = sum(len(output.token_ids) for output in outputs)
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


@router.get("/v1/models")
async def models(serving: Shared, tenant: Tenant) -> dict[str, Any]:
    """List the loaded model."""
    return {"object": "list", "data": [serving.card]}


@router.get("/v1/models/{model:path}")
async def model(model: str, serving: Shared, tenant: Tenant) -> dict[str, Any]:
    """Describe the loaded model."""
    serving.check_model(model)
    return serving.card


@router.get("/health")
async def health(serving: Shared) -> dict[str, str]:
    """Answer as soon as the engine's thread is between two steps."""
    await serving.engine.call(lambda llm: None)
    return {"status": "ok"}


@router.get("/metrics")
async def metrics(serving: Shared, tenant: Tenant) -> Response:
    """Return the figures for Prometheus."""
    text = await serving.engine.call(lambda llm: serving.metrics.text(serving.engine, llm))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/blocks")
async def blocks(serving: Shared, tenant: Tenant, since: int = 0) -> JSONResponse:
    """Return the data of the live page, from the step `since` on."""
    live = serving.live
    if live is None:
        raise ApiError(404, "this server has no live page")
    return JSONResponse(await serving.engine.call(lambda llm: live.look(llm, since)))


@router.get("/docs", include_in_schema=False)
async def reference() -> Response:
    """Return the page that lists every path and field, as FastAPI has it."""
    html = get_swagger_ui_html(openapi_url="openapi.json", title="pagedlab")
    return Response(bytes(html.body).replace(PLACE, PLACE + NO_SCRIPT), media_type="text/html")


async def page(request: Request) -> Response:
    """Return a file of the live page. The page reads its data from /blocks."""
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


def create_app(
    llm: LLM,
    *,
    api_keys: Mapping[str, str] | Iterable[str] | None = None,
    salt: SaltFor = salt_for,
    max_waiting: int = 128,
    default_max_tokens: int = 256,
    allowed_hosts: Iterable[str] | None = LOOPBACK,
    loop: Loop = run_loop,
    live_page: Callable[[], LivePage] | None = None,
) -> FastAPI:
    """Return an app that serves an engine, and owns it from startup to shutdown.

    Args:
        llm: the engine.
        api_keys: accepted keys; None for no keys. A mapping names the tenant of each key.
            Otherwise each key is its own tenant.
        salt: makes the prefix cache's salt of (tenant, the request's cache_salt), see `salt_for`.
        max_waiting: requests that may wait for their first step; further ones get status 429.
        default_max_tokens: new tokens of a chat that does not say.
        allowed_hosts: names that the server answers to; None for any. A page on the web can point
            its own name at 127.0.0.1, so that your browser sends requests with that name.
        loop: the loop of the engine's thread, see `run_loop`.
        live_page: makes a page that shows all words and blocks; None for no page. With keys there
            is none. pagedlab_lessons has one.
    """
    default_max_tokens = integer("default_max_tokens", default_max_tokens, 1)
    tenants = _tenants(api_keys)
    metrics = Metrics()
    engine = EngineThread(llm, max_waiting, metrics.observe, loop)
    live = live_page() if live_page and tenants is None else None
    card = {
        "id": llm.model.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pagedlab",
    }

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    app = FastAPI(title="pagedlab", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.serving = Serving(
        engine, Encoder(llm.model), live, metrics, card, tenants, salt, default_max_tokens
    )
    app.include_router(router)
    for path in live.files if live is not None else ():
        app.add_api_route(path, page, include_in_schema=False, response_model=None)
    hosts = ["*"] if allowed_hosts is None else list(allowed_hosts)
    app.add_middleware(Gate, metrics=metrics)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    for kind in (ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, lambda request, error: error_response(error))
    return app
