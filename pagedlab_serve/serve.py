"""pagedlab serve: the engine on http://127.0.0.1:8000, for OpenAI's client."""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import ipaddress
import os
import socket
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from pagedlab.arguments import hub_id, integer
from pagedlab.extras import MissingExtra
from pagedlab_serve.command_line import (
    Parser,
    add_model_options,
    add_pool_options,
    check_model_options,
    check_pool_options,
    ended_by_ctrl_c,
    engine_arguments,
    print_error,
    print_now,
    program_name,
    stopped_by_hand,
    whole_number,
)

EXAMPLES = """\
  {prog}
  {prog} --port 8001 --num-blocks 512
  {prog} --host 0.0.0.0 --api-key SECRET"""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def make_parser(prog: str) -> Parser:
    """Return the parser of the command line.

    Args:
        prog: the command as the user types it.
    """
    parser = Parser(
        prog,
        "Serve a model over OpenAI's HTTP API, and its blocks, live, on a page.",
        EXAMPLES,
    )
    add_model_options(parser)
    add_pool_options(parser)
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on; any but 127.0.0.1 needs --api-key; default: %(default)s",
    )
    add(
        "--port",
        type=whole_number,
        default=8000,
        help="port to listen on; 0 chooses a free one; default: %(default)s",
    )
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a key that clients must send; repeat it for several; default: the keys in "
        "PAGEDLAB_API_KEYS (comma-separated), else none",
    )
    add(
        "--max-waiting",
        type=whole_number,
        default=128,
        help="requests that may wait; more get status 429; default: %(default)s",
    )
    add(
        "--plain-content",
        action="store_true",
        help="treat special tokens in messages, such as <|im_end|>, as plain text",
    )
    return parser


def live_page() -> Any:
    """Return what makes the page that shows the blocks; None if the lessons are not installed."""
    if find_spec("pagedlab_lessons") is None:
        return None
    from pagedlab_lessons.live_page import LivePage

    return LivePage


def main(arguments: list[str] | None = None) -> int:
    """Serve until Ctrl-C or a signal ends the process. Return the exit code.

    Args:
        arguments: the options; None for those of the command line.
    """
    parser = make_parser(f"{program_name()} serve")
    return stopped_by_hand(partial(_main, parser), arguments)


def _main(parser: Parser, arguments: list[str]) -> int:
    options = parser.parse_args(arguments)
    try:
        listener = bind_checked(options)  # before the model is loaded, which takes long
    except ValueError as error:
        return print_error(error)
    print_now("loading torch and transformers ...")
    with ended_by_ctrl_c():
        # LLM first: it sets how torch's threads wait, before torch is imported
        from pagedlab_fast import LLM
        from pagedlab_serve.app import LOOPBACK, create_app
        from pagedlab_serve.background import server_of
    keys = api_keys(options)
    is_local = is_loopback(options.host)
    try:
        if options.download:
            from pagedlab_serve.hub import download  # the only module that uses the network

            download(options.download)
        with ended_by_ctrl_c():
            llm = LLM(**engine_arguments(options))
        app = create_app(
            llm,
            api_keys=keys or None,
            max_waiting=options.max_waiting,
            allowed_hosts=(*LOOPBACK, options.host) if is_local else None,
            plain_content=options.plain_content,
            live_page=live_page(),
        )
        listen(listener, options.host)
    except (ValueError, MissingExtra) as error:
        return print_error(error)
    where = f"http://{options.host}:{listener.getsockname()[1]}"
    addresses = (
        f"{llm.pool.num_blocks} blocks of {llm.pool.block_size} tokens\n"
        f"API:          {where}/v1\n"
        f"reference:    {where}/docs\n"
        f"blocks, live: {where}/\n"
        "Ctrl-C ends the server."
    )
    atexit.register(gc.unfreeze)  # otherwise nanobind, Triton's binding, reports leaks
    # Loaded objects stay. If every full collection visited them, all streams would stop for 0.2 s.
    gc.freeze()
    server_of(app, on_listening=partial(print_now, addresses)).run(sockets=[listener])
    return 0


def api_keys(options: argparse.Namespace) -> list[str]:
    """Return the API keys of the command line and of PAGEDLAB_API_KEYS."""
    more = os.environ.get("PAGEDLAB_API_KEYS", "").split(",")
    return options.api_key + [key.strip() for key in more if key.strip()]


def bind_checked(options: argparse.Namespace) -> socket.socket:
    """Check host, port and sizes, and return a socket that is bound to the port.

    Raises:
        ValueError: If one is wrong, or the port is taken, or keys are missing.
    """
    integer("--port", options.port, 0, 65535)
    integer("--max-waiting", options.max_waiting, 0)
    check_model_options(options)
    check_pool_options(options)
    if not all(key.strip() for key in options.api_key):
        raise ValueError("--api-key is empty: give a key, or leave the option out")
    if options.download:
        hub_id(options.download)
    listener = bind(options.host, options.port)
    if not is_loopback(options.host) and not api_keys(options):
        listener.close()
        raise ValueError(
            f"{options.host} can be reached from outside: give a key with --api-key, or leave "
            "--host out to listen on 127.0.0.1"
        )
    return listener


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the port. The server listens on it later.

    Raises:
        ValueError: If the port is taken, or the host is no address of this machine.
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
        raise cannot_listen(host, port, error) from None
    except (TypeError, UnicodeError):  # no such host can have this name
        listener.close()
        raise ValueError(f"{host} is no name of a host: name one with --host") from None
    return listener


def listen(listener: socket.socket, host: str) -> None:
    """Open the port, now that the model is loaded.

    Two servers that load at the same time are both bound to the port. The first that listens has
    it.

    Raises:
        ValueError: If another server has the port by now.
    """
    port = listener.getsockname()[1]
    try:
        listener.listen()
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from None


def cannot_listen(host: str, port: int, error: OSError) -> ValueError:
    """Return the error that names the address or port, the reason and the option to change."""
    why = error.strerror or str(error)
    is_address = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    if is_address:
        return ValueError(f"{host} is no address of this machine ({why}): name one with --host")
    return ValueError(f"cannot listen on port {port} of {host} ({why}): name another with --port")
