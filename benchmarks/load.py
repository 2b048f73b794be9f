"""Requests that come by themselves (Poisson), the same arrivals for pagedlab and vLLM, each in a process of its own.

python benchmarks/load.py pagedlab --model FOLDER --rates 10 20 40 60 80 100 --json ours.json
python benchmarks/load.py vllm --model FOLDER --json theirs.json        where vLLM is installed

Prompts and answers of 100 to 1,024 tokens, temperature 0.6, through each engine's own asynchronous front:
`EngineThread` here, `AsyncLLM` there. A rate r, in requests a second, is kept up for max(256, 8 r) requests. Of each
rate: output tokens a second from the first arrival to the last token; milliseconds to the first token, of a token
behind it, and of the longest wait between two pieces of an answer. With --count, kernels that Triton compiles while
requests run are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from machine import record
from pair import OPTIONS, TEMPERATURE, ids

Pieces = list[tuple[float, int]]  # when, and how many tokens
Ask = Callable[[list[int], int], Awaitable[Pieces]]


def arrivals(rate: float, seed: int = 3) -> list[tuple[float, list[int], int]]:
    """When each request comes, its prompt, and how many tokens its answer has."""
    rng, due, requests = random.Random(seed + int(rate)), 0.0, []
    for _ in range(max(256, int(8 * rate))):
        due += rng.expovariate(rate)
        requests.append((due, ids(rng, rng.randint(100, 1024)), rng.randint(100, 1024)))
    return requests


def pagedlab(model: str) -> Ask:
    """Requests through our engine's thread, their text streamed."""
    from pagedlab import LLM, SamplingParams
    from pagedlab.serving.engine_thread import EngineThread, Ticket

    llm = LLM(model)
    llm.warm_up()
    thread = EngineThread(llm, max_waiting=100_000)
    thread.start()

    async def ask(prompt: list[int], tokens: int) -> Pieces:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=TEMPERATURE)
        ticket = Ticket(thread, params, stream=True)
        await thread.submit(ticket, [prompt], None, False)
        async for _ in ticket:
            pass
        return sorted(Counter(ticket.completions[0].times).items())

    return ask


def vllm(model: str) -> Ask:
    """Requests through vLLM's AsyncLLM, tokens only."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **OPTIONS))
    options = {"ignore_eos": True, "temperature": TEMPERATURE, "detokenize": False}

    async def ask(prompt: list[int], tokens: int) -> Pieces:
        params, pieces = SamplingParams(max_tokens=tokens, output_kind=RequestOutputKind.DELTA, **options), []
        name = str(time.perf_counter())
        async for out in engine.generate({"prompt_token_ids": prompt}, params, name):
            if n := len(out.outputs[0].token_ids):
                pieces.append((time.perf_counter(), n))
        return pieces

    return ask


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    ranked = sorted(seconds)
    return {f"{name} p{p}": round(1000 * ranked[min(len(ranked) - 1, len(ranked) * p // 100)], 1) for p in (50, 99)}


async def measure(ask: Ask, rate: float) -> dict[str, Any]:
    """All requests of a rate, each at its time."""
    requests, began = arrivals(rate), time.perf_counter()

    async def at_its_time(due: float, prompt: list[int], tokens: int) -> tuple[float, float, float, float]:
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        pieces = await ask(prompt, tokens)
        assert sum(n for _, n in pieces) == tokens, "a request did not get its tokens"
        (first, n), (last, _) = pieces[0], pieces[-1]
        gaps = [b - a for (a, _), (b, _) in pairwise(pieces)]
        return first - began - due, (last - first) / max(1, tokens - n), max(gaps, default=0.0), last

    first, token, gap, last = zip(*await asyncio.gather(*(at_its_time(*one) for one in requests)), strict=True)
    seconds = max(last) - began - requests[0][0]
    row = {"rate": rate, "requests": len(requests), "tok/s": round(sum(n for *_, n in requests) / seconds)}
    return row | quantiles("ttft", first) | quantiles("tpot", token) | quantiles("gap", gap)


def count_compilations() -> list[str]:
    """Names of the kernels that Triton compiles from now on."""
    import triton

    names: list[str] = []

    def note(*, fn: Any, **_: Any) -> None:
        names.append(fn.name)

    triton.knobs.runtime.jit_post_compile_hook = note
    return names


async def run(args: argparse.Namespace) -> None:
    """Warm up with 64 requests at once, then one rate after the other."""
    ask = {"pagedlab": pagedlab, "vllm": vllm}[args.engine](args.model)
    await asyncio.gather(*(ask([i] * 300, 64) for i in range(1, 65)))
    compiled = count_compilations() if args.count else []
    figures: dict[str, Any] = {"engine": args.engine, "options": OPTIONS if args.engine == "vllm" else {}, "rows": []}
    figures["versions"] = {name: version(name) for name in ("torch", *(["vllm"] if args.engine == "vllm" else []))}
    for rate in args.rates:
        figures["rows"].append(row := await measure(ask, rate) | ({"compiled": len(compiled)} if args.count else {}))
        print(args.engine, row, flush=True)
        if args.json:
            record(args.json, "requests that come by themselves; see benchmarks/load.py", **figures)
    if compiled:
        print("compiled while requests ran:", *sorted(set(compiled)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("pagedlab", "vllm"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 20, 40, 60, 80, 100])
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--json", type=Path)
    asyncio.run(run(parser.parse_args()))
    os._exit(0)  # vLLM's processes, or a thread that waits, are no reason to stay


if __name__ == "__main__":
    main()
