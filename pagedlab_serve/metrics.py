"""Figures of the server, for Prometheus."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagedlab.engine import LLM
from pagedlab.outputs import Completion
from pagedlab_serve.engine_thread import EngineThread, Ticket

Read = Callable[[EngineThread, LLM], int]
GAUGES: dict[str, tuple[str, Read]] = {
    "requests_waiting": ("requests before their first step", lambda engine, llm: engine.waiting),
    "requests_running": ("requests after it", lambda engine, llm: engine.running),
    "blocks": ("blocks in the pool", lambda engine, llm: llm.pool.num_blocks),
    "blocks_used": ("blocks with a reference", lambda engine, llm: llm.pool.num_used),
    "blocks_cached": ("blocks kept without one", lambda engine, llm: llm.pool.num_cached),
}


class Metrics:
    """Counters, gauges and histograms. Each app has its own registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"pagedlab_{name}", text, registry=registry)
            for name, (text, _) in GAUGES.items()
        }
        self.requests = Counter(
            "pagedlab_requests", "answers of the API by status", ["status"], registry=registry
        )
        self._prompt_tokens = Counter(
            "pagedlab_prompt_tokens", "prompt tokens of ended requests", registry=registry
        )
        self._output_tokens = Counter(
            "pagedlab_output_tokens", "tokens written for ended requests", registry=registry
        )
        self._begun = Histogram(
            "pagedlab_begun_seconds", "from arrival to the first token", registry=registry
        )
        self._ended = Histogram(
            "pagedlab_ended_seconds", "from arrival to the last token", registry=registry
        )

    def observe(self, ticket: Ticket, completion: Completion) -> None:
        """Count a request that has ended. The engine's thread calls this."""
        self._begun.observe(completion.times[0] - ticket.began)
        self._ended.observe(time.perf_counter() - ticket.began)
        self._prompt_tokens.inc(len(completion.prompt_token_ids))
        self._output_tokens.inc(sum(len(output.token_ids) for output in completion.outputs))

    def text(self, engine: EngineThread, llm: LLM) -> bytes:
        """Return all figures as Prometheus reads them. The engine's thread calls this."""
        for name, (_, read) in GAUGES.items():
            self._gauges[name].set(read(engine, llm))
        return generate_latest(self._registry)
