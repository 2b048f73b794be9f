"""The gate before the server's app: it checks host names, API keys and sizes of requests."""

import asyncio
import json
import re
import time
from collections.abc import Callable

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagedlab_serve.metrics import Metrics
from pagedlab_serve.openai_api import ApiError, invalid_request

EXPECTED = (ApiError, HTTPException, RequestValidationError)
API = "/v1/"
LARGE = 1 << 16  # bytes; larger bodies are read one after the other
PER_SECOND = 1 << 21  # bytes of large bodies that are read in a second
# an IPv6 address in brackets, or a name; then perhaps a port
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::\d*)?")


def error_response(error: Exception) -> Response:
    """Return the answer for an exception of `EXPECTED`."""
    if isinstance(error, RequestValidationError):
        error = invalid_request(error.errors())
    elif isinstance(error, HTTPException):
        messages = {
            404: "there is nothing at this path: /docs lists the paths",
            405: "this path does not take this method: /docs lists the methods of each path",
        }
        message = messages.get(error.status_code, error.detail)
        error = ApiError(error.status_code, message, dict(error.headers or {}))
    assert isinstance(error, ApiError)
    # Escaped to ASCII: the message may quote characters that UTF-8 cannot encode.
    content = json.dumps(error.body.model_dump())
    return Response(content, error.status, error.headers, media_type="application/json")


def host_name(host: str) -> str | None:
    """Return the name in a Host header, without port and brackets; None if it is malformed."""
    match = HOST.fullmatch(host.lower())
    if match is None:
        return None
    return match[1] or match[2]


class Gate:
    """Refuses other hosts' names, unknown keys and large bodies, and counts the API's answers.

    Args:
        app: gets the requests that pass.
        hosts: names that the server answers to; None for any. A page on the web can point its own
            name at 127.0.0.1 and let your browser send requests: only the Host header shows it.
        max_bytes: of a body. Large bodies are read one after the other, with a pause after each,
            because the engine's thread does not run while Python reads JSON.
        metrics: counts the answers of paths that begin with `API`.
        refuse_key: returns the error for an Authorization header, or None. A body is read only
            after this check.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: tuple[str, ...] | None,
        max_bytes: int,
        metrics: Metrics,
        refuse_key: Callable[[str], ApiError | None],
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._refuse_key = refuse_key
        self._next_read = 0.0  # when the next large body may be read

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
            is_last = message["type"] == "http.request" and not message.get("more_body", False)
            if is_last and received > LARGE:
                await self._pause(received)
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["path"].startswith(API):
                self._metrics.requests.labels(message["status"]).inc()
            await send(message)

        refusal = self._refuse(scope)
        app = self._app if refusal is None else error_response(refusal)
        # The web server leaves the body out of an answer to HEAD.
        is_head = scope.get("method") == "HEAD"
        await app({**scope, "method": "GET"} if is_head else scope, limited, counted)

    def _refuse(self, scope: Scope) -> ApiError | None:
        """Return the error for a request whose host or key is wrong, or None."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return ApiError(400, f"this server does not answer to the name {host!r}")
        if scope.get("method") == "POST":
            return self._refuse_key(headers.get(b"authorization", b"").decode("latin-1"))
        return None

    async def _pause(self, size: int) -> None:
        """Wait until a large body may be read."""
        now = time.monotonic()
        start = max(now, self._next_read)
        self._next_read = start + size / PER_SECOND
        await asyncio.sleep(start - now)
