"""What stands before the server's app: whom it answers to, how much it reads, and the shape of a refusal."""

import asyncio
import json
import re
import time

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagedlab.serving.metrics import Metrics
from pagedlab.serving.openai_api import ApiError, explain_invalid

EXPECTED = (ApiError, HTTPException, RequestValidationError)
LARGE, PER_SECOND = 1 << 16, 1 << 21  # bytes; bodies above the one take turns, the other a second in all


def error_response(error: Exception) -> Response:
    """An exception of `EXPECTED` as it goes over the wire."""
    if isinstance(error, RequestValidationError):
        message, param = explain_invalid(error.errors())
        error = ApiError(400, message, param=param)
    elif isinstance(error, HTTPException):
        said = {404: "there is nothing at this path", 405: "this path does not take this method"}
        error = ApiError(error.status_code, said.get(error.status_code, error.detail), dict(error.headers or {}))
    assert isinstance(error, ApiError)
    # Escaped to ASCII: what a request said may hold characters that UTF-8 has no bytes for.
    content = json.dumps(error.body.model_dump())
    return Response(content, error.status, error.headers, media_type="application/json")


class Gate:
    """Stands before the app: refuses other hosts' names, bodies that are too large, and counts the answers.

    A page on the web may point its own name at 127.0.0.1 and have your browser ask; only the Host header tells.
    Large bodies take turns, with a pause after each: to read JSON holds up all of Python's threads, the engine's too.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None, max_bytes: int, metrics: Metrics) -> None:
        self._app, self._hosts, self._max_bytes, self._metrics = app, hosts, max_bytes, metrics
        self._next_turn = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, f"the body is larger than {self._max_bytes:,} bytes")
            if message["type"] == "http.request" and received > LARGE and not message.get("more_body", False):
                await self._turn(received)
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(message["status"]).inc()
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()  # without its port, and the brackets of IPv6
        app = self._app
        if self._hosts is not None and name not in self._hosts:
            app = error_response(ApiError(400, f"this server does not answer to the name {host!r}"))
        await app(scope, limited, counted)

    async def _turn(self, size: int) -> None:
        now = time.monotonic()
        mine = max(now, self._next_turn)
        self._next_turn = mine + size / PER_SECOND
        await asyncio.sleep(mine - now)
