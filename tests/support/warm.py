"""Processes that have imported torch and transformers already: to import them takes longer than many tests."""

from __future__ import annotations

import multiprocessing
from functools import cache
from multiprocessing.context import BaseContext

IMPORTED = ["torch", "transformers.generation.utils", "transformers.models.qwen2.modeling_qwen2"]


@cache
def processes() -> BaseContext:
    """Each process is a copy of one that has imported these, and nothing of this package.

    Where the system cannot copy a process, each imports for itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context
