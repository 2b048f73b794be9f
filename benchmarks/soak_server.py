"""The server under random clients for a while, a third of whom hang up: no wrong text, no block lost, no memory grown.

python benchmarks/soak_server.py --minutes 60 [--model FOLDER] [--clients 16] [--seed 0]

The server runs in a process of its own. Clients ask for completions and chats, greedy and sampled, streamed and whole,
with stop strings, penalties and log-probabilities; 35 % leave after a random while. Each text is compared with the one
that an engine of this process gives for the same request alone. A line a minute; at the end no block may be held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

import httpx
from hostile import server

from pagedlab import LLM
from pagedlab.model import TINY_MODEL
from pagedlab.serving.openai_api import ChatRequest, CompletionRequest

LEAVE = 0.35
HELD = ("blocks_used", "requests_running", "requests_waiting")  # metrics that must be zero at the end


def kinds_of(llm: LLM, rng: random.Random) -> list[tuple[str, dict[str, Any], list[str]]]:
    """Path, body, and the texts that must come."""
    kinds = []
    for i in range(40):
        words = " ".join(
            rng.choice(["Once", "upon", "a", "time", "the", "cat", "sat"]) for _ in range(rng.randint(3, 90))
        )
        body: dict[str, Any] = {"max_tokens": rng.randint(1, 60), "temperature": rng.choice([0, 0, 0.8]), "seed": i}
        body |= rng.choice([{}, {}, {"stop": [" the", "."]}, {"repetition_penalty": 1.2}, {"presence_penalty": 0.4}])
        if body["temperature"]:
            body |= {"n": rng.randint(1, 3)}
        if i % 3:
            body |= {"prompt": words} | rng.choice([{}, {"logprobs": 2}, {"logprobs": 1, "echo": True}])
            path, asked = "completions", CompletionRequest(**body)
        else:
            body |= {"messages": [{"role": "user", "content": words}]} | rng.choice([{}, {"logprobs": True}])
            path, asked = "chat/completions", ChatRequest(**body)  # type: ignore[assignment]
        (done,) = llm.generate(asked.prompts(), asked.sampling(16))
        kinds.append((path, body, [words * bool(body.get("echo")) + output.text for output in done.outputs]))
    return kinds


def texts_of(path: str, content: str, streamed: bool) -> list[str]:
    """The texts of an answer, by choice."""
    texts: dict[int, str] = {}
    events = (
        [e.removeprefix("data: ") for e in content.split("\n\n") if e.startswith("data: {")] if streamed else [content]
    )
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        said = choice.get("delta") or choice.get("message") or choice
        texts[choice["index"]] = texts.get(choice["index"], "") + (said.get("content") or said.get("text") or "")
    return [text for _, text in sorted(texts.items())]


async def client(url: str, kinds: list[Any], rng: random.Random, counts: Counter[str], until: float) -> None:
    async with httpx.AsyncClient(timeout=120) as http:
        while time.monotonic() < until:
            path, body, expected = rng.choice(kinds)
            streamed = rng.random() < 0.6
            request = http.post(f"{url}/v1/{path}", json=body | {"stream": streamed})
            counts["requests"] += 1
            try:
                patience = rng.uniform(0, 0.6) if rng.random() < LEAVE else None
                answer = await asyncio.wait_for(request, patience)
            except asyncio.TimeoutError:
                counts["hung up"] += 1
                continue
            if answer.status_code != 200:
                counts[f"status {answer.status_code}"] += 1
            elif texts_of(path, answer.text, streamed) == expected:
                counts["right"] += 1
            else:
                counts["wrong"] += 1
                print("wrong:", path, body, expected, answer.text[:2000], flush=True)


def memory(pid: int) -> str:
    with open(f"/proc/{pid}/statm") as statm:
        return f"{int(statm.read().split()[1]) * 4096 / 2**20:,.0f} MiB"


async def soak(url: str, pid: int, kinds: list[Any], args: argparse.Namespace) -> Counter[str]:
    counts, began = Counter[str](), time.monotonic()
    until = began + 60 * args.minutes
    load = [client(url, kinds, random.Random(args.seed * 1000 + i), counts, until) for i in range(args.clients)]
    tasks = [asyncio.create_task(each) for each in load]
    while any(not task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=60)
        print(f"{(time.monotonic() - began) / 60:.1f} min: {dict(counts)}; server {memory(pid)}", flush=True)
    await asyncio.gather(*tasks)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--model", default=str(TINY_MODEL))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds = kinds_of(LLM(args.model, num_blocks=512, verbose=False), random.Random(args.seed))
    with server(args.model) as (where, pid):
        counts = asyncio.run(soak(f"http://{where}", pid, kinds, args))
        time.sleep(2)
        metrics = dict(line.rsplit(" ", 1) for line in httpx.get(f"http://{where}/metrics").text.splitlines())
        held = {name: float(metrics[f"pagedlab_{name}"]) for name in HELD}
        print(f"{dict(counts)}; server {memory(pid)}; {held}")
        assert not any(held.values())
        assert not counts["wrong"]


if __name__ == "__main__":
    main()
