"""pagedlab: PagedAttention, built up block by block. The code behind the notebooks.

Importing this package pulls in neither torch nor transformers; `LLM` and its friends do, on first use.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pagedlab.blocks import BlockCopy, BlockEvent, BlockPool, BlockTable, InvariantError, OutOfBlocks, blocks_for

if TYPE_CHECKING:
    from pagedlab.engine import LLM, Completion
    from pagedlab.kv_cache import KVCache
    from pagedlab.sampling import SamplingParams

# Before torch loads libgomp, whose threads by default spin for each other some milliseconds before they sleep: where
# another process wants a core, they spin it away. Qwen2.5-0.5B in fp32 on 2 cores, 4 prompts x 24 tokens: alone 2.3 s,
# beside one busy process 15 to 70; on one thread 3.8 and 3.9; two that never spin 3.4 and 4.0; with 1,000 turns 2.7
# and 4.0 to 4.6. OMP_NUM_THREADS, OMP_WAIT_POLICY and GOMP_SPINCOUNT of your own are left alone.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & {*os.environ}:
    os.environ["GOMP_SPINCOUNT"] = "1000"

# When Python ends it would look for garbage among the million objects of torch and transformers: half a second to one.
atexit.register(gc.freeze)

__version__ = "0.1.0"
__all__ = ["BlockCopy", "BlockEvent", "BlockPool", "BlockTable", "InvariantError", "OutOfBlocks", "blocks_for"]
__all__ += ["LLM", "Completion", "KVCache", "SamplingParams"]

_LAZY = {"LLM": "engine", "Completion": "engine", "KVCache": "kv_cache", "SamplingParams": "sampling"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"pagedlab.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'pagedlab' has no attribute {name!r}")


_shell = getattr(sys.modules.get("IPython"), "get_ipython", object)()
if hasattr(_shell, "kernel") and "torch" not in sys.modules and find_spec("torch") and find_spec("pagedlab.lessons"):
    from pagedlab.lessons.progress import keep_moving  # in a notebook, but not in a browser, where there is no torch

    keep_moving(_shell)
