"""Engines on two ranks, with caches full of NaN on both."""

from importlib.util import find_spec

import psutil

from pagedlab.model import TINY_MODEL
from pagedlab.recipes.ranks import TensorParallelLLM
from support import interpreter
from support.engines import poison

if find_spec("triton"):
    import pagedlab_fast
    from pagedlab_fast.choose import make_runner, ranks_of
    from pagedlab_fast.fused import Fused

    class Ahead(pagedlab_fast.LLM):
        """Runs in windows as on GPUs, launch by launch."""

        def __init__(self, model=None, **options):
            super().__init__(model, **options)
            poison(self.cache)

        @staticmethod
        def _make_runner(llm):
            if llm.ranks.rank > 0:
                interpreter.spare()
            return make_runner(llm, Fused(llm.model.module, ranks_of(llm)) if llm._fused else None, graphs=False)


class Poisoned(TensorParallelLLM):
    """The engine of the recipe."""

    def __init__(self, model=None, **options):
        super().__init__(model, **options)
        poison(self.cache)


def two(kind=Poisoned, num_blocks: int | None = 256, block_size: int = 16, **options):
    """An engine on two ranks, or as many as the options say."""
    how = {"device": "cpu", "dtype": "float32", "attention_backend": "torch", "verbose": False}
    how |= {"model": TINY_MODEL, "ranks": 2, "num_blocks": num_blocks, "block_size": block_size}
    return kind(**how | options)


def other_rank(llm):
    """The process of the second rank."""
    return psutil.Process(llm.ranks.others[0].pid)


def listening():
    """Ports on which this process accepts connections."""
    return {c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
