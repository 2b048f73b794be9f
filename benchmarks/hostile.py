"""What hostile clients do to somebody's stream: the longest gap between two of its pieces, quiet and under attack.

python benchmarks/hostile.py [--model FOLDER] [--clients 10] [--rounds 3] [--tokens 500] [--json FILE]

A server of its own (`python -m pagedlab.serving`) runs in a second process, the attackers in a third. The victim reads
one stream; first alone, then while each client sends, again and again, a body of nearly 1 MB that is refused. Each
round measures quiet and attack in turn; printed are medians over the rounds. The ratio is of the longest gaps.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MEGABYTE = 1_000_000
HEADERS = {"Content-Type": "application/json"}
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a long text": ("completions", {"prompt": "word " * (MEGABYTE // 5)}),
    "a long chat": ("chat/completions", {"messages": [{"role": "user", "content": "word " * (MEGABYTE // 5)}]}),
    "many messages": ("chat/completions", {"messages": [{"role": "user", "content": "a"}] * (MEGABYTE // 34)}),
    "many ids": ("completions", {"prompt": [7] * (MEGABYTE // 3)}),
    "wrong ids": ("completions", {"prompt": [0.5] * (MEGABYTE // 5)}),
    "unknown names": ("completions", {"prompt": "a", **{f"x{i}": 1 for i in range(MEGABYTE // 13)}}),
}


@contextmanager
def server(model: str) -> Iterator[str]:
    """The address of a server that runs until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "pagedlab.serving", "--model", model, "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def gaps(where: str, model: str, tokens: int) -> list[float]:
    """Milliseconds between the pieces of one stream."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection(where, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(body), HEADERS)
    answer, times = connection.getresponse(), []
    while line := answer.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    connection.close()
    return [1000 * (b - a) for a, b in zip(times, times[1:])]


def attack(where: str, path: str, content: bytes, clients: int, stop: Any, answers: Any) -> None:
    """Send `content` from so many connections until told to stop; counts the answers by status."""
    statuses = Counter[int]()

    def client() -> None:
        connection = http.client.HTTPConnection(where, timeout=300)
        while not stop.is_set():
            try:
                connection.request("POST", f"/v1/{path}", content, HEADERS)
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
            except OSError:
                connection.close()
                statuses[0] += 1

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(dict(statuses))
