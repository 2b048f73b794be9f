"""How uvicorn runs the app; `BackgroundServer` does it in a thread, for notebooks and tests."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol


class _Server(uvicorn.Server):
    """Closes connections whose request stays half sent, and aborts all requests when it stops.

    Args:
        config: of uvicorn.
        request_seconds: how long a request may take to arrive.
        on_listening: called once, as soon as the port takes connections.
    """

    def __init__(
        self, config: uvicorn.Config, request_seconds: float, on_listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._request_seconds = request_seconds
        self._on_listening = on_listening
        # (connection, its request before) -> when the request began
        self._half_sent: dict[Any, float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        now = time.monotonic()
        half_sent = {}
        for connection in cast(Iterable[H11Protocol], self.server_state.connections):
            if connection.conn.their_state in (h11.IDLE, h11.SEND_BODY):
                key = (connection, connection.cycle)
                half_sent[key] = self._half_sent.get(key, now)
        self._half_sent = half_sent
        for (connection, _), began in half_sent.items():
            if now - began > self._request_seconds:
                connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        await asyncio.to_thread(app.state.serving.engine.stop)
        for connection in self.server_state.connections:
            # Clients have this time to read the end of their answer.
            asyncio.get_running_loop().call_later(0.5, connection.transport.abort)
        await super().shutdown(sockets)


def server_of(
    app: FastAPI,
    request_seconds: float = 20,
    on_listening: Callable[[], None] = lambda: None,
    **options: Any,
) -> uvicorn.Server:
    """Return a server for the app.

    Args:
        app: made by `create_app`.
        request_seconds: how long a request may take to arrive.
        on_listening: called once, as soon as the port takes connections.
        options: of `uvicorn.Config`.
    """
    config = uvicorn.Config(app, http=H11Protocol, log_level="warning", access_log=False, **options)
    return _Server(config, request_seconds, on_listening)


class BackgroundServer(AbstractContextManager["BackgroundServer"]):
    """Runs an app in a thread, on 127.0.0.1 only, at `url`.

        with BackgroundServer(create_app(llm)) as server:
            client = OpenAI(base_url=f"{server.url}/v1", api_key="none")

    Args:
        app: made by `create_app`.
        port: 0 for a free one.
        options: of `server_of`.
    """

    def __init__(self, app: FastAPI, port: int = 0, **options: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        # asyncio sets it only on sockets that it makes itself. Without it, the end of an answer
        # waits 40 ms for the client's acknowledgement.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = server_of(app, **options)
        self._thread = Thread(
            target=self._server.run, args=([self._socket],), name="pagedlab-server", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        if not self._server.started:
            raise RuntimeError("the server did not start: its messages above say why")

    def stop(self) -> None:
        """Abort all requests, and stop. The engine is then free for other use."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def __exit__(self, *_: object) -> None:
        self.stop()
