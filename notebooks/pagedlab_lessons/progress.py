"""Progress bars for what takes a real model some time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm.auto import tqdm


def bar(what: str, total: int | None = None) -> Any:
    """Return a progress bar.

    It appears after one second, disappears when it is closed, and is shown only in notebooks and
    terminals.

    Args:
        what: the text before it.
        total: the number of updates, if it is known.
    """
    return tqdm(desc=what, total=total, leave=False, delay=1, disable=None)


@contextmanager
def moving(*llms: Any) -> Iterator[Any]:
    """A bar that counts the steps of these engines."""
    with ExitStack() as stack:
        steps = stack.enter_context(bar("steps"))
        for llm in llms:
            stack.callback(llm.on_step(lambda: steps.update() and None))
        yield steps
