"""python -m pagedlab.serving: the engine on http://127.0.0.1:8000, for OpenAI's client."""

import argparse
import atexit
import gc
import ipaddress
import os
import sys
from contextlib import suppress

from pagedlab import LLM  # first: it says how torch's threads wait, before torch is imported
from pagedlab.loading import DEFAULT_MODEL
from pagedlab.serving.app import LOOPBACK, create_app
from pagedlab.serving.background import server_of
from pagedlab.validation import integer


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m pagedlab.serving", description="Serve a model over OpenAI's HTTP API.")
    parser.add_argument("--model", help="hub id, folder or .gguf file; default: PAGEDLAB_MODEL, Qwen2.5-0.5B, or tiny")
    parser.add_argument("--download", nargs="?", const=DEFAULT_MODEL, metavar="ID", help="from the hub, then serve it")
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
        integer("--port", options.port, 0, 65535)
        if not local and not keys:
            raise ValueError(f"{options.host} can be reached from outside: give API keys, or listen on 127.0.0.1")
        if options.download:
            from pagedlab.hub import download  # a wing: it alone asks the network

            download(options.download)
        llm = LLM(options.model or options.download, block_size=options.block_size, num_blocks=options.num_blocks)
        hosts = (*LOOPBACK, options.host) if local else None
        app = create_app(llm, api_keys=keys or None, max_waiting=options.max_waiting, allowed_hosts=hosts)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    where = f"http://{options.host}:{options.port}"
    print(f"{llm.pool.num_blocks} blocks of {llm.pool.block_size}. API: {where}/v1  blocks, live: {where}/")
    atexit.register(gc.unfreeze)  # else nanobind, Triton's binding, calls what is frozen leaked
    gc.freeze()  # what is loaded stays: to go through it in every full collection stops all streams for 0.2 s
    with suppress(KeyboardInterrupt):
        server_of(app, host=options.host, port=options.port).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
