"""Figures of the server, for Prometheus."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagedlab.engine import LLM
from pagedlab.outputs import Completion
from pagedlab_serve.engine_thread import EngineThread, Ticket

GAUGES: dict[str, tuple[str, Callable[[EngineThread, LLM], int]]] = {
    "requests_waiting": (
        "requests that wait for their first step",
        lambda engine, llm: engine.waiting,
    ),
    "requests_running": (
        "requests that have begun and not ended",
        lambda engine, llm: engine.running,
    ),
    "blocks": ("blocks in the pool", lambda engine, llm: llm.pool.num_blocks),
    "blocks_used": (
        "blocks with a reference",
        lambda engine, llm: llm.pool.num_blocks - llm.pool.num_free,
    ),
    "blocks_cached": (
        "blocks kept without a reference",
        lambda engine, llm: getattr(llm.pool, "num_cached", 0),
    ),
}


class Metrics:
    """Counters, gauges and histograms. Each app has its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.gauges = {
            name: Gauge(f"pagedlab_{name}", text, registry=registry)
            for name, (text, _) in GAUGES.items()
        }
        self.requests = Counter(
            "pagedlab_requests", "answers of the API by status", ["status"], registry=registry
        )
        self.prompt_tokens = Counter(
            "pagedlab_prompt_tokens", "prompt tokens of ended requests", registry=registry
        )
        self.output_tokens = Counter(
            "pagedlab_output_tokens", "tokens written for ended requests", registry=registry
        )
        self.begun = Histogram(
            "pagedlab_begun_seconds", "from arrival to the end of the first step", registry=registry
        )
        self.ended = Histogram(
            "pagedlab_ended_seconds", "from arrival to the last token", registry=registry
        )

    def observe(self, event: str, ticket: Ticket, completion: Completion) -> None:
        """Count a request. The engine's thread calls this.

        Args:
            event: "begun" after its first step, "ended" after its last.
            ticket: of the request.
            completion: of one prompt.
        """
        histogram = self.begun if event == "begun" else self.ended
        histogram.observe(time.perf_counter() - ticket.began)
        if event == "ended":
            self.prompt_tokens.inc(len(completion.prompt_token_ids))
            self.output_tokens.inc(sum(len(output.token_ids) for output in completion.outputs))

    def text(self, engine: EngineThread, llm: LLM) -> bytes:
        """Return all figures as Prometheus reads them. The engine's thread calls this."""
        for name, (_, read) in GAUGES.items():
            self.gauges[name].set(read(engine, llm))
        return generate_latest(self.registry)
