"""The engine behind OpenAI's HTTP interface: completions, chats, streams, errors, metrics, and a
live page.

    app = create_app(LLM())        # python -m pagedlab.serving does this and listens on 127.0.0.1:8000

A handler turns a request into engine prompts, waits for the pieces that the engine's thread sends
back, and closes its ticket whatever happens: a client that hangs up has its request aborted and its
blocks freed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from pagedlab.llm import LLM
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.serving.engine_thread import EngineThread, Loop, Piece, Ticket, piece_of, run_loop
from pagedlab.serving.gate import EXPECTED, Gate, error_response
from pagedlab.serving.logprobs import OfCompletion, Spelling, of_chat
from pagedlab.serving.metrics import Metrics
from pagedlab.serving.openai_api import ApiError, ChatRequest, CompletionRequest, ErrorBody
from pagedlab.validation import integer

if TYPE_CHECKING:
    from pagedlab.serving.live_page import LivePage

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_LOGPROBS = 250_000  # of one answer: about 20 MB of JSON

T = TypeVar("T")
SaltFor = Callable[[str | None, str | None], str | None]
Asked = CompletionRequest | ChatRequest
Choice = Callable[[Piece], dict[str, Any]]


def salt_for(tenant: str | None, cache_salt: str | None) -> str | None:
    """The salt of a request's blocks: requests share them only if tenant and cache_salt are both
    the same.

    written down so that they can be told apart again; glued together, "a" + "bc" would be "ab" +
    "c".

    Args:
        tenant: whose API key it is, None where there are no keys. cache_salt: what the request
            itself asks for. Both are
    """
    return None if tenant is None and cache_salt is None else json.dumps([tenant, cache_salt])


@dataclass
class Serving:
    """What the handlers of one app share. tenants: by the digest of their keys, None where there
    are no keys.
    """

    engine: EngineThread
    live: LivePage | None
    metrics: Metrics
    card: dict[str, Any]
    tenants: Mapping[str, str] | None
    salt: SaltFor
    default_max_tokens: int
    spell: Spelling

    def tenant_of(self, key: str) -> str | None:
        """The tenant that the key belongs to; None where there are no keys.

        `ApiError` for an unknown key.
        """
        if self.tenants is None:
            return None
        tenant = self.tenants.get(_digest(key))
        if tenant is None:
            said = "this API key is not known" if key else "this server asks for an API key"
            raise ApiError(
                401,
                f"{said}: send one as 'Authorization: Bearer KEY'",
                {"WWW-Authenticate": "Bearer"},
                type="authentication_error",
                code="invalid_api_key",
            )
        return tenant

    def refuse_key(self, authorization: str) -> ApiError | None:
        """The error for the value of an Authorization header; None if it may pass."""
        scheme, _, key = authorization.partition(" ")
        try:
            self.tenant_of(key.strip() if scheme.lower() == "bearer" else "")
        except ApiError as error:
            return error
        return None

    def check_model(self, name: str | None) -> None:
        """`ApiError` for any model but the one that is loaded, which is meant if none is named."""
        if name not in (None, self.card["id"]):
            message = f"there is no model {name!r} here; there is {self.card['id']!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def head(self, prefix: str, kind: str) -> dict[str, Any]:
        """What every answer begins with."""
        name, now = self.card["id"], int(time.time())
        return {"id": f"{prefix}-{uuid4().hex}", "object": kind, "created": now, "model": name}

    async def submit(
        self, request: Request, body: Asked, tenant: str | None, max_tokens: int
    ) -> Ticket:
        """Queue what was asked for; `ApiError` if that cannot be. max_tokens: at most, if the body
        does not say.
        """
        self.check_model(body.model)
        prompts = body.prompts()
        params = body.sampling(max_tokens)
        check_logprobs(params, len(prompts))
        ticket = Ticket(self.engine, params, body.stream, tenant)
        salt, clamp = self.salt(tenant, body.cache_salt), body.max_tokens is None
        await unless_gone(request, self.engine.submit(ticket, prompts, salt, clamp))
        return ticket


async def get_serving(request: Request) -> Serving:
    """The app's `Serving`."""
    return request.app.state.serving


Shared = Annotated[Serving, Depends(get_serving)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def get_tenant(serving: Shared, bearer: Bearer) -> str | None:
    """Whose request this is, None where there are no keys.

    `ApiError` if keys are asked for and it has none.
    """
    return serving.tenant_of(bearer.credentials if bearer else "")


Tenant = Annotated[str | None, Depends(get_tenant)]
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "503": {"model": ErrorBody}}
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
    """Continue one prompt or several. 16 new tokens unless max_tokens says otherwise, as with
    OpenAI.
    """

    likely, begun = OfCompletion(serving.spell), set[int]()

    def choice(piece: Piece) -> dict[str, Any]:
        if body.max_tokens == 0:  # the engine writes one token at least
            piece = piece._replace(text="", said=(), finish_reason=piece.finish_reason and "length")
        text = piece.text
        tokens: list[tuple[int, TokenLogprob | None]] = [
            (said.token_id, said) for said in piece.said
        ]
        if body.echo and piece.choice not in begun:
            begun.add(piece.choice)
            prompt = body.prompts()[piece.choice // body.n]
            text = (
                prompt if isinstance(prompt, str) else serving.spell.tokenizer.decode(prompt)
            ) + text
            tokens = [*piece.prompt, *tokens]
        return _choice(
            piece, None if body.logprobs is None else likely(piece.choice, tokens), text=text
        )

    ticket = await serving.submit(request, body, tenant, 16)
    return await _answer(
        request, body, ticket, serving.head("cmpl", "text_completion"), choice, choice
    )


@router.post("/v1/chat/completions", responses=ANSWERS)
async def chat_completions(
    request: Request, body: ChatRequest, serving: Shared, tenant: Tenant
) -> Response:
    """The assistant's next turn."""
    begun: set[int] = set()

    def likely(piece: Piece) -> dict[str, Any] | None:
        return of_chat(serving.spell, piece.said) if body.logprobs else None

    def message(piece: Piece) -> dict[str, Any]:
        return _choice(
            piece,
            likely(piece),
            message={"role": "assistant", "content": piece.text, "refusal": None},
        )

    def delta(piece: Piece) -> dict[str, Any]:
        role = {} if piece.choice in begun else {"role": "assistant"}
        begun.add(piece.choice)
        return _choice(piece, likely(piece), delta={**role, "content": piece.text})

    ticket = await serving.submit(request, body, tenant, serving.default_max_tokens)
    head = serving.head("chatcmpl", "chat.completion" + ".chunk" * body.stream)
    return await _answer(request, body, ticket, head, message, delta)


def _choice(piece: Piece, logprobs: dict[str, Any] | None, **said: Any) -> dict[str, Any]:
    return {
        "index": piece.choice,
        **said,
        "logprobs": logprobs,
        "finish_reason": piece.finish_reason,
    }


async def _answer(
    request: Request, body: Asked, ticket: Ticket, head: dict[str, Any], full: Choice, part: Choice
) -> Response:
    """A stream of parts, or all of it, unless the client hangs up before."""
    if body.stream:
        return EventStream(ticket, _events(ticket, body, head, part))

    async def end() -> None:
        async for _ in ticket:
            pass

    try:
        await unless_gone(request, end())  # raises what the engine's thread sent
    finally:
        ticket.close()
    outputs = [
        (output, completion) for completion in ticket.completions for output in completion.outputs
    ]

    def written() -> bytes:
        # one by one: others get on
        choices = (json.dumps(full(piece_of(i, *each))) for i, each in enumerate(outputs))
        begin = json.dumps({**head, "usage": _usage(ticket, body)})[:-1]
        return f'{begin}, "choices": [{", ".join(choices)}]}}'.encode()

    # Log-probabilities are megabytes. In a thread of their own they hold up no other client for
    # long.
    body_bytes = await asyncio.to_thread(written) if ticket.params.reports_logprobs else written()
    return Response(body_bytes, media_type="application/json")


def check_logprobs(params: SamplingParams, num_prompts: int) -> None:
    """`ApiError` if an answer would have more log-probabilities than `MOST_LOGPROBS`."""
    if params.logprobs is None:
        return
    asked = num_prompts * params.n * params.max_tokens * (params.logprobs + 1)
    if asked > MOST_LOGPROBS:
        raise ApiError(
            400,
            f"n * max_tokens * (top_logprobs + 1) is {asked:,} log-probabilities and this server "
            "gives at most "
            f"{MOST_LOGPROBS:,} in one answer: lower one of the three",
        )


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to. If the client hangs up before, it is cancelled."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(hang_up())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ApiError(499, "the client has hung up")  # nobody reads it
        return await tasks[0]
    finally:
        for task in tasks:
            task.cancel()


async def _events(
    ticket: Ticket, body: Asked, head: dict[str, Any], part: Choice
) -> AsyncIterator[str]:
    """Server-sent events: one for each choice's piece, the usage if it was asked for, and
    [DONE].
    """
    counts = bool(body.stream_options and body.stream_options.include_usage)
    usage: dict[str, Any] = {"usage": None} if counts else {}
    try:
        async for pieces in ticket:
            for piece in pieces:
                yield _event({**head, "choices": [part(piece)], **usage})
        if counts:
            yield _event({**head, "choices": [], "usage": _usage(ticket, body)})
    except ApiError as error:  # the status is sent already, so it comes as an event
        yield f"data: {bytes(error_response(error).body).decode()}\n\n"
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _usage(ticket: Ticket, body: Asked) -> dict[str, int]:
    prompt = sum(len(completion.prompt_token_ids) for completion in ticket.completions)
    new = sum(
        len(output.token_ids) for completion in ticket.completions for output in completion.outputs
    )
    new = 0 if body.max_tokens == 0 else new  # the one that the engine wrote was not handed out
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class EventStream(StreamingResponse):
    """A stream that closes its ticket at the end, when the client hangs up, and when anything
    fails.
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
    """The one model that is loaded."""
    return {"object": "list", "data": [serving.card]}


@router.get("/v1/models/{model:path}", responses=ERRORS)
async def model(model: str, serving: Shared, tenant: Tenant) -> dict[str, Any]:
    """The one model that is loaded, by its name."""
    serving.check_model(model)
    return serving.card


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
async def blocks(serving: Shared, tenant: Tenant, since: int = 0) -> JSONResponse:
    """What the live page plays from the step numbered `since` on, see `LivePage.look`."""
    if (live := serving.live) is None:
        raise ApiError(404, "this server was installed without its live page")
    return JSONResponse(await serving.engine.call(lambda llm: live.look(llm, tenant, since)))


async def page(request: Request) -> Response:
    """A file of the live page.

    It holds no data; those come from /blocks, with a key where keys are asked for.
    """
    from pagedlab.serving.live_page import FILES

    media_type, read = FILES[request.url.path]
    policy = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline' data:"}
    return Response(read(), media_type=media_type, headers=policy)


# The app ------------------------------------------------------------------------------------------


def _tenants(api_keys: Mapping[str, str] | Iterable[str] | None) -> dict[str, str] | None:
    """Digest of a key -> its tenant, or itself: no key lies anywhere, and how long a look takes
    says nothing of it.
    """
    if api_keys is None:
        return None
    keys = [] if isinstance(api_keys, str) else list(api_keys)
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ValueError(
            "api_keys is a list of keys, or a mapping from keys to tenants: at least one, and none "
            "empty"
        )
    return {
        _digest(key): api_keys[key] if isinstance(api_keys, Mapping) else _digest(key)
        for key in keys
    }


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def create_app(
    llm: LLM,
    *,
    api_keys: Mapping[str, str] | Iterable[str] | None = None,
    salt: SaltFor = salt_for,
    max_waiting: int = 128,
    default_max_tokens: int = 256,
    max_body_bytes: int = 1 << 20,
    allowed_hosts: Iterable[str] | None = LOOPBACK,
    plain_content: bool = False,
    loop: Loop = run_loop,
) -> FastAPI:
    """Return an app that serves an engine. The engine is the app's own from startup to shutdown.

    Args:
        llm: the engine.
        api_keys: keys that are accepted; None for no keys. A mapping says which tenant each key
            belongs to. Otherwise each key is a tenant.
        salt: makes the prefix cache's salt of (tenant, the request's cache_salt), see `salt_for`.
        max_waiting: requests that may wait for their first step; further ones get status 429.
        default_max_tokens: of a chat that does not say.
        max_body_bytes: of a request.
        allowed_hosts: names that the server answers to; None for any.
        plain_content: a special token that is written out in a chat message, such as <|im_end|>, is
            plain text. Otherwise it is the special token, as in vLLM, so a user can end their own
            turn and begin another.
        loop: what the engine's thread does, see `run_loop`.
    """
    default_max_tokens = integer("default_max_tokens", default_max_tokens, 1)
    tenants, metrics = _tenants(api_keys), Metrics()
    engine = EngineThread(llm, max_waiting, metrics.observe, loop, plain_content)
    live, files = None, list[str]()
    if all(find_spec(f"pagedlab.{wing}") for wing in ("trace", "widgets")):  # the rest needs none
        from pagedlab.serving.live_page import FILES, LivePage

        live, files = LivePage(None if tenants is None else engine.names), list(FILES)
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
        Spelling(llm.model.tokenizer),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    # their pages load scripts
    app = FastAPI(title="pagedlab", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.serving = serving
    app.include_router(router)
    for path in files:
        app.add_api_route(path, page, include_in_schema=False, response_model=None)
    hosts = None if allowed_hosts is None else tuple(allowed_hosts)
    app.add_middleware(
        Gate, hosts=hosts, max_bytes=max_body_bytes, metrics=metrics, refuse_key=serving.refuse_key
    )
    for kind in EXPECTED:
        app.add_exception_handler(kind, lambda request, error: error_response(error))
    return app
