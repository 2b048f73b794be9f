"""Notebook 01's pictures: the slots that users hold, and a small memory step by step."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pagedlab.blocks import OutOfBlocks
from pagedlab_lessons.colors import FREE, MEMORY_LOOKS, NEUTRAL, Look, sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    CARD,
    HALO,
    INK,
    LINE,
    WRONG,
    Drawing,
    Drawn,
    Item,
    Legend,
    Run,
    Space,
    Strip,
    box,
    label,
    linked,
    page,
    rows,
    title,
    wide,
)
from pagedlab_lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request
from pagedlab_lessons.simulation import Place, Sample
from pagedlab_lessons.simulation import Run as Simulated


class Holder(NamedTuple):
    """Who holds slots of a memory.

    Args:
        name: is drawn at the end of each region that has room for it.
        say: what is said when one of the slots is pointed at.
        regions: of slots, in the order of the tokens.
        looks: of the slots: each look ends before a number of slots.
    """

    name: str
    say: str
    regions: Sequence[Region]
    looks: Sequence[tuple[int, Look]]


def _strip(space: Space, row: int) -> Strip:
    """Return where the slots of a memory are, with so many in a line."""
    return Strip(space.x, space.y + 2, space.width / row, 26, row, 31)


def _memory(num_slots: int, empty: Look, holders: Iterable[Holder], strip: Strip) -> Drawn:
    """Draw a memory, in lines."""
    parts = rows([Run(0, num_slots, empty, LINE)], strip)
    parts += [_held(holder, strip) for holder in holders]
    return Drawn(parts, strip.y + strip.pitch * -(-num_slots // strip.row))


def _held(holder: Holder, strip: Strip) -> str:
    """Draw the slots of a holder."""
    drawn = []
    before = 0  # slots of the earlier regions
    room = wide(holder.name, 11) + 6
    for start, size in holder.regions:
        begin, stop = start, start + size
        shown = [Run(start, stop, Look(CARD))]
        for last, look in holder.looks:
            end = min(stop, max(begin, start + last - before))
            shown.append(Run(begin, end, look))
            begin = end
        if size * strip.unit > room:
            shown.append(Run(start, stop, Look("none"), INK))
        drawn += rows(shown, strip)
        x, y = strip.corner(stop - 1)
        x += strip.unit - room - 2  # at the end: the first slots are used, and must be seen
        if x > strip.corner(max(start, stop - 1 - (stop - 1) % strip.row))[0]:
            drawn.append(label(x + 3, y + 15, holder.name, 11, look=f"{BOLD};{HALO}"))
        before += size
    return linked([holder.name.replace(" ", "-")], holder.say, *drawn)


# Who holds which slots ----------------------------------------------------------------------------


def taken_places(
    requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged, row: int
) -> Drawing:
    """Draw which requests an allocator admits to an empty memory, and the slots that each holds.

    A solid slot holds a token, a striped one is reserved and empty, a plain one is nobody's.

    Args:
        requests: prompt and output tokens of each request.
        allocator: of an empty memory.
        row: slots in a row of the picture.
    """
    holders = []
    with suppress(OutOfMemory, OutOfBlocks):  # which one depends on the allocator
        for key, (prompt, output) in enumerate(requests):
            allocator.admit(key, Request(prompt, output))
            holders.append(_user(key, allocator.regions(key), prompt))
    admitted = len(holders)
    num_slots = allocator.num_slots
    taken = num_slots - allocator.num_free
    headline = (
        f"{admitted} of {len(requests)} users fit; {taken:,} of {num_slots:,} slots are reserved."
    )
    refused = f"user {admitted + 1}"
    needed = 0  # slots, by this user
    reason = ""
    if admitted < len(requests):
        headline = f"No memory for {refused}. {headline}"
        needed = allocator.needs(Request(*requests[admitted]))
        reason = f"{needed:,} needed, {num_slots - taken:,} left"

    def memory(space: Space) -> Drawn:
        strip = _strip(space, row)
        drawn = _memory(num_slots, FREE, holders, strip)
        if needed:
            x, y = strip.corner(taken)
            dashed = 'stroke-width="2" stroke-dasharray="6 4"'
            frame = box(x, y, needed * strip.unit, strip.height, "none", 1, WRONG, dashed)
            drawn.parts.extend([frame, label(x + 5, y + 17, refused, 11, look=BOLD)])
        return drawn

    looks = [  # of slots that are no user's in particular
        (Look(NEUTRAL), "holds a token"),
        (Look(NEUTRAL, "//", is_pale=True), "reserved, empty"),
        (FREE, "nobody's"),
    ]
    return page(headline, Legend(looks), memory, more=reason)


def _user(key: int, regions: Sequence[Region], prompt: int) -> Holder:
    """Return the slots of an admitted request; regions that follow one another are one."""
    joined: list[Region] = []
    for start, size in regions:
        if joined and sum(joined[-1]) == start:
            start, before = joined.pop()
            size += before
        joined.append(Region(start, size))
    color = sequence_color(key)
    length = sum(region.size for region in joined)
    say = (
        f"User {key + 1}: a prompt of {prompt:,} tokens, {length:,} slots reserved, "
        f"{length - prompt:,} of them empty"
    )
    if len(joined) > 1:
        say += f", in {len(joined)} pieces"
    return Holder(
        f"user {key + 1}",
        say,
        joined,
        [(prompt, Look(color)), (length, Look(color, "//", is_pale=True))],
    )


# A small memory, step by step ---------------------------------------------------------------------


def memory_maps(runs: Mapping[str, Simulated], step: int) -> Drawing:
    """Draw the memory of each allocator at the same step, each slot in the look of its kind.

    Args:
        runs: by the allocator's name, made with `places=True` and `sample_every=1`.
        step: counted from 0; the memory of a run that is over is empty.
    """
    items: list[Item] = [Legend([(look, kind) for kind, look in MEMORY_LOOKS.items()])]
    for name, run in runs.items():
        sample = Sample(0, 0, {}, [])
        tail = f"all have finished, after {len(run.samples)} steps"
        if step < len(run.samples):
            sample = run.samples[step]
            used = sample.slots["used"] / run.num_slots
            tail = f"{used:.0%} used; {sample.running} running, {sample.waiting} waiting"
        items += [title(name, tail), partial(_moment, name, run.num_slots, sample)]
    return page(f"Step {step}: the same requests in four memories", *items)


def _moment(name: str, num_slots: int, sample: Sample, space: Space) -> Drawn:
    """Draw an allocator's memory."""
    empty = MEMORY_LOOKS["external" if sample.waiting else "free"]
    holders = [_request(name, place) for place in sample.places]
    return _memory(num_slots, empty, holders, _strip(space, space.pick(192, 96)))


def _request(name: str, place: Place) -> Holder:
    """Return one request's slots: used, then reserved, then internal."""
    held = sum(region.size for region in place.regions)
    say = (
        f"{name}, request {place.request}: {place.tokens} of its {place.total} tokens are stored; "
        f"it holds {held} slots, and {max(0, held - place.total)} of them are never used"
    )
    ends = {"used": place.tokens, "reserved": place.total, "internal": held}
    looks = [(end, MEMORY_LOOKS[kind]) for kind, end in ends.items()]
    return Holder(f"r{place.request}", say, place.regions, looks)
