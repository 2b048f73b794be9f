"""The server in a thread of this process, for notebooks and tests; and how uvicorn runs the app anywhere."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI

GRACE = 5  # seconds that connections have to close when the server is told to stop


class _Server(uvicorn.Server):
    """Aborts what runs when it is told to stop. Uvicorn alone would wait for streams to end, then cut them off."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        await asyncio.to_thread(app.state.serving.engine.stop)
        await super().shutdown(sockets)


def server_of(app: FastAPI, **options: Any) -> uvicorn.Server:
    """A server for the app, with uvicorn's options. Told to stop, it aborts what runs."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE, **options)
    return _Server(config)


class BackgroundServer:
    """Runs an app in a thread of this process, on 127.0.0.1 only. `url` is where; port 0 takes a free one.

    with BackgroundServer(create_app(llm)) as server:
        OpenAI(base_url=f"{server.url}/v1", api_key="none")
    """

    def __init__(self, app: FastAPI, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = server_of(app)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="pagedlab-server")
        self._thread.daemon = True
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

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
