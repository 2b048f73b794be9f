"""pagedlab: PagedAttention, built up block by block. The notebooks show this code and run it.

The import of this package changes nothing in the process, and imports neither torch nor
transformers. `LLM` and other names that need them import both on first use.

To generate texts::

    LLM().generate("Once upon a time", SamplingParams(max_tokens=20))[0].outputs[0].text

    LLM: a language model with a paged KV cache.
    SamplingParams: how to continue one prompt.
    Completion: the answer to one prompt.

The paged KV cache:
    BlockPool: hands out blocks, and counts who uses each.
    BlockTable: the blocks of one sequence, in order.
    BlockCopy: a block that must be copied before it is written.
    BlockEvent: a change of the pool, for those who watch it.
    KVCache: the keys and values of all blocks.
    Scheduler: plans which sequences run in a step, and in which blocks.
    PrefixCache: finds the blocks of a prompt that begins like an earlier one.
    blocks_for: how many blocks a number of tokens needs.
    OutOfBlocks: raised when the pool has no free block.
    InvariantError: raised when the pool's books are inconsistent.

Attention over blocks:
    paged_attention: attention of new tokens, whose keys and values are in blocks.
    paged_decode: the same for one new token of each sequence.

Beside it:
    pagedlab.recipes: a file for each further feature, such as beam search and speculative decoding.
    pagedlab_fast.LLM: takes the same arguments, writes the same answers, and is faster.
    pagedlab_serve: OpenAI's API over HTTP, and the command `pagedlab`.
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
    from pagedlab.engine import LLM
    from pagedlab.kv_cache import KVCache
    from pagedlab.outputs import Completion
    from pagedlab.prefix import PrefixCache
    from pagedlab.sampling_params import SamplingParams
    from pagedlab.scheduler import Scheduler

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
    "Scheduler",
    "blocks_for",
    "paged_attention",
    "paged_decode",
]

_LAZY = {  # the module of each name that is imported on first use
    "LLM": "engine",
    "Completion": "outputs",
    "KVCache": "kv_cache",
    "PrefixCache": "prefix",
    "SamplingParams": "sampling_params",
    "Scheduler": "scheduler",
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
