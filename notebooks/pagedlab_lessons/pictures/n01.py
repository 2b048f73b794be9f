"""Notebook 01's pictures: the slots that users hold, and a small memory step by step."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pagedlab.blocks import OutOfBlocks
from pagedlab_lessons.colors import FREE, MEMORY_LOOKS, Look, sequence_color
from pagedlab_lessons.drawing import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    WRONG,
    Drawing,
    Run,
    Strip,
    box,
    label,
    linked,
    rows,
    wide,
)
from pagedlab_lessons.drawing.flow import Drawn, Item, Legend, Space, page, title
from pagedlab_lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request
from pagedlab_lessons.simulation import Place, Sample
from pagedlab_lessons.simulation import Run as Simulated

NAMES = (76, 54)  # pixels of the names of rows
NOTHING = Look("none")
ROW = (192, 96)  # slots in a line of a memory
DASHED = 'stroke-width="2" stroke-dasharray="6 4"'


# Which user holds which slots ---------------------------------------------------------------------


def taken_places(
    requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged, row: int
) -> Drawing:
    """Draw which requests an allocator admits to an empty memory, and the slots that each holds.

    A solid slot holds a token, a striped one is reserved and empty, a plain one is free.

    Args:
        requests: prompt and output tokens of each request.
        allocator: of an empty memory.
        row: slots in a row of the picture.
    """
    admitted = _admit(requests, allocator)
    num_slots = allocator.num_slots
    taken = sum(allocator.held(key)[1] for key in range(admitted))
    headline = (
        f"{admitted} of {len(requests)} users fit; {taken:,} of {num_slots:,} slots are reserved."
    )
    color = INK
    needed = 0  # slots of the user who does not fit
    if admitted < len(requests):
        headline = f"No memory for user {admitted + 1}. {headline}"
        color = BAD
        needed = allocator.needs(Request(*requests[admitted]))

    def memory(space: Space) -> Drawn:
        pitch, height = space.pick((29, 23), (25, 20))
        left = space.pick(*NAMES)
        strip = Strip(left, space.y + 8, (space.width - left) / row, height, row, pitch)
        parts = rows([Run(0, num_slots, FREE, LINE)], strip)
        for key, (prompt, _) in enumerate(requests[:admitted]):
            parts.append(_request(key, _joined(allocator.regions(key)), prompt, strip))
        bottom = strip.y + pitch * -(-num_slots // row)
        if needed:
            x, y = strip.corner(taken)
            parts.append(box(x, y, needed * strip.unit, height, "none", 1, WRONG, DASHED))
            reason = f"{needed:,} needed, {num_slots - taken:,} free"
            x = min(x, space.width - wide(reason, 12))
            parts.append(label(x, bottom + 10, reason, 12, look=BOLD))
        if needed == row:
            parts.append(_name(admitted, taken, strip))
        return Drawn(parts, bottom + 16)

    stored = Look(sequence_color(0))
    looks = [(stored, "holds a token"), (_reserved(stored), "reserved, empty"), (FREE, "free")]
    return page(headline, Legend(looks), memory, color=color)


def _admit(requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged) -> int:
    """Admit requests until one is refused; return how many were admitted."""
    for key, request in enumerate(requests):
        try:
            allocator.admit(key, Request(*request))
        except (OutOfMemory, OutOfBlocks):
            return key
    return len(requests)


def _reserved(look: Look) -> Look:
    """Return the look of slots that are reserved, and hold no token."""
    return Look(look.color, "//", is_pale=True)


def _joined(regions: Iterable[Region]) -> list[Region]:
    """Return the same slots; regions that follow one another are one."""
    joined: list[Region] = []
    for start, size in regions:
        if joined and joined[-1].start + joined[-1].size == start:
            joined[-1] = Region(joined[-1].start, joined[-1].size + size)
        else:
            joined.append(Region(start, size))
    return joined


def _request(key: int, regions: Sequence[Region], prompt: int, strip: Strip) -> str:
    """Draw the slots of an admitted request."""
    look = Look(sequence_color(key))
    drawn = []
    left = prompt  # tokens that the regions so far do not hold
    for start, size in regions:
        used = start + min(left, size)
        drawn += rows([Run(start, used, look), Run(used, start + size, _reserved(look))], strip)
        left = max(0, left - size)
    length = sum(region.size for region in regions)
    if length == strip.row:
        drawn.append(_name(key, regions[0].start, strip))
    say = (
        f"User {key + 1}: a prompt of {prompt:,} tokens, {length:,} slots reserved, "
        f"{length - prompt:,} of them empty"
    )
    if len(regions) > 1:
        say += f", in {len(regions)} pieces"
    return linked([f"u{key}"], say, *drawn)


def _name(key: int, slot: int, strip: Strip) -> str:
    """Draw whose row it is that begins with a slot."""
    _, y = strip.corner(slot)
    return label(0, y + strip.height / 2 + 4.5, f"user {key + 1}", 11, SOFT)


# A small memory, step by step ---------------------------------------------------------------------


def memory_maps(runs: Mapping[str, Simulated], step: int) -> Drawing:
    """Draw the memory of each allocator at the same step, each slot in the look of its kind.

    Args:
        runs: by the allocator's name, made with `places=True` and `sample_every=1`.
        step: counted from 0; the memory of a run that is over is empty.
    """
    items: list[Item] = [Legend([(look, kind) for kind, look in MEMORY_LOOKS.items()])]
    for name, run in runs.items():
        if step < len(run.samples):
            sample = run.samples[step]
            used = sample.slots["used"] / run.num_slots
            tail = f"{used:.0%} used; {sample.running} running, {sample.waiting} waiting"
        else:
            sample = Sample(step, 0, 0, {}, [])
            tail = f"all have finished, after {len(run.samples)} steps"
        items += [title(name, tail), partial(_memory, name, run.num_slots, sample)]
    return page(f"Step {step}: the same requests in four memories", *items)


def _memory(name: str, num_slots: int, sample: Sample, space: Space) -> Drawn:
    """An allocator's memory, in lines."""
    row = space.pick(*ROW)
    empty = "external" if sample.waiting else "free"
    strip = Strip(space.x, space.y + 2, space.width / row, 26, row, 31)
    parts = rows([Run(0, num_slots, MEMORY_LOOKS[empty], LINE)], strip)
    parts += [_place(name, place, strip) for place in sample.places]
    return Drawn(parts, strip.y + strip.pitch * -(-num_slots // row))


def _place(name: str, place: Place, strip: Strip) -> str:
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
        f"{name}, request {place.request}: {place.tokens} of its {place.total} tokens are stored; "
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
