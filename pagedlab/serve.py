"""python -m pagedlab.serve: the engine on http://127.0.0.1:8000, for OpenAI's client. Or in a notebook's process."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI

from pagedlab.server import LOOPBACK, create_app

GRACE = 5  # seconds that connections have to close when the server is told to stop


class _Server(uvicorn.Server):
    """Aborts what runs when it is told to stop. Uvicorn alone would wait for streams to end, then cut them off."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        await asyncio.to_thread(app.state.serving.engine.stop)
        await super().shutdown(sockets)


def _server(app: FastAPI, **options: Any) -> _Server:
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
        self._server = _server(app)
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pagedlab.serve", description="Serve a model over OpenAI's HTTP API."
    )
    parser.add_argument("--model", help="hub id, folder or .gguf file; default: PAGEDLAB_MODEL, Qwen2.5-0.5B, or tiny")
    parser.add_argument("--host", default="127.0.0.1", help="any but a loopback address needs API keys")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", action="append", default=[], help="may be given often; or PAGEDLAB_API_KEYS=a,b")
    parser.add_argument("--max-waiting", type=int, default=128, help="requests that may wait; more get status 429")
    parser.add_argument("--num-blocks", type=int)
    parser.add_argument("--block-size", type=int, default=16)
    options = parser.parse_args(arguments)
    keys = options.api_key + [key.strip() for key in os.environ.get("PAGEDLAB_API_KEYS", "").split(",") if key.strip()]
    local = is_loopback(options.host)
    try:
        if not local and not keys:
            raise ValueError(f"{options.host} can be reached from outside: give API keys, or listen on 127.0.0.1")
        from pagedlab.engine import LLM

        llm = LLM(options.model, block_size=options.block_size, num_blocks=options.num_blocks)
        hosts = (*LOOPBACK, options.host) if local else None
        app = create_app(llm, api_keys=keys or None, max_waiting=options.max_waiting, allowed_hosts=hosts)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    where = f"http://{options.host}:{options.port}"
    print(f"{llm.pool.num_blocks} blocks of {llm.pool.block_size}. API: {where}/v1  blocks, live: {where}/")
    with suppress(KeyboardInterrupt):
        _server(app, host=options.host, port=options.port).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
