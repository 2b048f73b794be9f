"""How uvicorn runs the app; `BackgroundServer` does it in a thread, for notebooks and tests."""

import asyncio
import socket
import time
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """Aborts all requests when it stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        await asyncio.to_thread(app.state.serving.engine.stop)
        for connection in self.server_state.connections:
            # Clients have this time to read the end of their answer.
            asyncio.get_running_loop().call_later(0.5, connection.transport.abort)
        await super().shutdown(sockets)


def server_of(app: FastAPI) -> uvicorn.Server:
    """Return a server for an app that `create_app` has made."""
    return Server(uvicorn.Config(app, log_level="warning", access_log=False))


def listen(host: str, port: int) -> socket.socket:
    """Open a port; 0 for a free one.

    Raises:
        ValueError: If the port is taken, or the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"port {port} of {host} cannot be used: name another ({error})") from None
    # asyncio sets it only on sockets that it makes itself. Without it, the end of an answer waits
    # 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class BackgroundServer(AbstractContextManager["BackgroundServer"]):
    """Runs an app in a thread, on 127.0.0.1 only, at `url`.

        with BackgroundServer(create_app(llm)) as server:
            client = OpenAI(base_url=f"{server.url}/v1", api_key="none")

    Args:
        app: made by `create_app`.
        port: 0 for a free one.
    """

    def __init__(self, app: FastAPI, port: int = 0) -> None:
        self._socket = listen("127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = server_of(app)
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
