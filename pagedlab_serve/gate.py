"""The gate before the server's app: it limits the size of requests, and counts the answers."""

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagedlab_serve.metrics import Metrics

API = "/v1/"
MAX_BODY_BYTES = 1 << 20  # of a request


class Gate:
    """Refuses large bodies, and counts the API's answers.

    Args:
        app: gets the requests.
        metrics: counts the answers of paths that begin with `API`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes")
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["path"].startswith(API):
                self._metrics.requests.labels(message["status"]).inc()
            await send(message)

        # Monitors send HEAD. The web server leaves the body out of the answer.
        is_head = scope.get("method") == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, limited, counted)
