"""pagedlab serve: the engine on http://127.0.0.1:8000, for OpenAI's client."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from pagedlab.extras import require
from pagedlab_serve.cli.options import BlockSize, Device, Dtype, Model, NumBlocks, load_llm

Host = Annotated[str, typer.Option(help="Address to listen on; a public one needs --api-key.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar="PAGEDLAB_API_KEYS",
        help="Keys that clients must send, with commas between them; may be repeated.",
    ),
]
MaxWaiting = Annotated[
    int, typer.Option(min=1, help="Requests that may wait; more get status 429.")
]


def serve(
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    block_size: BlockSize = 16,
    num_blocks: NumBlocks = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_keys: ApiKeys = None,
    max_waiting: MaxWaiting = 128,
) -> None:
    """Serve OpenAI's HTTP API, and a page that shows the blocks."""
    require("server", "fastapi", "uvicorn", "prometheus_client")
    from pagedlab_serve.background import listen, server_of

    keys = [key for some in api_keys or () for key in some.split(",") if key]
    is_local = is_loopback(host)
    if not keys and (api_keys or not is_local):
        raise ValueError(f"{host} can be reached from outside, or a key is empty: give --api-key")
    listener = listen(host, port)  # before the model is loaded, which takes long
    llm = load_llm(model, device, dtype, block_size, num_blocks)
    from pagedlab_serve.app import LOOPBACK, create_app

    app = create_app(
        llm,
        api_keys=keys or None,
        max_waiting=max_waiting,
        allowed_hosts=(*LOOPBACK, host) if is_local else None,
        live_page=live_page(),
    )
    where = address_of(host, listener.getsockname()[1])
    live = "" if keys else f"blocks, live: {where}/\n"
    typer.echo(
        f"{llm.pool.num_blocks} blocks of {llm.pool.block_size} tokens\n"
        f"API:          {where}/v1\n"
        f"reference:    {where}/docs\n"
        f"{live}"
        "Ctrl-C ends the server."
    )
    server_of(app).run(sockets=[listener])


def address_of(host: str, port: int) -> str:
    """Return the address of a port. An IPv6 host has brackets there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def live_page() -> Any:
    """Return what makes the page that shows the blocks; None if the lessons are not installed."""
    if find_spec("pagedlab_lessons") is None:
        return None
    from pagedlab_lessons.live_page import LivePage

    return LivePage
