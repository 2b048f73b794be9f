"""Notebook 10's opening: what host and GPU do at each time, and when a new request is answered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from pagedlab_lessons.colors import BLUE, FREE, GREEN, VERMILION, Look
from pagedlab_lessons.drawing import (
    BOLD,
    LINE,
    SOFT,
    Drawing,
    Run,
    Strip,
    label,
    linked,
    rows,
    wide,
)
from pagedlab_lessons.drawing.flow import WIDTH, Drawn, Legend, Space, page

LARGE = 860  # pixels that become `WIDTH`, so that letters of 11 have 14 on a page
SHOWN = 80  # milliseconds
ARRIVES = 20  # milliseconds: when a new request comes
LANES = ("host", "GPU", "new request")
PLANS = Look(BLUE)
COLLECTS = Look(BLUE, "//", is_pale=True)
COMPUTES = Look(GREEN)
QUEUES = Look(VERMILION, "--", is_pale=True)
LEGEND = [
    (PLANS, "plans and launches a window"),
    (COLLECTS, "collects its tokens"),
    (COMPUTES, "a step"),
    (QUEUES, "waits"),
    (FREE, "idle"),
]


class Span(NamedTuple):
    """From when to when, in milliseconds."""

    begin: float
    end: float


class Window(NamedTuple):
    """Steps that are launched together.

    Args:
        planned: when the host plans and launches them.
        computed: when the GPU computes them.
        collected: when the host takes their tokens.
    """

    planned: Span
    computed: Span
    collected: Span


def windows_of(steps: int, host_ms: float, step_ms: float, ahead: bool) -> Iterator[Window]:
    """Yield windows, one after the other, without an end.

    Args:
        steps: of each window.
        host_ms: the host's work for a window; half of it comes before the steps.
        step_ms: the GPU's time for a step.
        ahead: whether the host launches the next window before it collects this one.
    """
    host = gpu = 0.0  # when each has done what it was given
    in_flight = []
    while True:
        planned = Span(host, host + host_ms / 2)
        begin = max(planned.end, gpu)
        gpu = begin + steps * step_ms
        in_flight.append((planned, Span(begin, gpu)))
        host = planned.end
        if len(in_flight) > ahead:
            planned, computed = in_flight.pop(0)
            host = max(host, computed.end)
            collected = Span(host, host + host_ms / 2)
            host = collected.end
            yield Window(planned, computed, collected)


def draw_windows(steps: int, ahead: bool, host_ms: float, step_ms: float) -> Drawing:
    """Draw what host and GPU do at each time, and how long a new request waits.

    Args:
        steps: of a window.
        ahead: whether the host launches the next window before it collects this one.
        host_ms: the host's work for a window.
        step_ms: the GPU's time for a step.
    """
    endless = windows_of(steps, host_ms, step_ms, ahead)
    windows = list(takewhile(lambda window: window.planned.begin < 2 * SHOWN, endless))
    answers = next(window for window in windows if window.planned.begin >= ARRIVES)
    busy = sum(min(SHOWN, end) - min(SHOWN, begin) for _, (begin, end), _ in windows)
    first = answers.collected.end - ARRIVES
    how = "The host runs ahead" if ahead else "The host waits for each window"
    count = "1 step" if steps == 1 else f"{steps} steps"
    return page(
        f"{how}, windows of {count}: the GPU computes for {busy / SHOWN:.0%} of the time.",
        _Lanes(windows, answers, steps),
        Legend(LEGEND),
        more=f"A request that arrives at {ARRIVES} ms has its first token {first:.0f} ms later.",
        width=LARGE,
        shown_width=WIDTH,
    )


@dataclass(frozen=True)
class _Lanes:
    """The host, the GPU and a new request over the same milliseconds.

    Args:
        windows: from the first one.
        answers: the one that writes the new request's first token.
        steps: of a window.
    """

    windows: Sequence[Window]
    answers: Window
    steps: int

    def __call__(self, space: Space) -> Drawn:
        names, above, height = space.pick((96, 4, 30), (0, 18, 24))
        unit = (space.width - names - 8) / SHOWN
        first = Strip(space.x + names, space.y + above, unit, height)
        pitch = height + above + 6
        lanes = [replace(first, y=first.y + pitch * lane) for lane in range(len(LANES))]
        parts = []
        for name, lane in zip(LANES, lanes, strict=True):
            place = space.pick((space.x, lane.y + 19), (space.x, lane.y - 5))
            parts.append(label(*place, name, 12, SOFT))
            parts += rows([Run(0, SHOWN, FREE, LINE)], lane)
        for number, window in enumerate(self.windows, 1):
            if window.planned.begin < SHOWN:
                parts.append(self._window(number, window, lanes))
        parts.append(self._request(lanes[2]))
        bottom = lanes[-1].y + height + 15
        for ms in range(0, SHOWN, 10):
            parts.append(label(first.corner(ms)[0], bottom, f"{ms}", 11, SOFT))
        words = f"{SHOWN} ms"
        left = first.corner(SHOWN)[0] - wide(words, 11)
        return Drawn([*parts, label(left, bottom, words, 11, SOFT)], bottom + 10)

    def _window(self, number: int, window: Window, lanes: Sequence[Strip]) -> str:
        """A window on the host and on the GPU."""
        host, gpu, _ = lanes
        begin, end = window.computed
        step_ms = (end - begin) / self.steps
        drawn = _bars([window.planned], PLANS, host)
        drawn += _bars([window.collected], COLLECTS, host)
        starts = [begin + step_ms * step for step in range(self.steps)]
        drawn += _bars([Span(start, start + step_ms) for start in starts], COMPUTES, gpu)
        if begin + step_ms < SHOWN:
            x, y = gpu.corner(begin)
            drawn.append(label(x + 2, y + gpu.height / 2 + 4, str(number), 11, "black", look=BOLD))
        said = f"Window {number}: the host plans it, the GPU computes it, the host collects it."
        return linked([f"w{number}"], said, *drawn)

    def _request(self, lane: Strip) -> str:
        """The new request: it waits for its window, and its token waits for the window's end."""
        window = self.answers
        begin, end = window.computed
        step = Span(begin, begin + (end - begin) / self.steps)
        drawn = _bars([Span(ARRIVES, begin), Span(step.end, window.collected.end)], QUEUES, lane)
        drawn += _bars([step], COMPUTES, lane)
        number = self.windows.index(window) + 1
        said = (
            f"It waits for window {number}. Its token is collected with all others of the window."
        )
        return linked([f"w{number}"], said, *drawn)


def _bars(spans: Sequence[Span], look: Look, lane: Strip) -> list[str]:
    """The part of each span that is shown."""
    shown = [Run(begin, min(SHOWN, end), look) for begin, end in spans if begin < SHOWN]
    return rows(shown, replace(lane, gap=1))
