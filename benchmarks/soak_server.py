"""The server under random clients for a while: no wrong text, no block lost, no memory that grows.

python benchmarks/soak_server.py [--minutes 60] [--model FOLDER] [--clients 16] [--seed 0] [--json FILE]

Clients send completions and chats, greedy and sampled, streamed and whole, with stop strings, penalties and
log-probabilities; 35 % hang up after a random time. Each text is compared with what the engine wrote for the same
request alone. At the end no block may be held.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
from common import Result, command_line
from soak import resident

from pagedlab.model import TINY_MODEL
from pagedlab_fast import LLM
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from pagedlab_serve.openai_api import ChatRequest, CompletionRequest

LEAVE = 0.35
WORDS = ["Once", "upon", "a", "time", "the", "cat", "sat"]


@dataclass
class Kind:
    """A request: the path and the body, and the texts that must be answered."""

    path: str
    body: dict[str, Any]
    expected: list[str]


def kinds_of(llm: LLM, rng: random.Random, count: int) -> list[Kind]:
    """Some kinds of requests: two in three are completions, the others chats."""
    kinds = []
    for i in range(count):
        words = " ".join(rng.choices(WORDS, k=rng.randint(3, 90)))
        body: dict[str, Any] = {"max_tokens": rng.randint(1, 60), "temperature": rng.choice([0, 0, 0.8]), "seed": i}
        body |= rng.choice([{}, {}, {"stop": [" the", "."]}, {"repetition_penalty": 1.2}, {"presence_penalty": 0.4}])
        if body["temperature"]:
            body["n"] = rng.randint(1, 3)
        asked: Any
        if i % 3:
            path = "completions"
            body |= {"prompt": words, **rng.choice([{}, {"logprobs": 2}, {"logprobs": 1, "echo": True}])}
            asked = CompletionRequest(**body)
        else:
            path = "chat/completions"
            body |= {"messages": [{"role": "user", "content": words}], **rng.choice([{}, {"logprobs": True}])}
            asked = ChatRequest(**body)
        (done,) = llm.generate(asked.prompts(), asked.sampling(16))
        echoed = words if body.get("echo") else ""
        kinds.append(Kind(path, body, [echoed + output.text for output in done.outputs]))
    return kinds


def texts_of(content: str) -> list[str]:
    """The texts of an answer, streamed or whole, by choice."""
    events = [part.removeprefix("data: ") for part in content.split("\n\n")]
    texts: dict[int, str] = {}
    for event in events:
        for choice in json.loads(event)["choices"] if event.startswith("{") else []:
            part = choice.get("delta") or choice.get("message") or choice
            text = part.get("content") or part.get("text") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return [text for _, text in sorted(texts.items())]


async def client(url: str, kinds: list[Kind], rng: random.Random, counts: Counter[str], until: float) -> None:
    """Send requests until then, and count how they end."""
    async with httpx.AsyncClient(timeout=120) as http:
        while time.monotonic() < until:
            kind = rng.choice(kinds)
            request = http.post(f"{url}/v1/{kind.path}", json={**kind.body, "stream": rng.random() < 0.6})
            counts["requests"] += 1
            patience = rng.uniform(0, 0.6) if rng.random() < LEAVE else None
            try:
                answer = await asyncio.wait_for(request, patience)
            except asyncio.TimeoutError:
                counts["hung up"] += 1
                continue
            if answer.status_code != 200:
                counts[f"status {answer.status_code}"] += 1
            elif texts_of(answer.text) == kind.expected:
                counts["right"] += 1
            else:
                counts["wrong"] += 1
                print("wrong:", kind, answer.text[:2000], flush=True)


async def soak(url: str, kinds: list[Kind], args: Any, result: Result) -> Counter[str]:
    """All clients at once; a line a minute."""
    counts = Counter[str]()
    until = time.monotonic() + 60 * args.minutes
    rngs = [random.Random(args.seed * 1000 + number) for number in range(args.clients)]
    tasks = [asyncio.create_task(client(url, kinds, rng, counts, until)) for rng in rngs]
    while any(not task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=60)
        result.add("requests so far", "server", counts["requests"], "requests", **counts, MiB=resident())
    await asyncio.gather(*tasks)
    return counts


def main() -> None:
    parser = command_line(__doc__, model=str(TINY_MODEL), minutes=60.0, seed=0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kinds", type=int, default=40, help="how many different requests there are")
    args = parser.parse_args()
    llm = LLM(args.model, verbose=False)
    kinds = kinds_of(llm, random.Random(args.seed), args.kinds)
    result = Result("the server under random clients, see benchmarks/soak_server.py", args.json, model=args.model)
    with BackgroundServer(create_app(llm)) as server:
        counts = asyncio.run(soak(server.url, kinds, args, result))
        time.sleep(2)  # the last ones that hung up are noticed
        held = [llm.pool.num_used, llm.num_unfinished]
    print(dict(counts), "blocks and requests that are held:", held)
    assert not any(held)
    assert not counts["wrong"]


if __name__ == "__main__":
    main()
