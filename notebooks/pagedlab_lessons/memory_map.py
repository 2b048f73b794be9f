"""Notebook 01's moving picture: which slots of a small memory hold what, at one step of a run."""

from pagedlab_lessons.colors import MEMORY_LOOKS, Look
from pagedlab_lessons.drawing import (
    BOLD,
    CARD,
    INK,
    LINE,
    Run,
    Strip,
    box,
    label,
    legend,
    linked,
    rows,
    svg,
)
from pagedlab_lessons.memory import Region
from pagedlab_lessons.simulation import Place, Sample
from pagedlab_lessons.simulation import Run as Simulated

LEFT, TOP, WIDTH = 52, 62, 1028  # pixels
PITCH, HEIGHT = 44, 36  # pixels from line to line, and of a line
NOTHING = Look("none")


def memory_map(name: str, run: Simulated, step: int, row: int) -> str:
    """Memory in lines of `row` slots at a step of `run`, each slot in the look of its kind.

    Args:
        name: the allocator's.
        run: made with `places=True` and `sample_every=1`.
        step: counted from 0; after the last step, the last one is shown.
        row: slots in a line.
    """
    sample = run.samples[min(step, len(run.samples) - 1)]
    strip = Strip(LEFT, TOP, WIDTH / row, HEIGHT, row, PITCH)
    empty = "external" if sample.waiting else "free"
    parts = rows([Run(0, run.num_slots, MEMORY_LOOKS[empty], LINE)], strip)
    for place in sample.places:
        parts.append(_request(place, strip))
    parts += legend(LEFT, 30, MEMORY_LOOKS)
    headline = _headline(name, run, sample)
    parts.append(label(LEFT, 18, headline, 14, INK, WIDTH, BOLD))
    height = TOP + PITCH * -(-run.num_slots // row)
    return svg(1080, height, parts, headline)


def _headline(name: str, run: Simulated, sample: Sample) -> str:
    used = sample.slots["used"] / run.num_slots
    return (
        f"{name}, step {sample.step}: {used:.0%} of the slots used, "
        f"{sample.running} requests running, {sample.waiting} waiting"
    )


def _request(place: Place, strip: Strip) -> str:
    """One request's slots, in the order of its tokens: used, then reserved, then internal."""
    drawn: list[str] = []
    before = 0  # slots of the request's earlier regions
    for region in place.regions:
        drawn += rows(_runs_of(region, place, before), strip)
        x, y = strip.corner(region.start)
        drawn += [
            box(x + 2, y + 3, 26, 15, CARD, 0.85),
            label(x + 4, y + 15, f"r{place.request}", 11, INK, 22, BOLD),
        ]
        before += region.size
    say = (
        f"request {place.request}: {place.tokens} of its {place.total} tokens are stored; "
        f"it holds {before} slots, and {max(0, before - place.total)} of them are never used"
    )
    return linked([f"r{place.request}"], say, *drawn)


def _runs_of(region: Region, place: Place, before: int) -> list[Run]:
    """The slots of a region by kind, and a frame around them.

    Args:
        before: slots of the request's earlier regions.
    """
    start = region.start
    end = start + region.size
    used = min(end, max(start, start + place.tokens - before))
    needed = min(end, max(start, start + place.total - before))
    return [
        Run(start, end, Look(CARD)),
        Run(start, used, MEMORY_LOOKS["used"]),
        Run(used, needed, MEMORY_LOOKS["reserved"]),
        Run(needed, end, MEMORY_LOOKS["internal"]),
        Run(start, end, NOTHING, INK),
    ]
