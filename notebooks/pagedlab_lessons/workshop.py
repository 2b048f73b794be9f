"""The pictures of notebook 07's workshop: the ladder of kernels, and the loads of a kernel.

    draw_opening    the loads of a rung beside the speeds of all rungs
    draw_loads      the loads of a reader's kernel in a puzzle's example, element by element
    speed_beside    the speed of a reader's kernel in the ladder, measured now
    loads_beside    the bytes that it loads for each byte that is needed, beside the rungs

The page shows them through `widgets.workshop`. The speeds are those of data/results,
measured by `benchmarks/attention.py --rungs`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pagedlab.arguments import one_of
from pagedlab.shipped import benchmark, results
from pagedlab_lessons.colors import NEUTRAL, Look, sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    CARD,
    HALO,
    INK,
    LINE,
    SOFT,
    WRONG,
    Drawing,
    Place,
    Run,
    Strip,
    box,
    label,
    linked,
    rows,
    svg,
    wide,
)
from pagedlab_lessons.drawing.flow import (
    WIDTH,
    Beside,
    Both,
    Drawn,
    Item,
    Space,
    Text,
    grid_in,
    note,
    page,
    stack,
    title,
)

if TYPE_CHECKING:
    from pagedlab_lessons.fence import Access
    from pagedlab_lessons.tracer import Trace

SHAPES = {
    "Llama-3-8B, 32 x 4,096": "llama-3-8b decode 32 x 4096, block 16",
    "Qwen2.5-7B, 64 x 4,096": "qwen2.5-7b decode 64 x 4096, block 16",
    "Qwen2.5-0.5B, 256 x 1,024": "qwen2.5-0.5b decode 256 x 1024, block 16",
    "Llama-3-8B, 1 x 16,384": "llama-3-8b decode 1 x 16384, block 16",
}
RUNGS = {  # of pagedlab_lessons.ladder, and which of the tracer's shows its loads
    "1 one page at a time": "1 one page at a time",
    "2 a tile of several pages": "2 a tile of 32 keys",
    "3 heads share a load": "3 heads share a load",
    "4 tensor cores": "3 heads share a load",
    "5 more in flight": "3 heads share a load",
    "6 fewer warps": "3 heads share a load",
    "7 splits and their merge": "7 four splits",
}
CHANGES = {  # what each rung changes, and what that does
    "1 one page at a time": "A tile is one page: much waiting for few keys.",
    "2 a tile of several pages": "A tile is two pages: twice the keys in one wait.",
    "3 heads share a load": "Each key is loaded once for all heads, by a quarter of the programs.",
    "4 tensor cores": "Two things: tensor cores multiply faster, and tiles are loaded ahead.",
    "5 more in flight": "Two tiles are loaded ahead instead of one.",
    "6 fewer warps": "Two warps instead of four: fewer threads wait for each other.",
    "7 splits and their merge": (
        "Several programs share a sequence; a merge follows. Tiles of 64 (above: 32)."
    ),
}
UNPAGED = "unpaged SDPA (cudnn, token first)"  # keys in a row in memory, as if there were no pages
PEERS = {
    "pagedlab": "the library's kernel",
    UNPAGED: "unpaged, cuDNN",
    "gather + SDPA": "gather, then torch",
}
# Names of methods in benchmarks/attention.py, and of their bars.
METHODS = {f"rung {name.replace(' ', ', ', 1)}": name for name in RUNGS} | PEERS


def recorded() -> dict[str, Any]:
    """Return the measured ladder: machine, roofs, rows, and the compiler's figures."""
    return results("h200")["ladder"]


# The ladder ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bars:
    """A bar for each kernel, and a dotted line that they are compared with.

    Args:
        values: by name.
        shown: what is written after each bar.
        line: the value of the line.
        line_says: what it is.
        room: pixels for what is written.
        now: the name to mark.
        hidden: names whose value is shown as a question mark.
        said: what is said of a bar that is pointed at.
    """

    values: dict[str, float]
    shown: dict[str, Both[str]]
    line: float
    line_says: str
    room: Both[float] = 50
    now: str = ""
    hidden: Collection[str] = ()
    said: dict[str, str] = field(default_factory=dict)

    def __call__(self, space: Space) -> Drawn:
        names = space.pick(184, 172)
        x = space.x + names
        unit = (space.width - names - space.of(self.room)) / max(self.line, *self.values.values())
        end = x + unit * self.line
        pitch = space.pick(26, 18)
        y = space.y + 12
        line = f"M{end:.1f} {space.y + 4:.0f}V{y + pitch * len(self.values):.0f}"
        parts = [f'<path d="{line}" stroke="{INK}" stroke-dasharray="3 3" fill="none"/>']
        for name in self.values:
            place = Place(x, y, names, pitch - space.pick(8, 3))
            parts.append(self._bar(name, space.of(self.shown[name]), place, unit))
            y += pitch
        left = min(end, space.x + space.width) - wide(self.line_says, 12)
        parts.append(label(left, y + 14, self.line_says, 12, SOFT))
        return Drawn(parts, y + 22)

    def _bar(self, name: str, shown: str, place: Place, unit: float) -> str:
        """Draw a bar with its name and what is written after it."""
        x, y, names, height = place
        base = y + height / 2 + 4.5
        if name in self.hidden:
            title = label(x - names, base, name, 12, SOFT, names - 8)
            return title + label(x + 5, base, "?", 12, SOFT)
        color, share = _look_of_rung(name, self.now)
        look = BOLD if name == self.now else ""
        bar = unit * self.values[name]
        drawn = [
            box(x - names, y, names + bar, height, LINE, 0),  # the whole row can be pointed at
            box(x, y, bar, height, color, share, color),
            label(x - names, base, name, 12, INK, names - 8, look),
            label(x + bar + 5, base, shown, 12, look=f"{look};{HALO}"),
        ]
        return linked([name], self.said[name], *drawn) if self.said else "".join(drawn)


def ladder(
    speeds: dict[str, float], copy: float, now: str = "", hidden: Collection[str] = ()
) -> Bars:
    """Return a bar for each kernel, and the speed of a copy as a dotted line.

    Args:
        speeds: GB/s by name.
        copy: GB/s of a copy.
        now: the name to mark.
        hidden: names whose speed is shown as a question mark.
    """
    shown: dict[str, Both[str]] = {name: f"{speed:,.0f}" for name, speed in speeds.items()}
    said = {
        name: f"{name}: {speed:,.0f} GB/s, {speed / copy:.1%} of a copy's speed"
        for name, speed in speeds.items()
    }
    return Bars(speeds, shown, copy, f"a copy: {copy:,.0f}", now=now, hidden=hidden, said=said)


def _look_of_rung(name: str, now: str) -> tuple[str, float]:
    """Return the colour of a bar and its share: the marked one, a rung, or a peer."""
    if name == now:
        return sequence_color(5), 1
    if name[0].isdigit():
        return sequence_color(0), 0.75
    return sequence_color(1), 0.3


def speeds_of(case: str, pages: int = 16) -> dict[str, float]:
    """Return the recorded GB/s of each rung and peer.

    Args:
        case: one of the values of `SHAPES`.
        pages: slots in a page, 16 or 64. Not every kernel was measured with 64.
    """
    case = case.replace("block 16", f"block {pages}")
    rows = {
        row["method"]: row["GB/s"]
        for row in recorded()["rows"]
        if row["case"] == case and "GB/s" in row
    }
    return {name: rows[method] for method, name in METHODS.items() if method in rows}


def draw_opening(traces: dict[str, Trace], rung: str, progress: int, shape: str) -> Drawing:
    """Draw memory as a rung's programs load it, and beside it the speed of each rung.

    Args:
        traces: of the rungs; empty without Triton.
        rung: one of `RUNGS`.
        progress: which step of the rung's trace, in per cent: 0 is the first one, 100 the last.
        shape: one of `SHAPES`.
    """
    headline = f"Rung {rung}"
    memory: list[Item] = []
    if trace := traces.get(RUNGS[rung]):
        step = round(progress / 100 * (len(trace.steps) - 1))
        headline = _headline(trace, step)
        axes = f"sequence, {'query' if rung[0] in '12' else 'KV'} head"
        if rung[0] == "7":
            axes += ", split"
        memory = [
            note(f"colour: sequence; solid: loaded now, by program ({axes})"),
            partial(draw_memory, trace, step),
        ]
    found = recorded()
    machine = found["machine"]
    speeds = speeds_of(SHAPES[shape])
    copy = found["roofs"]["copy"] / 1e9
    speed: list[Item] = [
        title((f"GB/s of keys and values, {shape}", f"GB/s, {shape}"), above=(0, 8)),
        note(f"{machine['card']}, {machine['date']}"),
        ladder(speeds, copy, rung, _not_shown_yet(rung, speeds)),
    ]
    change = Text(CHANGES[rung], (13, 12), look=BOLD, above=6, lines=(1, 2))
    name = f"Rung {rung}: the keys that its programs load, and its speed beside the other rungs"
    columns = Beside([[*memory, change], speed], shares=(0.58, 0.42))
    return page(headline, columns, name=name, shown_width=950)


def _not_shown_yet(rung: str, speeds: Collection[str]) -> list[str]:
    """Return what comes after this rung: a guess about its speed comes later in the notebook."""
    *_, last = names = list(RUNGS)
    shown = speeds if rung == last else names[: names.index(rung) + 1]
    return [name for name in speeds if name not in shown]


def _headline(trace: Trace, at: int) -> str:
    """Return what a step of a trace shows, in words."""
    times = trace.rows_loaded / trace.rows_stored
    working = sum(len(rows) > 0 for rows in trace.steps[at].values())
    return (
        f"Step {at + 1} of {len(trace.steps)}: {working} of {trace.programs} programs at work, "
        f"each key loaded {times:.0f} x"
    )


class _Load(NamedTuple):
    """A key that a program loaded: its slot in the page, and whether it was in this step."""

    slot: int
    is_now: bool
    program: tuple[int, ...]


def draw_memory(trace: Trace, step: int, space: Space) -> Drawn:
    """Draw the key cache page by page, with a stripe for each KV head.

    Solid slots are loaded in this step, pale ones were loaded before, empty ones were not.

    Args:
        trace: of a kernel.
        step: of the trace, from 0 on.
        space: where the pages are.
    """
    batch = trace.batch
    owner = {page: b for b, table in enumerate(batch.tables()) for page in table}
    loads = _loads_by_stripe(trace, step)
    programs = {program for loaded in trace.steps for program in loaded}
    num_axes = 3 if any(program[2] for program in programs) else 2
    height = space.pick(17, 15)
    grid = grid_in(space.down(6), (4, 3), 2 * height, gap=(8, 3))
    parts = []
    for number in range(batch.num_blocks):
        x, y = grid.corner(number)
        left = x + 15 - wide(str(number), 11)
        parts.append(label(left, y + height + 3, str(number), 11, SOFT))
        sequence = owner.get(number)
        whose = "no sequence's" if sequence is None else f"sequence {sequence}"
        for head in range(batch.kv_heads):
            found = loads[number, head]
            unit = (grid.width - 18) / batch.block_size
            strip = Strip(x + 18, y + head * height, unit, height - 2)
            drawn = _draw_stripe(strip, batch.block_size, sequence, found, num_axes)
            say = f"page {number}, KV head {head}, {whose}: {len(found)} loads of a key so far"
            parts.append(linked([f"{number}-{head}"], say, *drawn))
    return Drawn(parts, grid.bottom(batch.num_blocks) + 6)


def _loads_by_stripe(trace: Trace, step: int) -> defaultdict[tuple[int, int], list[_Load]]:
    """Return the loads up to a step by page and KV head."""
    batch = trace.batch
    loads: defaultdict[tuple[int, int], list[_Load]] = defaultdict(list)
    for i, programs in enumerate(trace.steps[: step + 1]):
        for program, loaded in programs.items():
            for row in loaded.tolist():
                slot, head = divmod(row, batch.kv_heads)
                page, offset = divmod(slot, batch.block_size)
                loads[page, head].append(_Load(offset, i == step, program))
    return loads


def _draw_stripe(
    strip: Strip, size: int, sequence: int | None, loads: list[_Load], num_axes: int
) -> list[str]:
    """Draw a KV head of a page: what was loaded before, what is loaded now, and by which programs.

    Args:
        strip: where it is.
        size: slots in a page.
        sequence: that the page belongs to.
        loads: of this stripe.
        num_axes: of the kernel's grid.
    """
    color = NEUTRAL if sequence is None else sequence_color(sequence)
    edge = LINE if sequence is None else color
    runs = [Run(0, size, Look("none"), edge)]
    width = 0
    for is_now in (False, True):
        slots = [load.slot for load in loads if load.is_now == is_now]
        if slots:
            first, last = min(slots), max(slots)
            width = last + 1 - first
            runs.append(Run(first, last + 1, Look(color, is_pale=not is_now)))
    drawn = rows(runs, strip)
    names = dict.fromkeys(name_of(load.program, num_axes) for load in loads if load.is_now)
    if names:
        ink = "#FFFFFF" if color == sequence_color(0) else "#000000"
        drawn.append(_draw_names(" ".join(names), strip, width * strip.unit, size, ink))
    return drawn


def _draw_names(names: str, strip: Strip, loaded: float, size: int, ink: str) -> str:
    """Draw the names of programs on what they load, or after it, or over the whole stripe.

    Args:
        names: of the programs.
        strip: the stripe.
        loaded: pixels that are loaded now, from the left.
        size: slots in a page.
        ink: the colour of a text on what is loaded.
    """
    base = strip.y + strip.height / 2 + 4
    room = wide(names, 11) + 6
    if room <= loaded:
        return label(strip.x + 3, base, names, 11, ink, look=BOLD)
    if room <= size * strip.unit - loaded:
        return label(strip.x + loaded + 3, base, names, 11, INK, look=BOLD)
    return label(strip.x + 3, base, names, 11, INK, size * strip.unit - 6, f"{BOLD};{HALO}")


def name_of(program: Sequence[int], axes: int = 3) -> str:
    """Return "(1,0)" for program (1, 0, 0) of a grid with two axes."""
    return f"({','.join(map(str, program[:axes]))})"


def traces() -> dict[str, Trace]:
    """Return what the rungs load; nothing where there is no Triton."""
    if not find_spec("triton"):
        return {}
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        os.environ["TRITON_INTERPRET"] = "1"  # Triton does not compile for older GPUs
    from pagedlab_lessons import tracer

    return tracer.trace_rungs((200, 40, 100), num_blocks=28)


# What a reader's kernel loads ---------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """What is drawn of a puzzle's kernel, and of a right kernel in a smaller case.

    Args:
        tensors: that are drawn, and how many elements make a cell. The smaller case has the last.
        color: what gives a program its colour.
        text: what the smaller case shows.
        shape: of the tensor there.
        loads: the elements that each program loads there; the others hold nothing.
    """

    tensors: dict[str, int]
    color: str
    text: str
    shape: tuple[int, ...]
    loads: dict[tuple[int, int, int], Sequence[int]]

    def accesses(self) -> list[Access]:
        """Return the loads of the smaller case, all of them in the first step."""
        from pagedlab_lessons.fence import Access

        return [Access(program, 0, np.array(elements)) for program, elements in self.loads.items()]


_OF_PROGRAM = "the program that loads"
_OF_HEAD = "the head of the program that loads"
_OF_SEQUENCE = "the sequence of the program that loads"
_SIXTEEN = {"k_cache": 16}
_PAGE_0 = range(4 * 16)  # the elements of a page with 4 slots and a head of 16 numbers
_FILLED_OF_PAGE_1 = range(4 * 16, 7 * 16)
_TWO_PAGES = (2, 4, 1, 16)
SHOWN = {
    "weights": Watched(
        {"s": 1},
        _OF_PROGRAM,
        "Six numbers in tiles of 4: program 0 loads the first four, program 1 the last two.",
        (6,),
        {(0, 0, 0): (0, 1, 2, 3), (1, 0, 0): (4, 5)},
    ),
    "scores": Watched(
        {"k": 1},
        _OF_HEAD,
        "Two tokens with two heads of two numbers: program 0 loads head 0, program 1 head 1.",
        (2, 2, 2),
        {(0, 0, 0): (0, 1, 4, 5), (1, 0, 0): (2, 3, 6, 7)},
    ),
    "online_step": Watched(
        {"s": 1, "v": 1},
        _OF_PROGRAM,
        "Two values of four numbers: the only program loads each number once.",
        (2, 4),
        {(0, 0, 0): range(8)},
    ),
    "paged_scores": Watched(
        {"table": 1, "k_cache": 1},
        _OF_HEAD,
        "Three tokens in two pages of two slots, table [1, 0]: program 0 loads head 0, program 1 "
        "head 1.",
        (2, 2, 2, 2),
        {(0, 0, 0): (8, 9, 12, 13, 0, 1), (1, 0, 0): (10, 11, 14, 15, 2, 3)},
    ),
    "decode": Watched(
        _SIXTEEN,
        _OF_SEQUENCE,
        "Two sequences, two query heads for a KV head: two programs load each key, hence the 2.",
        _TWO_PAGES,
        {
            (0, 0, 0): _PAGE_0,
            (0, 1, 0): _PAGE_0,
            (1, 0, 0): _FILLED_OF_PAGE_1,
            (1, 1, 0): _FILLED_OF_PAGE_1,
        },
    ),
    "grouped": Watched(
        _SIXTEEN,
        _OF_SEQUENCE,
        "Two sequences, two query heads for a KV head: one program loads each key.",
        _TWO_PAGES,
        {(0, 0, 0): _PAGE_0, (1, 0, 0): _FILLED_OF_PAGE_1},
    ),
    "split": Watched(
        _SIXTEEN,
        "the split of the program that loads",
        "One sequence of seven tokens in two splits: a program for each loads its share.",
        _TWO_PAGES,
        {(0, 0, 0): _PAGE_0, (0, 0, 1): _FILLED_OF_PAGE_1},
    ),
}


def seen(name: str, answer: Any) -> tuple[dict[str, Any], dict[str, list[Access]], str]:
    """Run a puzzle's example and watch the kernel.

    Args:
        name: of the puzzle.
        answer: the reader's kernel.

    Returns:
        The kernel's arguments, its loads by tensor, and what stopped it ("" if nothing did).
    """
    from pagedlab_lessons.fence import Memory, Outside
    from pagedlab_lessons.puzzles import PUZZLES

    memory = Memory()
    stopped = ""
    given = memory.put_all(PUZZLES[name].given())
    options: dict[str, Any] = {"put": memory.put} if name == "split" else {}
    try:
        memory.run(lambda: PUZZLES[name].launch(answer, given, **options))
    except Outside as error:
        stopped = f"Stopped: {error}."
    except Exception as error:  # from the reader's kernel
        stopped = f"Stopped: {error.__cause__ or error}"
    return given, dict(memory.loads), stopped


CELL = 19.0  # pixels of a cell


def draw_loads(
    name: str, given: dict[str, Any], loads: dict[str, list[Access]], stopped: str, step: int
) -> str:
    """Draw a puzzle's tensors as cells, and what a kernel loads of them.

    Solid cells are loaded in this step, in the program's colour; pale ones were loaded before;
    dotted ones hold nothing. A cell that was loaded several times says how often. As long as
    nothing is loaded, a smaller case is drawn solved.

    Args:
        name: of the puzzle.
        given: the kernel's arguments.
        loads: by tensor.
        stopped: what stopped the kernel.
        step: the number of loads of a tensor that each program has done.
    """
    items = []
    loaded = needed = 0
    for tensor in SHOWN[name].tensors:
        x = given[tensor]
        accesses = loads.get(tensor, [])
        loaded += sum(len(np.unique(access.elements)) for access in accesses) * x.element_size()
        needed += int((~x.isnan()).sum()) * x.element_size()
        items.append(_tensor(name, tensor, x, accesses, step))
    headline = "Nothing loaded yet."
    if loaded:
        headline = f"needed {needed:,} bytes, loaded {loaded:,}: {loaded / needed:.2g} x"
    elif not stopped:
        items += _solved_case(name)
    explained = (
        f"colour: {SHOWN[name].color}; pale: loaded in an earlier step; dotted: holds nothing; "
        "framed in orange: needed, and never loaded"
    )
    head = [title(headline, above=0), note(stopped or explained)]
    drawn = stack([*head, *items], Space(0, 2, WIDTH, is_narrow=False))
    return svg(WIDTH, drawn.bottom, drawn.parts, f"{headline} {stopped}".strip())


def _solved_case(name: str) -> list[Item]:
    """Return what a right kernel loads in a case smaller than the puzzle's."""
    case = SHOWN[name]
    x = torch.full(case.shape, torch.nan).flatten()
    for elements in case.loads.values():
        x[list(elements)] = 0
    tensor = _tensor(name, [*case.tensors][-1], x.view(case.shape), case.accesses(), 1)
    return [title("A smaller case, solved", above=0), note(case.text), tensor]


def _tensor(name: str, tensor: str, x: torch.Tensor, accesses: list[Access], step: int) -> Item:
    """Return the cells of a tensor of a puzzle, after its name."""
    unit = SHOWN[name].tensors[tensor]
    programs = _programs_by_cell(accesses, unit, step)
    axis = 2 if name == "split" else 0  # of the grid, which gives the colour
    is_last = bool(accesses) and step > max(access.step for access in accesses)
    empty = x.isnan().flatten().tolist()

    def draw(space: Space) -> Drawn:
        top = space.y + 8
        if x.ndim == 4:
            top += 14  # for the pages' ids
        parts = [label(space.x, top + 15, f"{tensor} {list(x.shape)}", 12, INK, 142)]
        bottom = top
        for cell, place in enumerate(_places(x, unit)):
            px = space.x + 150 + place.left * CELL
            py = top + place.down * CELL
            is_empty = empty[cell * unit]
            drawn = _draw_cell(px, py, is_empty, programs[cell], step, axis)
            if is_last and not is_empty and not programs[cell]:
                look = 'stroke-width="2.5"'
                drawn.append(box(px, py, CELL - 2, CELL - 2, "none", 1, WRONG, look))
            if place.page:
                parts.append(label(px, py - 4, place.page, 11, SOFT))
            names = dict.fromkeys(name_of(program) for _, program in programs[cell])
            say = f"loaded by {', '.join(names)}" if names else "not loaded"
            unwritten = ", holds nothing" if is_empty else ""
            parts.append(linked([f"{tensor}{cell}"], f"{place.name}{unwritten}: {say}", *drawn))
            bottom = max(bottom, py + CELL)
        return Drawn(parts, bottom + 8)

    return draw


def _programs_by_cell(
    accesses: list[Access], unit: int, step: int
) -> defaultdict[int, list[tuple[int, tuple[int, ...]]]]:
    """Return for each cell the steps, up to this one, and the programs that loaded it."""
    programs: defaultdict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for access in accesses:
        if access.step < step:
            for cell in dict.fromkeys((access.elements // unit).tolist()):
                programs[cell].append((access.step + 1, access.program))
    return programs


def _draw_cell(
    x: float,
    y: float,
    is_empty: bool,
    programs: list[tuple[int, tuple[int, ...]]],
    step: int,
    axis: int,
) -> list[str]:
    """Draw a cell, and the programs that loaded it."""
    side = CELL - 2
    edge, look = (LINE, 'stroke-dasharray="2 2"') if is_empty else (INK, "")
    drawn = [box(x, y, side, side, "none", 1, edge, look)]
    if programs:
        _, last = programs[-1]
        is_now = any(at == step for at, _ in programs)
        drawn.append(box(x, y, side, side, sequence_color(last[axis]), 0.9 if is_now else 0.35))
    if len(programs) > 1:
        drawn.append(box(x + 3, y + 2, 12, 13, CARD, 0.85))
        drawn.append(label(x + 5, y + 12.5, str(len(programs)), 11, INK))
    return drawn


class _Place(NamedTuple):
    """Where a cell is drawn, in cells from the left and from above, and its name.

    The first cell of a page of a cache has the page's id too.
    """

    left: float
    down: float
    name: str
    page: str = ""


AXES = {  # by their number
    1: ("element",),
    2: ("token", "number"),
    3: ("token", "head", "number"),
    4: ("page", "slot", "head", "number"),
}


def _places(x: torch.Tensor, unit: int) -> Iterator[_Place]:
    """Yield the place of each cell of a tensor.

    A cell is a number, with tokens or slots downwards and heads to the right; or it is a row of
    numbers, with slots to the right and heads downwards.

    Args:
        x: a tensor with one to four axes.
        unit: elements in a cell: 1, or all numbers of a head.
    """
    axes = AXES[x.ndim] if unit == 1 else AXES[x.ndim][:-1]
    *_, size, heads, dim = (1, 1, *x.shape)
    for cell in range(x.numel() // unit):
        index = [int(i) for i in np.unravel_index(cell * unit, x.shape)]
        name = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=False))
        starts_page = x.ndim == 4 and not any(index[1:])
        if x.ndim == 2:
            index.insert(1, 0)  # there is one head
        page, slot, head, i = [0, 0, 0, *index][-4:]
        left, down = page * (heads * dim + 1) + head * (dim + 0.3) + i, slot
        if unit > 1:
            left, down = page % 7 * (size + 1) + slot, page // 7 * (heads + 1) + head
        yield _Place(left, down, name, f"page {page}" if starts_page else "")


# The reader's kernel in the ladder ----------------------------------------------------------------


def loads_beside(answer: Any) -> Drawing:
    """Draw the bytes of keys that a kernel loads for each byte that it needs, beside the rungs.

    Args:
        answer: the reader's kernel.
    """
    from pagedlab_lessons import tracer

    lengths = (200, 40, 100)
    traces = {"yours": tracer.trace_own(answer, lengths), **tracer.trace_rungs(lengths)}
    times = {name: trace.rows_loaded / trace.rows_stored for name, trace in traces.items()}
    shown: dict[str, Both[str]] = dict.fromkeys(traces, ("nothing loaded yet", "nothing"))
    for name, trace in traces.items():
        if times[name]:
            short = f"{times[name]:.2g} x"
            programs = f"{trace.programs} programs, at most {len(trace.steps)} steps"
            shown[name] = (f"{short}, {programs}", short)
    bars = Bars(times, shown, 1, "the floor: each byte once", room=(300, 60), now="yours")
    return page("Bytes of keys loaded, for each byte that is needed", bars)


def speed_beside(answer: Any, shape: str, **cut: int) -> Drawing:
    """Measure the speed of a kernel and of its peers, and draw it.

    The measuring code is that of benchmarks/attention.py.

    Args:
        answer: the reader's kernel.
        shape: one of `SHAPES`.
        cut: tile, num_stages and num_warps.
    """
    from tqdm.auto import tqdm

    from pagedlab.kernels.plan import multiprocessors
    from pagedlab_lessons.puzzles import decoder

    folder = str(Path(benchmark("attention")).parent)
    sys.path.insert(0, folder)
    try:
        import attention_methods as methods
        from attention import roofs, seconds
    finally:
        sys.path.remove(folder)
    copy = roofs()["copy"] / 1e9  # first: its 8 GiB are free again for the rest
    wanted = SHAPES[one_of("shape", shape, SHAPES)]
    case = next(case for case in methods.cases() if case.name == wanted)
    inputs = methods.Inputs(case, seed=0)
    own = decoder(answer, multiprocessors(inputs.seq_lens.device), **cut)
    exact = methods.reference(inputs)
    out = own(*inputs.paged(0)[:5])
    error = float((out.double() - exact).norm() / exact.norm())
    if not error < 0.02:  # bf16 gives 0.002
        refused = f"Not measured: it differs from attention by {error:.0%}."
        return page(refused)

    def speed(run: Any) -> float:
        return case.kv_bytes / seconds(run) * 1e-9

    speeds = {"yours": speed(methods.rung(inputs, own))}
    for method, name in tqdm(METHODS.items(), "measuring", leave=False):
        with suppress(Exception):  # smaller cards refuse some: not enough shared memory, no cuDNN
            speeds[name] = speed(methods.METHODS[method](inputs))
    card = f"{torch.cuda.get_device_name()}, measured now: GB/s of keys and values, {shape}"
    return page(card, ladder(speeds, copy, "yours"))
