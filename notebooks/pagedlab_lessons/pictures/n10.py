"""Notebook 10's opening: what host and GPU do at each time, and when a new request is answered."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, takewhile
from typing import NamedTuple

from pagedlab_lessons.colors import BLUE, FREE, GREEN, VERMILION, Look
from pagedlab_lessons.drawing import LINE, Bar, Drawing, Lane, Lanes, Legend, Run, page

LARGE = 860  # pixels that become `flow.WIDTH`, so that letters of 11 have 14 on a page
SHOWN = 80  # milliseconds
NAMES = 54  # pixels of the names of lanes
ARRIVES = 20  # milliseconds: when a new request comes
LANES = ("host", "GPU", "request")
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
    windows = list(takewhile(lambda window: window.planned.begin < SHOWN, endless))
    late = (window for window in windows if window.planned.begin >= ARRIVES)
    answers = next(late, windows[-1])
    busy = sum(min(SHOWN, end) - min(SHOWN, begin) for _, (begin, end), _ in windows)
    first = answers.collected.end - ARRIVES
    how = "The host runs ahead" if ahead else "The host waits for each window"
    count = "1 step" if steps == 1 else f"{steps} steps"
    return page(
        f"{how}, windows of {count}: the GPU computes for {busy / SHOWN:.0%} of the time.",
        Lanes(_lanes(windows, answers, steps), SHOWN, ARRIVES, "ms", NAMES, height=30),
        Legend(LEGEND),
        more=f"A request that arrives at {ARRIVES} ms has its first token {first:.0f} ms later.",
        width=LARGE,
    )


def _lanes(windows: Sequence[Window], answers: Window, steps: int) -> list[Lane]:
    """Return what host, GPU and a new request do.

    Args:
        windows: from the first one.
        answers: the one that writes the new request's first token.
        steps: of a window.
    """
    idle = Run(0, SHOWN, FREE, LINE)
    lanes = [Lane(name, [Bar([idle], [name], f"{name}: idle where it is empty")]) for name in LANES]
    host, gpu, request = (lane.bars for lane in lanes)
    for number, window in enumerate(windows, 1):
        said = f"Window {number}: the host plans it, the GPU computes it, the host collects it."
        bar = partial(Bar, links=[f"w{number}"], say=said, text=str(number))
        begin, end = window.computed
        starts = [begin + (end - begin) / steps * step for step in range(steps + 1)]
        host.append(bar([_run(window.planned, PLANS)]))
        host.append(bar([_run(window.collected, COLLECTS)], text=""))
        gpu.append(bar([_run(Span(*span), COMPUTES) for span in pairwise(starts)]))
        if window is answers:
            first = Span(*starts[:2])  # the step that writes its token
            runs = [
                _run(Span(ARRIVES, first.begin), QUEUES),
                _run(first, COMPUTES),
                _run(Span(first.end, window.collected.end), QUEUES),
            ]
            said = (
                f"It waits for window {number}. Its token is collected with all others of the "
                "window."
            )
            request.append(bar(runs, say=said, text=""))
    return lanes


def _run(span: Span, look: Look) -> Run:
    """Return the part of a span that is shown."""
    return Run(span.begin, min(SHOWN, span.end), look)
