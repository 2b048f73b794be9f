"""What hostile clients do to somebody's stream: the longest gap between two of its pieces, quiet and under attack.

python benchmarks/hostile.py [--model FOLDER] [--clients 10] [--rounds 5] [--tokens 400] [--attacks "a long text" ...]

A server of its own (`python -m pagedlab.serving`) runs in a second process, the attackers in a third. The victim reads
one stream, first alone and then while each of the clients sends, again and again, a body of nearly 1 MB that is
refused. A row is the median over the rounds; ratio: of the longest gaps, attack to quiet.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pagedlab.model import TINY_MODEL

SIZE = 1_000_000
JSON = {"Content-Type": "application/json"}
ATTACKS: dict[str, dict[str, Any]] = {
    "a long text": {"prompt": "word " * (SIZE // 5)},
    "a long chat": {"messages": [{"role": "user", "content": "word " * (SIZE // 5)}]},
    "many messages": {"messages": [{"role": "user", "content": "a"}] * (SIZE // 35)},
    "many ids": {"prompt": [7] * (SIZE // 3 - 100)},
    "no ids": {"prompt": [0.5] * (SIZE // 5 - 100)},
    "unknown names": {"prompt": "a", **{f"x{i}": 1 for i in range(SIZE // 13)}},
}


@contextmanager
def server(model: str) -> Iterator[tuple[str, int]]:
    """Host and port of a server that runs until the end of the block, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pagedlab.serving", "--model", model, "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait()


def gaps(where: str, tokens: int) -> list[float]:
    """Milliseconds between the pieces of one stream."""
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection(where, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), JSON)
    answer, times = connection.getresponse(), []
    while line := answer.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    connection.close()
    return [1000 * (after - before) for before, after in pairwise(times)]


def attack(where: str, kind: str, clients: int, stop: Any, answers: Any) -> None:
    """Send the body from so many connections until told to stop, then count the answers by their status."""
    path = "chat/completions" if "messages" in ATTACKS[kind] else "completions"
    content, statuses = json.dumps(ATTACKS[kind]).encode(), Counter[int]()

    def client() -> None:
        connection = http.client.HTTPConnection(where, timeout=600)
        while not stop.is_set():
            connection.request("POST", f"/v1/{path}", content, JSON)
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(dict(statuses))


def measure(where: str, kind: str, clients: int, rounds: int, tokens: int) -> dict[str, Any]:
    """A row of the table."""
    figures: dict[str, list[float]] = {"quiet": [], "attack": [], "quiet max": [], "attack max": []}
    statuses, spawn = Counter[int](), multiprocessing.get_context("spawn")
    for _ in range(rounds):
        for state in ("quiet", "attack"):
            stop, answers = spawn.Event(), spawn.Queue()
            others = spawn.Process(target=attack, args=(where, kind, clients, stop, answers))
            if state == "attack":
                others.start()
                time.sleep(3)  # until all of them are at it
            seen = gaps(where, tokens)
            figures[state].append(median(seen))
            figures[f"{state} max"].append(max(seen))
            if state == "attack":
                stop.set()
                statuses.update(answers.get())
                others.join()
    assert set(statuses) == {400}, f"every one of them is refused, and not {statuses}"
    ratios = [a / q for a, q in zip(figures["attack max"], figures["quiet max"], strict=True)]
    row = {name: round(median(values), 1) for name, values in figures.items()}
    return {"sent": kind, **row, "ratio": round(median(ratios), 2), "refused": statuses[400]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(TINY_MODEL))
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    with server(args.model) as (where, _):
        gaps(where, 50)  # the first pass is slower
        print(
            f"{'sent by each of ' + str(args.clients):20}  gap, ms: median  longest | attack: median  longest   ratio"
        )
        for kind in args.attacks:
            rows.append(row := measure(where, kind, args.clients, args.rounds, args.tokens))
            quiet, busy = f"{row['quiet']:15} {row['quiet max']:8}", f"{row['attack']:15} {row['attack max']:8}"
            print(f"{kind:20}  {quiet} | {busy} {row['ratio']:7}   {row['refused']} refused", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
