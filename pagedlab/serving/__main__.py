"""python -m pagedlab.serving: the engine on http://127.0.0.1:8000, for OpenAI's client."""

from __future__ import annotations

import argparse
import atexit
import gc
import ipaddress
import os
import socket
import sys
from contextlib import suppress

from pagedlab.__main__ import ended_by_ctrl_c, stopped_by_hand
from pagedlab.validation import integer


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    from pagedlab.loading import DEFAULT_MODEL

    parser = argparse.ArgumentParser(
        "python -m pagedlab.serving", description="Serve a model over OpenAI's HTTP API."
    )
    add = parser.add_argument
    add(
        "--model",
        help="hub id, folder or .gguf file; default: PAGEDLAB_MODEL, Qwen2.5-0.5B, or tiny",
    )
    add(
        "--download",
        nargs="?",
        const=DEFAULT_MODEL,
        metavar="ID",
        help="from the hub, then serve it",
    )
    add("--host", default="127.0.0.1", help="any but a loopback address needs API keys")
    add("--port", type=int, default=8000)
    add(
        "--api-key",
        action="append",
        default=[],
        help="may be given often; or PAGEDLAB_API_KEYS=a,b",
    )
    add("--max-waiting", type=int, default=128, help="requests that may wait; more get status 429")
    add("--num-blocks", type=int)
    add("--block-size", type=int, default=16)
    add(
        "--plain-content",
        action="store_true",
        help="special tokens in the text of a chat message, such as <|im_end|>, are plain text",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Serve until Ctrl-C or a signal ends the process. Return the exit code."""
    return stopped_by_hand(_main, arguments)


def _main(arguments: list[str] | None) -> int:
    with ended_by_ctrl_c():
        from pagedlab import (
            LLM,
        )  # first: it sets how torch's threads wait, before torch is imported
        from pagedlab.serving.app import LOOPBACK, create_app
        from pagedlab.serving.background import server_of

        options = parse(arguments)
    more_keys = os.environ.get("PAGEDLAB_API_KEYS", "").split(",")
    keys = options.api_key + [key.strip() for key in more_keys if key.strip()]
    is_local = is_loopback(options.host)
    try:
        integer("--port", options.port, 0, 65535)
        if not is_local and not keys:
            raise ValueError(
                f"{options.host} can be reached from outside: give API keys, or listen on 127.0.0.1"
            )
        listener = bind(options.host, options.port)  # before the model is loaded, which takes long
        if options.download:
            from pagedlab.hub import download  # the only module that uses the network

            download(options.download)
        with ended_by_ctrl_c():
            llm = LLM(
                options.model or options.download,
                block_size=options.block_size,
                num_blocks=options.num_blocks,
            )
        app = create_app(
            llm,
            api_keys=keys or None,
            max_waiting=options.max_waiting,
            allowed_hosts=(*LOOPBACK, options.host) if is_local else None,
            plain_content=options.plain_content,
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    where = f"http://{options.host}:{listener.getsockname()[1]}"
    print(
        f"{llm.pool.num_blocks} blocks of {llm.pool.block_size}. API: {where}/v1  blocks, live: "
        f"{where}/"
    )
    atexit.register(gc.unfreeze)  # otherwise nanobind, Triton's binding, reports leaks
    # Loaded objects stay. If every full collection visited them, all streams would stop for 0.2 s.
    gc.freeze()
    server_of(app).run(sockets=[listener])
    return 0


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the port. The server listens on it later.

    Raises:
        ValueError: If the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # connections of a server that has just ended still use the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio sets it only on sockets that it makes itself. Without it, the end of an answer waits
    # 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise ValueError(
            f"cannot listen on port {port} of {host} ({why}): name another with --port"
        ) from None
    return listener


if __name__ == "__main__":
    sys.exit(main())
