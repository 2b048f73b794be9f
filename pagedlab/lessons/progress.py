"""Something that moves while a real model takes its time; nothing of it stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from pagedlab.llm import LLM


def bar(what: str, total: int | None = None) -> Any:
    """A bar that comes after one second, goes when it is closed, and is never there outside
    notebooks and terminals.
    """
    return tqdm(desc=what, total=total, leave=False, delay=1, disable=None)


@contextmanager
def moving(*llms: LLM, what: str = "steps", total: int | None = None) -> Iterator[Any]:
    """A bar that counts the steps of these engines."""
    with ExitStack() as stack:
        steps = stack.enter_context(bar(what, total))
        for llm in llms:
            stack.callback(llm.on_step(lambda: steps.update() and None))
        yield steps
