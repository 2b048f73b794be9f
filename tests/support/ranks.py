"""Engines on two ranks, and the process of the second one."""

from __future__ import annotations

from typing import Any

import psutil

from pagedlab import LLM
from pagedlab.recipes.ranks.shared import SharedCache, SharedModel


def poisoned(model: SharedModel, num_blocks: int = 256, block_size: int = 16, kind: Any = LLM, **options: Any) -> Any:
    """An engine on ranks that already run, each with its own cache full of NaN."""
    llm = kind(model, num_blocks=num_blocks, block_size=block_size, attention_backend="torch", **options)
    assert isinstance(llm.cache, SharedCache)
    llm.cache.poison()
    return llm


def other_rank(model: SharedModel) -> psutil.Process:
    """Return the process of the second rank."""
    (process,) = model.ranks.workers.processes
    return psutil.Process(process.pid)


def listening() -> set[int]:
    """Ports on which this process accepts connections."""
    return {c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
