"""The pictures of notebook 07: what the programs of a kernel load, cell by cell and step by step.

    opening()                 the loads of each rung
    watch.weights(kernel)     the loads of a reader's kernel in a puzzle's example
    bench(kernel)             a reader's kernel in the ladder

`Cells` draws all loads. What is loaded is found by watch.py, and imported where Triton is.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from pagedlab_lessons.colors import BLUE, FREE, Look, sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    HALO,
    INK,
    LINE,
    SOFT,
    WRONG,
    Both,
    Drawing,
    Drawn,
    Grid,
    Item,
    Legend,
    Place,
    Space,
    Text,
    box,
    label,
    linked,
    note,
    page,
    runs,
    shape,
    title,
)
from pagedlab_lessons.kernels07.puzzles import Access, Loads, Program
from pagedlab_lessons.kernels07.speeds import RUNGS, ladder, measured_now
from pagedlab_lessons.widgets.explore import Explorer, explore

Done = tuple[tuple[int, Program], ...]  # the step and the program of each load of a cell
# The names of a cell's page, of its line and column there, and of its place in them, by the axes of
# the tensor. It lacks those without a name.
AXES = {
    1: ("", "", "", "element"),
    2: ("", "token", "", "number"),
    3: ("", "token", "head", "number"),
    4: ("page", "slot", "head", "number"),
}
AXES_OF_ROWS = ("page", "KV head", "", "slot")
LENGTHS = (200, 40, 100)  # of the sequences that the rungs attend to
HEIGHT = 17.0  # pixels of a strip
GAP = 6.0  # pixels between strips, and between pages


@dataclass
class Cells:
    """A tensor as strips of cells, and what the programs of a kernel load of it up to a step.

    Solid cells are loaded in this step, in the program's colour; pale ones were loaded before,
    outlined ones will be; dotted ones hold nothing, and orange ones are never loaded. Neighbours
    that look alike are one box with the programs' names.

    Args:
        x: the tensor, NaN where it holds nothing.
        accesses: the loads.
        step: up to which they are drawn, from 0 on.
        width: pixels of a cell.
        axes: of the grid. With two or more, a cell is a row of the last axis of the tensor, and a
            strip the slots of a page.
        axis: of the grid, which gives a program its colour.
    """

    x: torch.Tensor
    accesses: Sequence[Access]
    step: int
    width: Both[float]
    axes: int = 1
    axis: int = 0

    def __call__(self, space: Space) -> Drawn:
        pages, lines, columns, size = self._numbers.shape
        strip = size * space.of(self.width)
        margin = 18 if pages > 1 else 0  # for the page's id
        width = margin + columns * (strip + GAP) - GAP
        fit = max(1, int((space.width + GAP) // (width + GAP)))
        grid = Grid(space.x, space.y + 4, fit, width, lines * HEIGHT, GAP)
        parts = []
        for number in range(pages):
            x, y = grid.corner(number)
            for line, column in np.ndindex(lines, columns):
                left = x + margin + column * (strip + GAP)
                place = Place(left, y + line * HEIGHT, strip, HEIGHT - 2)
                parts += self._strip((number, line, column), place)
            if margin:
                parts.append(label(x + 1.8, y + lines * HEIGHT / 2 + 3, f"{number:2}", 11, SOFT))
        return Drawn(parts, grid.bottom(pages) + 4)

    @cached_property
    def _numbers(self) -> np.ndarray:
        """The number of each cell, [pages, lines, columns, cells]."""
        x = self.x[..., 0] if self.axes > 1 else self.x
        numbers = np.arange(x.numel()).reshape(x.shape)
        if self.axes > 1:
            return numbers.transpose(0, 2, 1)[:, :, None]
        missing = [axis for axis, name in enumerate(AXES[x.ndim]) if not name]
        return np.expand_dims(numbers, missing)

    @cached_property
    def _loads(self) -> dict[int, Done]:
        """The loads of each cell."""
        unit = self.x.shape[-1] if self.axes > 1 else 1
        loads: defaultdict[int, Done] = defaultdict(tuple)
        for program, step, elements in self.accesses:
            for cell in np.unique(elements // unit).tolist():
                loads[cell] += ((step, program),)
        return loads

    def _strip(self, at: tuple[int, int, int], place: Place) -> list[str]:
        """Draw the cells of a line of a page side by side; neighbours that look alike together."""
        *names, unit = AXES_OF_ROWS if self.axes > 1 else AXES[self.x.ndim]
        where = [f"{name} {i}" for name, i in zip(names, at, strict=True) if name]
        numbers = self._numbers[at].tolist()
        pitch = place.width / len(numbers)
        is_empty = self.x.isnan().flatten()[:: self.x.numel() // self._numbers.size].tolist()
        parts = []
        first = 0
        for alike, cells in groupby(numbers, lambda i: (is_empty[i], self._loads.get(i, ()))):
            count = len([*cells])
            inside = Place(place.x + first * pitch, place.y, count * pitch, place.height)
            drawn, words, said = self._alike(*alike, inside)
            if pitch > 12:
                marks = (
                    f"M{inside.x + i * pitch:g} {place.y:g}v{place.height:g}"
                    for i in range(1, count)
                )
                drawn.append(f'<path d="{"".join(marks)}" stroke="{LINE}"/>')
            room = place.x + place.width - inside.x - 4
            if words:
                bold = f"{BOLD};{HALO}"
                drawn.append(label(inside.x + 3, place.y + 12, words, 11, INK, room, bold))
            cell = unit + "s" * (count > 1)
            listed = ", ".join([*where, f"{cell} {runs(range(first, first + count))}"])
            link = f"{self.x.numel()}-{numbers[first]}"  # no other tensor of the picture has it
            parts.append(linked([link], f"{listed}: {said}", *drawn))
            first += count
        return parts

    def _alike(self, is_empty: bool, loads: Done, place: Place) -> tuple[list[str], str, str]:
        """Draw the ground and the edge of cells that look alike.

        Returns:
            The drawing. What is written in the cells: the programs that load them in this step, or
            how often earlier ones did. What is said of them.
        """
        past = [load for load in loads if load[0] <= self.step]
        look = FREE
        edge = SOFT
        line = ""
        if loads:
            step, program = (past or loads)[-1]
            edge = sequence_color(program[self.axis])
            if past:
                look = Look(edge, is_pale=step < self.step)
        elif is_empty:
            look, edge, line = Look("none"), LINE, 'stroke-dasharray="2 2"'
        elif self.accesses:
            edge, line = WRONG, 'stroke-width="2.5"'
        drawn = [shape(*place, look), box(*place, "none", 1, edge, line)]
        count = f"{len(past)} x"
        words = self._names(load for load in past if load[0] == self.step)
        if not words and len(past) > 1:
            words = count
        said = f"not loaded{' yet' if loads else ''}"
        if past:
            said = f"loaded {count}, by {self._names(past)}"
        return drawn, words, f"holds nothing, {said}" if is_empty else said

    def _names(self, loads: Iterable[tuple[int, Program]]) -> str:
        """Return programs as "(1,0) (1,1)"."""
        names = (f"({','.join(map(str, program[: self.axes]))})" for _, program in loads)
        return " ".join(dict.fromkeys(names))


def bytes_of(loads: Loads, tensors: Sequence[str] = ("k_cache",)) -> tuple[int, int]:
    """Return the bytes of tensors that hold something, and the loaded ones, each time counted."""
    needed = loaded = 0
    for name in tensors:
        x = loads.given[name]
        needed += int((~x.isnan()).sum()) * x.element_size()
        for access in loads.of.get(name, []):
            loaded += len(np.unique(access.elements)) * x.element_size()
    return needed, loaded


def steps_of(accesses: Sequence[Access]) -> int:
    """Return how many loads the longest program does."""
    return 1 + max((access.step for access in accesses), default=0)


# The opening --------------------------------------------------------------------------------------


def opening() -> Explorer:
    """Show what each rung's programs load, step by step."""
    rungs = list(RUNGS)
    caption = (
        "Three sequences of 200, 40 and 100 tokens in pages of 16; each of two KV heads serves two "
        "query heads. Progress is in % of the rung's steps."
    )
    return explore(
        partial(_draw_opening, _loads_of_rungs()),
        caption,
        rung=(rungs, rungs[0]),
        progress=([round(100 * i / 12) for i in range(13)], 0),  # the longest has 13 steps
    )


def _loads_of_rungs() -> dict[str, Loads]:
    """Return what the rungs load; nothing where there is no Triton."""
    if not find_spec("triton"):
        return {}
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        os.environ["TRITON_INTERPRET"] = "1"  # Triton does not compile for older GPUs
    from pagedlab_lessons.kernels07.watch import loads_of_rungs

    return loads_of_rungs(LENGTHS)


def _draw_opening(loads: dict[str, Loads], rung: str, progress: int) -> Drawing:
    """Draw memory as a rung's programs load it, and say what the rung changes.

    Args:
        loads: of the rungs; empty without Triton.
        rung: one of `RUNGS`.
        progress: which step, in per cent: 0 is the first one, 100 the last.
    """
    change = Text(RUNGS[rung], (13, 12), look=BOLD, above=6)
    if not loads:
        return page(f"{rung.capitalize()}. What it loads is shown where Triton runs.", change)
    accesses = loads[rung].of["k_cache"]
    last = steps_of(accesses) - 1
    step = round(progress / 100 * last)
    working = sum(access.step == step for access in accesses)
    programs = len({access.program for access in accesses})
    needed, loaded = bytes_of(loads[rung])
    headline = (
        f"Step {step + 1} of {last + 1}: {working} of {programs} programs at work, "
        f"each key loaded {loaded / needed:.0f} x"
    )
    number = 1 + list(RUNGS).index(rung)
    axes = ["sequence", f"{'query' if number < 3 else 'KV'} head", "split"][: 2 + number // 8]
    program = f"({', '.join(axes)}): program"
    explained = note(f"number: page; stripe: KV head; colour: sequence; {program}; dotted: empty")
    solid = Look(BLUE)
    looks = [(solid, "loaded now"), (solid.tint, "loaded before"), (FREE, "not loaded yet")]
    x = loads[rung].given["k_cache"]
    cells = Cells(x, accesses, step, (12, 4.85), len(axes))
    name = f"{rung.capitalize()}: the keys that its programs load. {headline}"
    return page(headline, explained, Legend(looks), cells, change, name=name)


# A reader's kernel --------------------------------------------------------------------------------


class Shown(NamedTuple):
    """What is drawn of a puzzle's kernel, and of a right kernel in a smaller case.

    Args:
        tensors: that are drawn. The smaller case has the last.
        axes: of the grid.
        color: what gives a program its colour.
        text: what the smaller case shows.
        loads: an element of the tensor there is the place of the programs that load it; None is
            not loaded.
        programs: in lists.
    """

    tensors: list[str]
    axes: int
    color: str
    text: str
    loads: list[Any]
    programs: list[list[list[int]]]


SHOWN = {
    name: Shown(**shown)
    for name, shown in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
}


def _cells(
    name: str, x: torch.Tensor, accesses: Sequence[Access], step: int, width: float = 19
) -> Cells:
    """Return the cells of a tensor of a puzzle."""
    axes = SHOWN[name].axes
    return Cells(x, accesses, step, width, axes, axis=2 if axes == 3 else 0)


def _draw_loads(name: str, loads: Loads, step: int = 1) -> Drawing:
    """Draw a puzzle's tensors, and what a kernel loads of them in its first steps.

    As long as nothing is loaded, a smaller case is drawn solved.
    """
    shown = SHOWN[name]
    items: list[Item] = []
    for tensor in shown.tensors:
        x = loads.given[tensor]
        items.append(note(f"{tensor} {list(x.shape)}"))
        items.append(_cells(name, x, loads.of.get(tensor, []), step - 1))
    needed, loaded = bytes_of(loads, shown.tensors)
    headline = "Nothing loaded yet."
    if loaded:
        headline = f"needed {needed:,} bytes, loaded {loaded:,}: {loaded / needed:.2g} x"
    elif not loads.stopped:
        items += [title("A smaller case, solved", above=0), note(shown.text)]
        items.append(_cells(name, *solved(name), 0, 38))
    explained = (
        f"colour: {shown.color}; pale: loaded in an earlier step; dotted: holds nothing; "
        "framed in orange: needed, and never loaded"
    )
    return page(headline, note(loads.stopped or explained), *items)


def solved(name: str) -> tuple[torch.Tensor, list[Access]]:
    """Return a case smaller than the puzzle's, and what a right kernel loads there."""
    shown = SHOWN[name]
    places = np.array(shown.loads, dtype=np.float32)  # None becomes NaN
    accesses = [
        Access(tuple(program), 0, np.array(element))
        for element in np.flatnonzero(places == places)
        for program in shown.programs[int(places.flat[element])]
    ]
    return torch.from_numpy(places), accesses


def _show_loads(name: str, answer: Any) -> Explorer:
    """Show the loads of a kernel, or of the parts of puzzle 7, in a puzzle's example."""
    from pagedlab_lessons.kernels07.watch import loads_in_puzzle

    loads = loads_in_puzzle(name, answer)
    steps = max(steps_of(loads.of.get(tensor, [])) for tensor in SHOWN[name].tensors)
    number = 1 + list(SHOWN).index(name)
    caption = f"Loads of {_called(answer)} in the example of puzzle {number}"
    controls = {"step": (range(1, steps + 1), steps)} if steps > 1 else {}
    return explore(partial(_draw_loads, name, loads), caption, **controls)


def _called(answer: Any) -> str:
    """Return the reader's name of a kernel, or of its parts."""
    parts = [*answer.values()] if isinstance(answer, dict) else [answer]
    return ", ".join(part.__name__ for part in parts)


# `watch.weights(my_weights)` and so on: one for each puzzle
watch = SimpleNamespace(**{name: partial(_show_loads, name) for name in SHOWN})


def bench(answer: Any = None, **cut: int) -> Explorer:
    """Show a reader's kernel of puzzle 5, 6, 7 or 8 in the ladder.

    Where Triton compiles its speed is measured, otherwise its loads are counted.

    Args:
        answer: the kernel, or {"my_split": ..., "my_merge": ..., "my_splits": ...}. Without one
            nothing is measured.
        cut: tile, num_stages and num_warps.
    """
    if not answer:
        text = "No kernel of yours yet"
        return explore(lambda: f"<p>{text}: puzzle 5, 6 or 7 makes one.</p>", text)
    from pagedlab_lessons.kernels07.watch import INTERPRETED, loads_of_rungs

    if INTERPRETED:
        found = {name: bytes_of(x) for name, x in loads_of_rungs(LENGTHS, answer).items()}
        times = {name: loaded / needed for name, (needed, loaded) in found.items()}
        bars = ladder(times, 1, "yours", "x", "{:.2g}", "the floor")
        drawing = page("Bytes of keys loaded, for each byte that is needed", bars)
    else:
        drawing = measured_now(answer, **cut)
    return explore(lambda: drawing, f"{_called(answer)} in the ladder")
