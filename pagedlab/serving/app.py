"""The engine behind OpenAI's HTTP interface: completions, chats, streams, errors, metrics, and a live page.

    app = create_app(LLM())        # python -m pagedlab.serving does this and listens on 127.0.0.1:8000

A handler turns a request into engine prompts, waits for the pieces that the engine's thread sends back, and closes
its ticket whatever happens: a client that hangs up has its request aborted and its blocks freed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Receive, Scope, Send

from pagedlab.engine import LLM
from pagedlab.serving.engine_thread import (
    BadPrompt,
    EngineError,
    EngineThread,
    Loop,
    Piece,
    QueueFull,
    Ticket,
    run_loop,
)
from pagedlab.serving.gate import Gate, error_response
from pagedlab.serving.metrics import Metrics
from pagedlab.serving.openai_api import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    ErrorBody,
    GenerationRequest,
    explain_invalid,
)

if TYPE_CHECKING:
    from pagedlab.widgets.engine_view import EngineView

WIDGETS = Path(__file__).parents[1] / "widgets"
PAGE = {"/": "live_page.html", "/block_grid.js": "block_grid.js", "/block_grid.css": "block_grid.css"}

LOOPBACK = ("127.0.0.1", "localhost", "::1")
RETRY_AFTER = 1  # seconds that a client is told to wait when the queue is full

SaltFor = Callable[[str | None, str | None], str | None]


def salt_for(tenant: str | None, cache_salt: str | None) -> str | None:
    """The salt of a request's blocks: requests share them only if tenant and cache_salt are both the same.

    tenant: whose API key it is, None where there are no keys. cache_salt: what the request itself asks for. Both are
    written down so that they can be told apart again; glued together, "a" + "bc" would be "ab" + "c".
    """
    return None if tenant is None and cache_salt is None else json.dumps([tenant, cache_salt])


class Serving:
    """What the handlers of one app share."""

    def __init__(
        self,
        llm: LLM,
        tenants: Mapping[str, str] | None,
        salt: SaltFor,
        max_waiting: int,
        default_max_tokens: int,
        loop: Loop,
    ) -> None:
        self.name = llm.model.name
        self.created = int(time.time())
        self.metrics = Metrics()
        self.engine = EngineThread(llm, max_waiting, self.metrics.observe, loop)
        self.view = _view(llm, words=tenants is None)
        self.default_max_tokens = default_max_tokens
        self._tenants = tenants
        self._salt = salt

    def tenant(self, key: str | None) -> str | None:
        """Whose key this is. `ApiError` if keys are asked for and this is none of them."""
        if self._tenants is None:
            return None
        found = None
        for known, tenant in self._tenants.items():  # all of them: how long it takes says nothing about which
            if secrets.compare_digest(known.encode(), (key or "").encode()):
                found = tenant
        if found is None:
            said = "this API key is not known" if key else "this server asks for an API key"
            hint = f"{said}: send one as 'Authorization: Bearer KEY'"
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, hint, type="authentication_error", code="invalid_api_key", headers=challenge)
        return found

    def check_model(self, name: str) -> None:
        """`ApiError` for any model but the one that is loaded."""
        if name != self.name:
            message = f"there is no model {name!r} here; there is {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def submit(self, body: CompletionRequest | ChatRequest, tenant: str | None, max_tokens: int) -> Ticket:
        """Queue what was asked for; `ApiError` if that cannot be."""
        self.check_model(body.model)
        try:
            salt = self._salt(tenant, body.cache_salt)
            return await self.engine.submit(body.prompts(), body.sampling(max_tokens), stream=body.stream, salt=salt)
        except QueueFull as error:
            wait = {"Retry-After": str(RETRY_AFTER)}
            raise ApiError(429, str(error), type="rate_limit_error", code="queue_full", headers=wait) from None
        except ValueError as error:
            where = "messages" if isinstance(body, ChatRequest) else "prompt"
            raise ApiError(400, str(error), param=where if isinstance(error, BadPrompt) else None) from None


def _view(llm: LLM, words: bool) -> EngineView | None:
    """What the live page shows; None where there are no widgets to draw it."""
    if find_spec("pagedlab.widgets") is None:
        return None
    from pagedlab.widgets.engine_view import EngineView  # not before: the rest of the server does without widgets

    return EngineView(llm, words=words)


async def get_serving(request: Request) -> Serving:
    """The app's `Serving`."""
    return request.app.state.serving


Shared = Annotated[Serving, Depends(get_serving)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def get_tenant(serving: Shared, bearer: Bearer) -> str | None:
    """Whose request this is, None where there are no keys."""
    return serving.tenant(bearer.credentials if bearer else None)


Tenant = Annotated[str | None, Depends(get_tenant)]
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "503": {"model": ErrorBody}}
ANSWERS = ERRORS | {200: {"description": "one JSON object, or a stream of them", "content": {"text/event-stream": {}}}}
router = APIRouter()


# Generation ---------------------------------------------------------------------------------------------------


@router.post("/v1/completions", responses=ANSWERS)
async def completions(request: Request, body: CompletionRequest, serving: Shared, tenant: Tenant) -> Response:
    """Continue one prompt or several. 16 new tokens unless max_tokens says otherwise, as with OpenAI."""

    def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    ticket = await serving.submit(body, tenant, 16)
    head = _head("cmpl", "text_completion", body)
    if body.stream:
        return EventStream(ticket, _events(ticket, body, head, lambda piece: [choice(*piece)]))
    return await _whole(request, ticket, head, choice)


@router.post("/v1/chat/completions", responses=ANSWERS)
async def chat_completions(request: Request, body: ChatRequest, serving: Shared, tenant: Tenant) -> Response:
    """The assistant's next turn."""

    def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}

    def delta(index: int, content: dict[str, str], reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": content, "logprobs": None, "finish_reason": reason}

    begun: set[int] = set()

    def deltas(piece: Piece) -> list[dict[str, Any]]:
        index, text, reason = piece
        opening = [] if index in begun else [delta(index, {"role": "assistant", "content": ""}, None)]
        begun.add(index)
        middle = [delta(index, {"content": text}, None)] if text else []
        closing = [delta(index, {}, reason)] if reason else []
        return opening + middle + closing

    ticket = await serving.submit(body, tenant, serving.default_max_tokens)
    if body.stream:
        return EventStream(ticket, _events(ticket, body, _head("chatcmpl", "chat.completion.chunk", body), deltas))
    return await _whole(request, ticket, _head("chatcmpl", "chat.completion", body), choice)


def _head(prefix: str, kind: str, body: GenerationRequest) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": body.model}


def _usage(ticket: Ticket) -> dict[str, int]:
    prompt = sum(len(completion.prompt_token_ids) for completion in ticket.completions)
    new = sum(len(output.token_ids) for completion in ticket.completions for output in completion.outputs)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


async def _whole(
    request: Request, ticket: Ticket, head: dict[str, Any], choice: Callable[[int, str, str | None], dict[str, Any]]
) -> Response:
    """Wait for the end, or for the client to hang up."""

    async def end() -> None:
        async for _ in ticket:
            pass

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(end()), asyncio.create_task(hang_up())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            return Response(status_code=499)  # nobody reads it
        await tasks[0]  # raises what the engine's thread sent
    finally:
        for task in tasks:
            task.cancel()
        ticket.close()
    outputs = [output for completion in ticket.completions for output in completion.outputs]
    choices = [choice(i, output.text, output.finish_reason) for i, output in enumerate(outputs)]
    return JSONResponse({**head, "choices": choices, "usage": _usage(ticket)})


async def _events(
    ticket: Ticket, body: GenerationRequest, head: dict[str, Any], choices: Callable[[Piece], list[dict[str, Any]]]
) -> AsyncIterator[str]:
    """Server-sent events: one for each choice's piece, the usage if it was asked for, and [DONE]."""
    counts = bool(body.stream_options and body.stream_options.include_usage)
    usage: dict[str, Any] = {"usage": None} if counts else {}
    try:
        async for pieces in ticket:
            for piece in pieces:
                for choice in choices(piece):
                    yield _event({**head, "choices": [choice], **usage})
        if counts:
            yield _event({**head, "choices": [], "usage": _usage(ticket)})
    except EngineError as error:  # the status is sent already, so it comes as an event
        yield _event(_engine_failed(error).body.model_dump())
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


class EventStream(StreamingResponse):
    """A stream that closes its ticket at the end, when the client hangs up, and when anything fails."""

    def __init__(self, ticket: Ticket, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticket.close()


# Everything else ----------------------------------------------------------------------------------------------


@router.get("/v1/models", responses=ERRORS)
async def models(serving: Shared, tenant: Tenant) -> dict[str, Any]:
    """The one model that is loaded."""
    return {"object": "list", "data": [_card(serving)]}


@router.get("/v1/models/{model:path}", responses=ERRORS)
async def model(model: str, serving: Shared, tenant: Tenant) -> dict[str, Any]:
    """The one model that is loaded, by its name."""
    serving.check_model(model)
    return _card(serving)


def _card(serving: Serving) -> dict[str, Any]:
    return {"id": serving.name, "object": "model", "created": serving.created, "owned_by": "pagedlab"}


@router.get("/health")
async def health(serving: Shared) -> dict[str, str]:
    """Answers as soon as the engine's thread is between two steps."""
    await serving.engine.call(lambda llm: None)
    return {"status": "ok"}


@router.get("/metrics", responses=ERRORS)
async def metrics(serving: Shared, tenant: Tenant) -> Response:
    """Counters for Prometheus."""
    text = await serving.engine.call(lambda llm: serving.metrics.text(serving.engine, llm))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/blocks", responses=ERRORS)
async def blocks(serving: Shared, tenant: Tenant) -> JSONResponse:
    """What the live page shows: every block's count, and who holds which."""
    if (view := serving.view) is None:
        raise ApiError(404, "this server was installed without its live page")
    return JSONResponse(await serving.engine.call(lambda llm: view.frame()))


async def page(request: Request) -> FileResponse:
    """A file of the live page. It holds no data; those come from /blocks, with a key where keys are asked for."""
    policy = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline' data:"}
    return FileResponse(WIDGETS / PAGE[request.url.path], headers=policy)


# The app ------------------------------------------------------------------------------------------------------


def _engine_failed(error: EngineError) -> ApiError:
    return ApiError(503, str(error), type="server_error", code="engine_error")


def _http_error(error: StarletteHTTPException) -> ApiError:
    said = {404: "there is nothing at this path", 405: "this path does not take this method"}
    return ApiError(error.status_code, said.get(error.status_code, str(error.detail)), headers=error.headers)  # type: ignore[arg-type]


def _invalid(error: RequestValidationError) -> ApiError:
    message, param = explain_invalid(error.errors())
    return ApiError(400, message, param=param)


def _tenants(api_keys: Mapping[str, str] | Iterable[str] | None) -> dict[str, str] | None:
    """Key -> tenant. A key that names no tenant is one of its own; its hash stands for it, so that it lies nowhere."""
    if api_keys is None:
        return None
    keys = [] if isinstance(api_keys, str) else list(api_keys)
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ValueError("api_keys is a list of keys, or a mapping from keys to tenants: at least one, and none empty")
    return (
        dict(api_keys) if isinstance(api_keys, Mapping) else {k: hashlib.sha256(k.encode()).hexdigest() for k in keys}
    )


def create_app(
    llm: LLM,
    *,
    api_keys: Mapping[str, str] | Iterable[str] | None = None,
    salt: SaltFor = salt_for,
    max_waiting: int = 128,
    default_max_tokens: int = 256,
    max_body_bytes: int = 1 << 20,
    allowed_hosts: Iterable[str] | None = LOOPBACK,
    loop: Loop = run_loop,
) -> FastAPI:
    """An app that serves `llm`, which is the app's own from startup to shutdown.

    api_keys: who may come in; a mapping says which tenant each key belongs to, otherwise each is one of its own.
    salt: makes the prefix cache's salt of (tenant, the request's cache_salt), see `salt_for`. max_waiting: requests
    that may wait for their first step before others get 429. default_max_tokens: of a chat that does not say.
    allowed_hosts: names that the server answers to, None for any. loop: what the engine's thread does, see `run_loop`.
    """
    if default_max_tokens < 1:
        raise ValueError(f"default_max_tokens must be at least 1, got {default_max_tokens}")
    serving = Serving(llm, _tenants(api_keys), salt, max_waiting, default_max_tokens, loop)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        serving.engine.start()
        yield
        await asyncio.to_thread(serving.engine.stop)

    app = FastAPI(title="pagedlab", lifespan=lifespan, docs_url=None, redoc_url=None)  # their pages load scripts
    app.state.serving = serving
    app.include_router(router)
    for path in PAGE if serving.view else ():
        app.add_api_route(path, page, include_in_schema=False, response_model=None)
    hosts = None if allowed_hosts is None else tuple(allowed_hosts)
    app.add_middleware(Gate, hosts=hosts, max_bytes=max_body_bytes, metrics=serving.metrics)
    as_error: dict[Any, Callable[[Any], ApiError]] = {
        ApiError: lambda error: error,
        EngineError: _engine_failed,
        RequestValidationError: _invalid,
        StarletteHTTPException: _http_error,
    }
    for kind, convert in as_error.items():
        app.add_exception_handler(kind, _handler(convert))
    return app


def _handler(convert: Callable[[Any], ApiError]) -> Callable[[Request, Exception], Response]:
    return lambda request, error: error_response(convert(error))
