"""What notebook 07 shows of kernels, by lessons.workshop: `opening()`, `watch.PUZZLE(kernel)`,
`bench(kernel)`.
"""

from functools import partial
from typing import Any

from pagedlab.lessons import workshop
from pagedlab.widgets.explore import Explorer, explore


class Shown(Explorer):
    """A drawing without controls, or with a step only: what it is stands below it."""

    def __repr__(self) -> str:
        return str(self.caption)


def opening() -> Explorer:
    """What the rungs' programs load beside how fast they are; without Triton the speeds alone."""
    draw, shapes = partial(workshop.draw_opening, workshop.traces()), list(workshop.SHAPES)
    said = (
        "Three sequences of 200, 40 and 100 tokens in pages of 16; each of two KV heads serves two "
        "query heads. The number beside a page is its id, a colour is a sequence, and each page has "
        "a stripe for each KV head: solid is loaded in this step, pale was loaded before."
    )
    first = "1 one page at a time"
    return explore(
        draw,
        said,
        rung=(list(workshop.RUNGS), first),
        step=(range(1, 14), 3),
        shape=(shapes, shapes[0]),
    )


class Watch:
    """A picture of what a reader's kernel loads in a puzzle's example:
    `watch.weights(my_weights)`.
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
    """What a kernel loads in the example of the puzzle of that name."""
    from pagedlab.lessons.tracer import interpreted

    given, loads, stopped = interpreted("pagedlab.lessons.workshop:seen", name, answer)
    steps = 1 + max(
        (load.step for tensor in workshop.SHOWN[name] for load in loads.get(tensor, ())), default=0
    )
    draw = partial(workshop.draw_loads, name, given, loads, stopped, step=steps)
    controls: dict[str, Any] = {"step": (range(1, steps + 1), steps)} if steps > 1 else {}
    number = 1 + list(workshop.SHOWN).index(name)
    verb = "load" if isinstance(answer, dict) else "loads"
    return Shown(draw, f"What {names(answer)} {verb} in the example of puzzle {number}", **controls)


def bench(answer: Any = None, shape: str = "Llama-3-8B, 32 x 4,096", **cut: int) -> Explorer:
    """A reader's kernel of puzzle 5, 6 or 7 in the ladder: its speed where Triton compiles,
    otherwise its loads.

    answer  the kernel, or {"my_split": ..., "my_merge": ..., "my_splits": ...}; without one nothing is measured
    cut     tile, num_stages and num_warps
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
    """What the reader called it."""
    kernels: list[Any] = [*answer.values()] if isinstance(answer, dict) else [answer]
    return ", ".join(getattr(kernel, "fn", kernel).__name__ for kernel in kernels)
