"""Something that moves while a real model takes its time; nothing of it stays behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from pagedlab.engine import LLM


def bar(what: str, total: int | None = None) -> Any:
    """A bar that comes after one second, goes when it is closed, and is never there outside notebooks and terminals."""
    return tqdm(desc=what, total=total, leave=False, delay=1, disable=None)


@contextmanager
def moving(*llms: LLM, what: str = "steps", total: int | None = None) -> Iterator[Any]:
    """A bar that counts the steps of these engines."""
    with ExitStack() as stack:
        steps = stack.enter_context(bar(what, total))
        for llm in llms:
            stack.callback(llm.on_step(lambda: steps.update() and None))
        yield steps


def keep_moving(shell: Any) -> None:
    """Advance a bar in this cell of a notebook until transformers has been imported, if that takes over a second."""

    def tick() -> None:
        while not (ended.wait(0.3) or hasattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel")):
            shown.update()
        shown.close()

    def end(_: object) -> None:
        shell.events.unregister("post_run_cell", end)
        ended.set()
        ticker.join()

    shown, ended, ticker = tqdm(desc="importing", leave=False, delay=1), Event(), Thread(target=tick, daemon=True)
    shell.events.register("post_run_cell", end)
    ticker.start()
