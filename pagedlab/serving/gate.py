"""What stands before the server's app: whom it answers to, how much it reads, and the shape of a refusal."""

from __future__ import annotations

import json
from contextlib import suppress
from urllib.parse import urlsplit

from fastapi import HTTPException
from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagedlab.serving.metrics import Metrics
from pagedlab.serving.openai_api import ApiError


def error_response(error: ApiError) -> Response:
    """The error as it goes over the wire."""
    # Escaped to ASCII: what a request said may hold characters that UTF-8 has no bytes for.
    content = json.dumps(error.body.model_dump())
    return Response(content, error.status, error.headers, media_type="application/json")


class Gate:
    """Stands before the app: refuses other hosts' names, bodies that are too large, and counts the answers.

    A page on the web may point its own name at 127.0.0.1 and have your browser ask; only the Host header tells.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None, max_bytes: int, metrics: Metrics) -> None:
        self._app, self._hosts, self._max_bytes, self._metrics = app, hosts, max_bytes, metrics

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
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(message["status"]).inc()
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        app: ASGIApp = self._app
        if self._hosts is not None and _hostname(host) not in self._hosts:
            app = error_response(ApiError(400, f"this server does not answer to the name {host!r}"))
        await app(scope, limited, counted)


def _hostname(host: str) -> str | None:
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname
    return None
