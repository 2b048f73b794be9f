"""The pictures of notebook 07's workshop: the ladder beside what a rung loads, and what a reader's
own kernel loads.

    draw_opening    the tracer of a rung's loads beside the speeds of all rungs
    draw_loads      what a kernel of the reader's loads in a puzzle's example, element by element
    speed_beside    its speed in the ladder, measured now
    loads_beside    bytes that it loads for each byte that is needed, beside the rungs

The page shows them through `pagedlab.widgets.workshop`. The speeds are those of data/results,
measured by `benchmarks/attention.py --rungs`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.drawing import BOLD, CARD, INK, LINE, SOFT, box, label, linked, svg
from pagedlab.shipped import benchmark, results
from pagedlab.validation import one_of

if TYPE_CHECKING:
    from pagedlab.lessons.fence import Access
    from pagedlab.lessons.tracer import Trace

SHAPES = {
    "Llama-3-8B, 32 x 4,096": "llama-3-8b decode 32 x 4096, block 16",
    "Qwen2.5-7B, 64 x 4,096": "qwen2.5-7b decode 64 x 4096, block 16",
    "Qwen2.5-0.5B, 256 x 1,024": "qwen2.5-0.5b decode 256 x 1024, block 16",
    "Llama-3-8B, 1 x 16,384": "llama-3-8b decode 1 x 16384, block 16",
}
RUNGS = {  # of pagedlab.lessons.ladder, and which of the tracer's shows its loads
    "1 one page at a time": "1 one page at a time",
    "2 a tile of several pages": "2 a tile of 32 keys",
    "3 heads share a load": "3 heads share a load",
    "4 tensor cores": "3 heads share a load",
    "5 more in flight": "3 heads share a load",
    "6 fewer warps": "3 heads share a load",
    "7 splits and their merge": "7 four splits",
}
UNPAGED = "unpaged SDPA (cudnn, token first)"  # keys in a row in memory, as if there were no pages
PEERS = {
    "pagedlab": "the library's kernel",
    UNPAGED: "unpaged, cuDNN",
    "gather + SDPA": "gather, then torch",
}
METHODS = {
    f"rung {name.replace(' ', ', ', 1)}": name for name in RUNGS
} | PEERS  # of benchmarks/attention.py


def recorded() -> dict[str, Any]:
    """The measured ladder: machine, roofs, rows, and what the compiler made of the rungs."""
    return results("h200")["ladder"]


# The ladder ---------------------------------------------------------------------------------------


def draw_ladder(
    speeds: dict[str, float], copy: float, now: str = "", top: float = 40, left: float = 640, width: float = 440,
    hidden: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """A bar a kernel, GB/s by name, and as a dotted line the speed of a copy, in the same unit.

    `now` is marked; of what is hidden there is the name, and a question mark.
    """
    name_width, parts = 184, list[str]()
    pitch = (width - name_width - 50) / max(copy, *speeds.values())
    x = left + name_width
    for y, (name, speed) in enumerate(speeds.items()):
        high, mine = top + 26 * y, name == now
        if name in hidden:
            parts.append(label(left, high + 13.5, name, 12, SOFT, name_width - 8))
            parts.append(label(x + 5, high + 13.5, "?", 12, SOFT))
            continue
        color = sequence_color(5 if mine else 0 if name[0].isdigit() else 1)
        look = BOLD if mine else ""
        bar = [
            box(
                x,
                high,
                pitch * speed,
                18,
                color,
                1 if mine else 0.75 if name[0].isdigit() else 0.3,
                color,
            )
        ]
        bar.append(label(left, high + 13.5, name, 12, INK, name_width - 8, look))
        bar.append(label(x + pitch * speed + 5, high + 13.5, f"{speed:,.0f}", 12, INK, 0, look))
        parts.append(
            linked([name], f"{name}: {speed:,.0f} GB/s, {speed / copy:.1%} of a copy's speed", *bar)
        )
    end = top + 26 * len(speeds)
    roof = x + pitch * copy
    parts.append(
        f'<path d="M{roof:.1f} {top - 8:.0f}V{end:.0f}" stroke="{INK}" stroke-dasharray="3 3" '
        'fill="none"/>'
    )
    parts.append(label(roof - 7.3 * 14, end + 14, f"a copy: {copy:,.0f}", 12, SOFT))
    return parts


def speeds_of(case: str, pages: int = 16) -> dict[str, float]:
    """GB/s of each rung and peer in one of `SHAPES`' cases, as recorded; with pages of 64 where
    that was measured.
    """
    case = case.replace("block 16", f"block {pages}")
    rows = {
        row["method"]: row["GB/s"]
        for row in recorded()["rows"]
        if row["case"] == case and "GB/s" in row
    }
    return {name: rows[method] for method, name in METHODS.items() if method in rows}


def draw_opening(traces: dict[str, Trace], rung: str, step: int, shape: str) -> str:
    """On the left memory as the rung's programs load it, on the right every rung's speed on the
    GPU.
    """
    found = recorded()
    machine, parts = found["machine"], list[str]()
    if trace := traces.get(RUNGS[rung]):
        at = min(step, len(trace.steps)) - 1
        parts += draw_memory(trace, at)
        times = trace.rows_loaded / trace.rows_stored
        working = sum(len(rows) > 0 for rows in trace.steps[at].values())
        said = (
            f"Step {at + 1} of {len(trace.steps)}: {working} of {trace.programs} programs at work, "
            "each key loaded "
        )
        parts.append(label(0, 15, f"{said}{times:.0f} x", 13, look=BOLD))
        ids = (
            "sequence, query head"
            if rung[0] in "12"
            else "sequence, KV head" + (", split" if rung[0] == "7" else "")
        )
        parts.append(
            label(
                0,
                32,
                f"named in a stripe: the programs ({ids}) that load it in this step",
                12,
                SOFT,
            )
        )
    parts.append(label(640, 15, f"GB/s of keys and values, {shape}", 13, look=BOLD))
    parts.append(label(640, 32, f"{machine['card']}, {machine['date']}", 12, SOFT))
    speeds, names = speeds_of(SHAPES[shape]), list(RUNGS)
    # Later rungs are for the reader to come to; a guess about them stands further down.
    hidden = (
        []
        if rung == names[-1]
        else [name for name in speeds if name not in names[: names.index(rung) + 1]]
    )
    parts += draw_ladder(speeds, found["roofs"]["copy"] / 1e9, rung, top=52, hidden=hidden)
    return svg(1080, 372, parts)


def draw_memory(trace: Trace, step: int, across: int = 4, top: float = 48) -> list[str]:
    """Page by page, a stripe a KV head: solid what is loaded in this step, pale what was before,
    empty the rest.
    """
    size, heads = trace.batch.block_size, trace.batch.kv_heads
    owner = {page: b for b, table in enumerate(trace.batch.tables()) for page in table}
    cell, high = 8.0, 17.0
    seen = defaultdict[tuple[int, int], list[tuple[int, bool, tuple[int, ...]]]](list)
    for i, programs in enumerate(trace.steps[: step + 1]):
        for program, rows in programs.items():
            for slot, head in zip(*divmod(rows, heads), strict=True):
                seen[int(slot) // size, int(head)].append((int(slot) % size, i == step, program))
    deep, parts = (
        3 if any(program[2] for programs in trace.steps for program in programs) else 2,
        list[str](),
    )
    for page in range(trace.batch.num_blocks):
        x, y = 18 + page % across * (size * cell + 26), top + page // across * (2 * high + 8)
        color = sequence_color(owner[page]) if page in owner else NEUTRAL
        parts.append(label(x - 17, y + high + 3, str(page), 10.5, SOFT))
        for head in range(heads):
            drawn = [
                box(
                    x,
                    y + head * high,
                    size * cell,
                    high - 2,
                    "none",
                    1,
                    color if page in owner else LINE,
                )
            ]
            for now in (False, True):
                slots = [slot for slot, is_now, _ in seen[page, head] if is_now == now]
                if slots:
                    left, wide = min(slots), max(slots) - min(slots) + 1
                    drawn.append(
                        box(
                            x + left * cell,
                            y + head * high,
                            wide * cell,
                            high - 2,
                            color,
                            1 if now else 0.3,
                        )
                    )
            names = dict.fromkeys(
                name_of(program, deep) for _, is_now, program in seen[page, head] if is_now
            )
            if names:
                ink = "#FFFFFF" if color == sequence_color(0) else "#000000"
                drawn.append(
                    label(
                        x + 3,
                        y + head * high + 11.5,
                        " ".join(names),
                        11,
                        ink,
                        wide * cell - 6,
                        BOLD,
                    )
                )
            loads = len(seen[page, head])
            whose = f"sequence {owner[page]}" if page in owner else "nobody's"
            say = f"page {page}, KV head {head}, {whose}: {loads} loads of a key so far"
            parts.append(linked([f"{page}-{head}"], say, *drawn))
    return parts


def name_of(program: Sequence[int], axes: int = 3) -> str:
    """(1,0) for program (1, 0, 0) of a grid with two axes."""
    return f"({','.join(map(str, program[:axes]))})"


def traces() -> dict[str, Trace]:
    """What the rungs load; nothing where there is no Triton."""
    if not find_spec("triton"):
        return {}
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        os.environ["TRITON_INTERPRET"] = "1"  # Triton does not compile for older GPUs
    from pagedlab.lessons import tracer

    return tracer.trace_rungs((200, 40, 100), num_blocks=28)


# What a reader's kernel loads ---------------------------------------------------------------------

SHOWN = {  # tensors drawn, and how many elements make a cell
    "weights": {"s": 1},
    "scores": {"k": 1},
    "online_step": {"s": 1, "v": 1},
    "paged_scores": {"table": 1, "k_cache": 1},
    "decode": {"k_cache": 16},
    "grouped": {"k_cache": 16},
    "split": {"k_cache": 16},
}


def seen(name: str, answer: Any) -> tuple[dict[str, Any], dict[str, list[Access]], str]:
    """A puzzle's example run and watched: its arguments, the loads by tensor, and what stopped the
    kernel.
    """
    from pagedlab.lessons.fence import Memory, Outside
    from pagedlab.lessons.puzzles import PUZZLES

    memory, stopped = Memory(), ""
    given = memory.put_all(PUZZLES[name].given())
    options: dict[str, Any] = {"put": memory.put} if name == "split" else {}
    try:
        memory.run(lambda: PUZZLES[name].launch(answer, given, **options))
    except Outside as error:
        stopped = f"Stopped: {error}."
    except Exception as error:  # the reader's
        stopped = f"Stopped: {error.__cause__ or error}"
    return given, dict(memory.loads), stopped


def draw_loads(
    name: str, given: dict[str, Any], loads: dict[str, list[Access]], stopped: str, step: int
) -> str:
    """The puzzle's tensors as cells: solid in the program's colour what is loaded in this step,
    pale what was before, dotted what is nobody's, and on a cell how often it was loaded.

    A program's colour is its first number's, in the last puzzle its split's.
    """
    parts, top, loaded, needed, side = list[str](), 40.0, 0, 0, 19.0
    for tensor, unit in SHOWN[name].items():
        x, by = given[tensor], defaultdict[int, list[tuple[int, tuple[int, ...]]]](list)
        for load in loads.get(tensor, ()):
            loaded += len(np.unique(load.elements)) * x.element_size()
            for cell in dict.fromkeys((load.elements // unit).tolist()):
                by[cell].append((load.step + 1, load.program))
        needed += int((~x.isnan()).sum()) * x.element_size()
        parts.append(label(0, top + 15, f"{tensor} {list(x.shape)}", 12, INK, 142))
        empty, first = x.isnan().flatten().tolist(), top
        for cell, (left, down, where) in enumerate(_places(x, unit)):
            px, py, nobodys = 150 + left * side, first + down * side, empty[cell * unit]
            touched = [(at, program) for at, program in by[cell] if at <= step]
            edge = (LINE, 'stroke-dasharray="2 2"') if nobodys else (INK, "")
            drawn = [box(px, py, side - 2, side - 2, "none", 1, *edge)]
            if touched:
                now = any(at == step for at, _ in touched)
                color = sequence_color(touched[-1][1][2 if name == "split" else 0])
                drawn.append(box(px, py, side - 2, side - 2, color, 0.9 if now else 0.35))
            if len(touched) > 1:
                drawn.append(box(px + 3, py + 2, 12, 13, CARD, 0.85))
                drawn.append(label(px + 5, py + 12.5, str(len(touched)), 11, INK))
            who = ", ".join(dict.fromkeys(name_of(program) for _, program in touched))
            said = f"loaded by {who}" if who else "not loaded"
            parts.append(
                linked(
                    [f"{tensor}{cell}"],
                    f"{where}{', nobody has written it' * nobodys}: {said}",
                    *drawn,
                )
            )
            top = max(top, py + side)
        top += 16
    said = (
        f"needed {needed:,} bytes, loaded {loaded:,}: {loaded / needed:.2g} x"
        if loaded
        else "Nothing loaded yet."
    )
    legend = (
        f"colour: the {'split' if name == 'split' else 'first number'} of the program that loads; "
        "dotted: nobody's"
    )
    head = [label(0, 15, said, 13, look=BOLD), label(0, 32, stopped or legend, 12, SOFT, 1000)]
    return svg(1080, top, [*head, *parts])


def _places(x: torch.Tensor, unit: int) -> Iterator[tuple[float, float, str]]:
    """Where each cell stands, in cells from the left and from above, and what it is."""
    for cell in range(x.numel() // unit):
        *at, i = (int(place) for place in np.unravel_index(cell * unit, x.shape))
        if not at:
            yield i, 0, f"element {i}"
        elif len(at) == 1:
            yield i, at[0], f"token {at[0]}, number {i}"
        elif len(at) == 2:
            token, head = at
            yield head * (x.shape[2] + 0.5) + i, token, f"token {token}, head {head}, number {i}"
        # pages: slots downward and heads to the right, or rows as cells and slots to the right
        else:
            (page, slot, head), (_, size, heads, dim) = at, x.shape
            said = f"page {page}, slot {slot}, head {head}"
            if unit == 1:
                yield page * (heads * dim + 1) + head * (dim + 0.3) + i, slot, f"{said}, number {i}"
            else:
                yield page % 7 * (size + 1) + slot, page // 7 * (heads + 0.6) + head, said


# The reader's kernel in the ladder ----------------------------------------------------------------


def loads_beside(answer: Any) -> str:
    """Bytes of keys that a kernel loads in a small batch, for each byte that it needs, beside those
    of the rungs.
    """
    from pagedlab.lessons import tracer

    lengths = (200, 40, 100)
    traces = {"yours": tracer.trace_own(answer, lengths), **tracer.trace_rungs(lengths)}
    parts, y = (
        [label(0, 15, "Bytes of keys loaded, for each byte that is needed", 13, look=BOLD)],
        30.0,
    )
    for name, trace in traces.items():
        times, steps, mine = (
            trace.rows_loaded / trace.rows_stored,
            len(trace.steps),
            name == "yours",
        )
        color = sequence_color(5 if mine else 0)
        said = (
            f"{times:.2g} x, {trace.programs} programs, at most {steps} steps"
            if times
            else "nothing loaded yet"
        )
        parts.append(label(0, y + 13.5, name, 12, INK, 0, BOLD if mine else ""))
        parts.append(box(200, y, 200 * times, 18, color, 0.8, color))
        parts.append(label(208 + 200 * times, y + 13.5, said, 12))
        y += 26
    parts.append(f'<path d="M400 24V{y:.0f}" stroke="{INK}" stroke-dasharray="3 3" fill="none"/>')
    parts.append(label(330, y + 14, "the floor: each byte once", 12, SOFT))
    return svg(1080, y + 22, parts)


def speed_beside(answer: Any, shape: str, **cut: int) -> str:
    """GB/s of a kernel and of its peers, measured now on one of `SHAPES`, with the code of
    benchmarks/attention.py.
    """
    from tqdm.auto import tqdm

    from pagedlab.kernels.plan import multiprocessors
    from pagedlab.lessons.puzzles import decoder

    folder = str(Path(benchmark("attention")).parent)
    sys.path.insert(0, folder)
    try:
        import attention_methods as methods
        from attention import roofs, seconds
    finally:
        sys.path.remove(folder)
    copy = roofs()["copy"] / 1e9  # first: its 8 GiB are free again for what follows
    case = next(
        case for case in methods.cases() if case.name == SHAPES[one_of("shape", shape, SHAPES)]
    )
    inputs = methods.Inputs(case, seed=0)
    own = decoder(answer, multiprocessors(inputs.seq_lens.device), **cut)
    exact, out = methods.reference(inputs), own(*inputs.paged(0)[:5])
    error = float((out.double() - exact).norm() / exact.norm())
    if not error < 0.02:  # bf16 gives 0.002
        return svg(
            1080,
            24,
            [
                label(
                    0, 15, f"Not measured: it differs from attention by {error:.0%}.", 13, look=BOLD
                )
            ],
        )
    speeds = {"yours": case.kv_bytes / seconds(methods.rung(inputs, own), 0.05) * 1e-9}
    for method, name in tqdm(METHODS.items(), "measuring", leave=False):
        with suppress(Exception):  # smaller cards refuse some: not enough shared memory, no cuDNN
            speeds[name] = case.kv_bytes / seconds(methods.METHODS[method](inputs), 0.05) * 1e-9
    card = f"{torch.cuda.get_device_name()}, measured now: GB/s of keys and values, {shape}"
    bars = draw_ladder(speeds, copy, "yours", left=0, width=900)
    return svg(1080, 70 + 26 * len(speeds), [label(0, 15, card, 13, look=BOLD), *bars])
