"""Kernels in notebook 07: `opening()`, `watch.PUZZLE(kernel)` and `bench(kernel)`.

lessons.workshop draws them.
"""

from functools import partial
from typing import Any

from pagedlab_lessons import workshop
from pagedlab_lessons.widgets.explore import Explorer, explore


class Shown(Explorer):
    """A drawing with at most one control, a step. Its caption says what it is."""

    def __repr__(self) -> str:
        return str(self.caption)


def opening() -> Explorer:
    """Show the loads of each rung's programs beside its speed; without Triton the speeds alone."""
    draw = partial(workshop.draw_opening, workshop.traces())
    shapes = list(workshop.SHAPES)
    caption = (
        "Three sequences of 200, 40 and 100 tokens in pages of 16; each of two KV heads serves two "
        "query heads. The number beside a page is its id, a colour is a sequence, and each page "
        "has a stripe for each KV head: solid is loaded in this step, pale was loaded before. "
        "Progress is in % of the rung's steps."
    )
    rungs = list(workshop.RUNGS)
    return explore(
        draw,
        caption,
        rung=(rungs, rungs[0]),
        progress=([round(100 * i / 12) for i in range(13)], 0),  # the longest trace has 13 steps
        shape=(shapes, shapes[0]),
    )


class Watch:
    """Pictures of the loads of a reader's kernel: `watch.weights(my_weights)`.

    There is a method for each puzzle. The kernel runs on the puzzle's example.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in workshop.SHOWN:
            raise AttributeError(
                f"there is no puzzle {name!r}: there are {', '.join(workshop.SHOWN)}"
            )
        return partial(picture, name)

    def __dir__(self) -> list[str]:
        return list(workshop.SHOWN)


watch = Watch()


def picture(name: str, answer: Any) -> Explorer:
    """Show the loads of a kernel in a puzzle's example.

    Args:
        name: of the puzzle.
        answer: the reader's kernel, or the parts of puzzle 7.
    """
    from pagedlab_lessons.tracer import interpreted

    given, loads, stopped = interpreted("pagedlab_lessons.workshop:seen", name, answer)
    steps = 1 + max(
        (load.step for tensor in workshop.SHOWN[name].tensors for load in loads.get(tensor, ())),
        default=0,
    )
    draw = partial(workshop.draw_loads, name, given, loads, stopped, step=steps)
    controls: dict[str, Any] = {"step": (range(1, steps + 1), steps)} if steps > 1 else {}
    number = 1 + list(workshop.SHOWN).index(name)
    verb = "load" if isinstance(answer, dict) else "loads"
    return Shown(draw, f"What {names(answer)} {verb} in the example of puzzle {number}", **controls)


def bench(answer: Any = None, shape: str = "Llama-3-8B, 32 x 4,096", **cut: int) -> Explorer:
    """Show a reader's kernel of puzzle 5, 6 or 7 in the ladder.

    Where Triton compiles its speed is measured, otherwise its loads are counted.

    Args:
        answer: the kernel, or {"my_split": ..., "my_merge": ..., "my_splits": ...}. Without one
            nothing is measured.
        shape: name of the batch, one of `lessons.workshop.SHAPES`.
        cut: tile, num_stages and num_warps.
    """
    from pagedlab.kernels.runtime import INTERPRETED

    if not answer:
        return Shown(
            lambda: "<p>No kernel of yours yet: puzzle 5, 6 or 7 makes one.</p>",
            "No kernel of yours yet",
        )
    page = (
        workshop.loads_beside(answer)
        if INTERPRETED
        else workshop.speed_beside(answer, shape, **cut)
    )
    return Shown(lambda: page, f"{names(answer)} in the ladder")


def names(answer: Any) -> str:
    """Return the reader's name of a kernel, or of its parts."""
    kernels: list[Any] = [*answer.values()] if isinstance(answer, dict) else [answer]
    return ", ".join(getattr(kernel, "fn", kernel).__name__ for kernel in kernels)
