"""pagedlab: PagedAttention, built up block by block. The notebooks show this code and run it.

The import of this package changes nothing in the process, and imports neither torch nor
transformers. `LLM` and other names that need them import both on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pagedlab.blocks import (
    BlockCopy,
    BlockEvent,
    BlockPool,
    BlockTable,
    InvariantError,
    OutOfBlocks,
    blocks_for,
)
from pagedlab.threads import spin_little

if TYPE_CHECKING:
    from pagedlab.attention import paged_attention, paged_decode
    from pagedlab.kv_cache import KVCache
    from pagedlab.llm import LLM
    from pagedlab.outputs import Completion
    from pagedlab.prefix import PrefixCache
    from pagedlab.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "BlockCopy",
    "BlockEvent",
    "BlockPool",
    "BlockTable",
    "Completion",
    "InvariantError",
    "KVCache",
    "OutOfBlocks",
    "PrefixCache",
    "SamplingParams",
    "blocks_for",
    "paged_attention",
    "paged_decode",
]

_LAZY = {  # the module of each name that is imported on first use
    "LLM": "llm",
    "Completion": "outputs",
    "KVCache": "kv_cache",
    "PrefixCache": "prefix",
    "SamplingParams": "sampling_params",
    "paged_attention": "attention",
    "paged_decode": "attention",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pagedlab' has no attribute {name!r}")
    spin_little()
    return getattr(import_module(f"pagedlab.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """The public names, so that pagedlab.<Tab> lists nothing else."""
    return [*__all__, "__version__"]
