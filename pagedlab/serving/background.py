"""The server in a thread of this process, for notebooks and tests; and how uvicorn runs the app
anywhere.
"""

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol


class _Server(uvicorn.Server):
    """Hangs up on requests that stay half sent.

    Told to stop, it aborts what runs, and waits for nobody.
    """

    def __init__(self, config: uvicorn.Config, request_seconds: float) -> None:
        super().__init__(config)
        self._request_seconds = request_seconds
        self._half_sent: dict[Any, float] = {}  # (connection, its request before) -> since when

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        now, connections = (
            time.monotonic(),
            cast(Iterable[H11Protocol], self.server_state.connections),
        )
        half_sent = [
            (one, one.cycle)
            for one in connections
            if one.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        ]
        self._half_sent = {key: self._half_sent.get(key, now) for key in half_sent}
        for (connection, _), since in self._half_sent.items():
            if now - since > self._request_seconds:
                connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        await asyncio.to_thread(app.state.serving.engine.stop)
        for connection in self.server_state.connections:
            # time to read how it ended
            asyncio.get_running_loop().call_later(0.5, connection.transport.abort)
        await super().shutdown(sockets)


def server_of(app: FastAPI, request_seconds: float = 20, **options: Any) -> uvicorn.Server:
    """A server for the app, with uvicorn's options. request_seconds: how long a request may take to
    arrive.
    """
    config = uvicorn.Config(app, http=H11Protocol, log_level="warning", access_log=False, **options)
    return _Server(config, request_seconds)


class BackgroundServer(AbstractContextManager["BackgroundServer"]):
    """Runs an app in a thread, on 127.0.0.1 only, at `url`.

    Port 0 takes a free one; options as for `server_of`.

    with BackgroundServer(create_app(llm)) as server:
        OpenAI(base_url=f"{server.url}/v1", api_key="none")
    """

    def __init__(self, app: FastAPI, port: int = 0, **options: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        # asyncio sets it on sockets of its own only. Without it the end of an answer waits 40 ms
        # for the client to ack.
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
            raise RuntimeError("the server did not start; what it printed says why")

    def stop(self) -> None:
        """Abort what runs, and stop. The engine is then free for other use."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def __exit__(self, *_: object) -> None:
        self.stop()
