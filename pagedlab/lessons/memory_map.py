"""Notebook 01's moving picture: which slots of a small memory hold what, at one step of a run."""

from pagedlab.lessons.colors import NEUTRAL
from pagedlab.lessons.drawing import BOLD, INK, LINE, box, label, legend, linked, stripes, svg
from pagedlab.lessons.memory import Region
from pagedlab.lessons.simulation import Place, Run, Sample

# The colours of plots.KIND_LOOKS; what is used is solid, the rest is striped.
LOOKS = {
    "used": "#0072B2",
    "reserved": "url(#mm-reserved)",
    "internal": "url(#mm-internal)",
    "external": "url(#mm-external)",
    "free": "var(--well)",
}
PATTERNS = [
    stripes("mm-reserved", "#E69F00"),
    stripes("mm-internal", "#CC79A7", 135),
    stripes("mm-external", NEUTRAL, 90),
]
LEFT, TOP, WIDTH, PITCH, HIGH = 52, 62, 1028, 44, 36


def memory_map(name: str, run: Run, step: int, row: int) -> str:
    """Memory in rows of `row` slots at a step of `run`, each slot in the look of its kind.

    Args:
        name: the allocator's.
        run: made with `places=True` and `sample_every=1`.
        step: counted from 0; after the last step, the last one is shown.
        row: slots in a row.
    """
    sample = run.samples[min(step, len(run.samples) - 1)]
    empty = "external" if sample.waiting else "free"
    parts = _strip(Region(0, run.num_slots), row, LOOKS[empty], LINE)
    for place in sample.places:
        parts.append(_request(place, row))
    looks = {kind: (look, 1, LINE) for kind, look in LOOKS.items()}
    parts += legend(LEFT, 30, looks)
    parts.append(label(LEFT, 18, _headline(name, run, sample), 14, INK, WIDTH, BOLD))
    height = TOP + PITCH * -(-run.num_slots // row)
    return svg(1080, height, [*PATTERNS, *parts])


def _headline(name: str, run: Run, sample: Sample) -> str:
    used = sample.slots["used"] / run.num_slots
    return (
        f"{name}, step {sample.step}: {used:.0%} of the slots used, "
        f"{sample.running} requests running, {sample.waiting} waiting"
    )


def _request(place: Place, row: int) -> str:
    """One request's slots, in the order of its tokens: used, then reserved, then internal."""
    parts: list[str] = []
    before = 0  # slots of the request's earlier regions
    for start, size in place.regions:
        parts += _strip(Region(start, size), row, "var(--card)")
        used = max(0, min(size, place.tokens - before))
        needed = max(0, min(size, place.total - before))
        kinds = {"used": (0, used), "reserved": (used, needed), "internal": (needed, size)}
        for kind, (first, end) in kinds.items():
            parts += _strip(Region(start + first, end - first), row, LOOKS[kind])
        parts += _strip(Region(start, size), row, "none", INK)
        x, y = _corner(start, row)
        parts += [
            box(x + 2, y + 3, 26, 15, "var(--card)", 0.85),
            label(x + 4, y + 15, f"r{place.request}", 11, INK, 22, BOLD),
        ]
        before += size
    say = (
        f"request {place.request}: {place.tokens} of its {place.total} tokens are stored; "
        f"it holds {before} slots, and {max(0, before - place.total)} of them are never used"
    )
    return linked([f"r{place.request}"], say, *parts)


def _corner(slot: int, row: int) -> tuple[float, float]:
    return LEFT + slot % row * WIDTH / row, TOP + PITCH * (slot // row)


def _strip(region: Region, row: int, look: str, edge: str = "none") -> list[str]:
    """Neighbouring slots as one rectangle in each row that they touch."""
    drawn: list[str] = []
    at, end = region.start, region.start + region.size
    while at < end:
        stop = min(end, (at // row + 1) * row)
        x, y = _corner(at, row)
        drawn.append(box(x, y, (stop - at) * WIDTH / row, HIGH, look, 1, edge))
        at = stop
    return drawn
