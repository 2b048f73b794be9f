"""The one figure style, and the pictures that more than one notebook draws.

The ground is transparent and text and axes are mid-grey, so a figure stored in a notebook is legible on a light
page and on a dark one. Colour is never the only sign: every kind of slot has a hatch too. Matplotlib is imported
when a figure is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pagedlab.lessons.colors import NEUTRAL, SEQUENCE_COLORS, sequence_color, sequence_hatch
from pagedlab.lessons.simulation import KINDS, Place, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pagedlab.lessons.tracer import DecodeTrace, RaggedTrace

STYLE: dict[Any, Any] = {
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), NEUTRAL),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "hatch.linewidth": 1.0,
}
# Colour and hatch by kind of slot; what is used is solid, so the eye finds it first.
KIND_LOOKS = dict(
    zip(KINDS, (("#0072B2", ""), ("#E69F00", "///"), ("#CC79A7", "xxx"), (NEUTRAL, "..."), (NEUTRAL, "")), strict=True)
)


def figure(width: float = 8, height: float = 3, **subplots: Any) -> tuple[Figure, Any]:
    """`plt.subplots` in the style of the series; sizes in inches."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update(STYLE | {"axes.prop_cycle": cycler(color=SEQUENCE_COLORS)})
    # No frame, rather than one of colour "none": Jupyter puts a box behind such a figure, black if its ticks are light.
    return plt.subplots(figsize=(width, height), frameon=False, **subplots)


def draw_shares(ax: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """One stacked bar a row: the share of memory by kind (`Run.shares()`), the used share written beside its name."""
    names = list(rows)
    left = [0.0] * len(names)
    for kind in KINDS:
        widths = [100 * rows[name].get(kind, 0.0) for name in names]
        color, hatch = KIND_LOOKS[kind]
        empty = {"facecolor": "none", "edgecolor": color, "hatch": hatch}
        look: dict[str, Any] = {"facecolor": color} if kind == "used" else empty
        if any(widths):
            edges = [1.0 if width else 0.0 for width in widths]
            ax.barh(names, widths, left=left, height=0.6, label=kind, linewidth=edges, **look)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    ax.set_yticks(range(len(names)), [f"{name}  {100 * rows[name]['used']:.1f} %" for name in names])
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="share of the KV memory (%)")
    ax.legend(ncols=len(KINDS), loc="lower left", bbox_to_anchor=(0, 1))


def draw_strip(ax: Axes, row: float, places: Sequence[Place]) -> None:
    """A row of memory at one moment: tokens solid, slots that are reserved and empty hatched, holes left blank."""
    for place in places:
        color, first = sequence_color(place.request), 0
        for start, size in place.regions:
            used = min(max(place.tokens - first, 0), size)
            ax.broken_barh([(start, used)], (row - 0.35, 0.7), facecolor=color)
            box = [(start, size)]
            ax.broken_barh(
                box, (row - 0.35, 0.7), facecolor="none", edgecolor=color, hatch="////" if used < size else ""
            )
            first += size


def draw_memory(ax: Axes, run: Run, height: int = 128) -> None:
    """All of memory (upwards) over time: a colour a request, tokens solid, reserved striped, never used striped grey.

    Holes are blank. Needs a run with `places=True`; `height` is in pixels.
    """
    import numpy as np
    from matplotlib.colors import to_rgba

    repeat = max(1, round(700 / len(run.samples)))  # pixels a sample
    picture = np.zeros((height, len(run.samples) * repeat, 4))
    slot = np.arange(height) * run.num_slots / height
    striped = np.add.outer(np.arange(height), np.arange(picture.shape[1])) % 6 < 2
    palette = np.array([to_rgba(color) for color in SEQUENCE_COLORS])
    for i, sample in enumerate(run.samples):
        regions = []  # start, size, token of the first slot; request, its tokens now and at its end
        for place in sample.places:
            first = 0
            for start, size in place.regions:
                regions.append((start, size, first, place.request, place.tokens, place.total))
                first += size
        if not regions:
            continue
        start, size, first, request, tokens, total = np.array(sorted(regions)).T
        at = np.maximum(np.searchsorted(start, slot, side="right") - 1, 0)
        offset = slot - start[at]
        inside, token = (offset >= 0) & (offset < size[at]), first[at] + offset
        color = palette[request[at] % len(palette)]
        color[token >= total[at]] = to_rgba(NEUTRAL)
        columns = slice(i * repeat, (i + 1) * repeat)
        shown = inside[:, None] & ((token < tokens[at])[:, None] | striped[:, columns])
        picture[:, columns] = np.where(shown[..., None], color[:, None], 0)
    steps = [sample.step for sample in run.samples]
    extent = (steps[0], steps[-1] + 1, 0, run.num_slots)
    ax.imshow(picture, origin="lower", aspect="auto", extent=extent, interpolation="nearest")  # sharp, and small
    ax.set(xlabel="time (steps)", ylabel="address (token slots)")


def draw_chains(ax: Axes, chains: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Prompts block by block, each a chain of (text, name): one row while names agree, then a row each."""
    import textwrap

    from matplotlib.patches import Rectangle

    places: dict[tuple[int, str], float] = {}
    middle = (len(chains) - 1) / 2
    for row, chain in enumerate(chains):
        for i, (text, name) in enumerate(chain):
            if (i, name) in places:
                continue
            shared = all(i < len(other) and other[i][1] == name for other in chains)
            y = places[i, name] = -(middle if shared else row)
            color = sequence_color(0 if shared else 1 + row)
            ax.add_patch(Rectangle((i, y - 0.3), 0.82, 0.6, facecolor="none", edgecolor=color, linewidth=2))
            ax.text(i + 0.41, y, textwrap.fill(text, 17), ha="center", va="center", fontsize=8)
            ax.text(i + 0.41, y - 0.33, name, ha="center", va="top", fontsize=8, family="monospace", color=color)
            if i:
                start = (i - 0.18, places[i - 1, chain[i - 1][1]])
                ax.annotate("", (i, y), start, arrowprops={"arrowstyle": "->", "color": NEUTRAL})
    ax.set(xlim=(-0.05, max(map(len, chains))), ylim=(-len(chains) + 0.4, 0.4))
    ax.axis("off")


def draw_loads(ax: Axes, trace: DecodeTrace, step: int, pages_a_row: int = 4) -> None:
    """Memory page by page, a stripe a KV head: which keys each program loads in this step, and in those before.

    A sequence has its colour: outlined is what it holds, pale what was loaded before, solid what is loaded now, with
    the ids of the programs that load it.
    """
    from matplotlib.colors import to_rgb

    size, heads = trace.batch.block_size, trace.batch.kv_heads
    owner = {page: b for b, table in enumerate(trace.batch.tables()) for page in table}

    def bar(page: int, head: int, first: int, width: int, **look: Any) -> tuple[float, float]:
        """Draw slots of a page, and return the middle of what was drawn."""
        row, column = divmod(page, pages_a_row)
        left, bottom, height = column * (size + 2) + first, row + head * 0.8 / heads, 0.7 / heads
        ax.broken_barh([(left, width)], (bottom, height), **look)
        return left + width / 2, bottom + height / 2

    for page in range(trace.batch.num_blocks):
        color = sequence_color(owner[page]) if page in owner else NEUTRAL
        for head in range(heads):
            bar(page, head, 0, size, facecolor="none", edgecolor=color, linestyle="-" if page in owner else ":")
        row, column = divmod(page, pages_a_row)
        ax.text(column * (size + 2) - 0.25, row + 0.38, str(page), fontsize=6, ha="right", va="center")
    for i, programs in enumerate(trace.steps[: step + 1]):
        loaded: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for program, rows in programs.items():
            for row in rows.tolist():
                (page, offset), head = divmod(row // heads, size), row % heads
                loaded.setdefault((page, head), []).append((offset, f"({program[0]},{program[1]})"))
        for (page, head), slots in loaded.items():
            color, first = sequence_color(owner[page]), min(slots)[0]
            width = max(slots)[0] - first + 1  # a program takes neighbouring slots
            x, y = bar(page, head, first, width, facecolor=color, alpha=1 if i == step else 0.3)
            if i == step:
                names, dark = dict.fromkeys(name for _, name in slots), to_rgb(color)[0] == 0
                ax.text(x, y, " ".join(names), fontsize=7, ha="center", va="center", color="white" if dark else "black")
    ax.set(xlim=(-2, pages_a_row * (size + 2) - 1.5), ylim=(-(-trace.batch.num_blocks // pages_a_row), -0.2))
    ax.axis("off")
    working = sum(len(rows) > 0 for rows in trace.steps[step].values()) if step < len(trace.steps) else 0
    ax.set_title(f"step {step + 1} of {len(trace.steps)}: {working} of {trace.programs} programs at work")


def draw_tiles(ax: Axes, trace: RaggedTrace) -> None:
    """New tokens (down) over key positions: a colour a program, solid what its queries see, pale what is masked."""
    import numpy as np
    from matplotlib.colors import to_rgba

    batch = trace.batch
    last = [length - n + i for length, n in zip(batch.lengths, batch.queries, strict=True) for i in range(n)]
    picture = np.zeros((len(last), max(batch.lengths), 4))
    programs = [program for program in sorted(trace.queries, reverse=True) if program[0] % batch.kv_heads == 0]
    for number, program in enumerate(programs):
        rows, keys = trace.queries[program], trace.keys[program]
        cells = np.ix_(rows, keys)
        seen = keys[None, :] <= np.array(last)[rows][:, None]
        picture[cells] = to_rgba(sequence_color(number))
        picture[..., 3][cells] = np.where(seen, 1, 0.3)
    ax.imshow(picture, aspect="auto", interpolation="nearest")
    edges = np.cumsum(batch.queries)[:-1] - 0.5
    ax.hlines(edges, -0.5, picture.shape[1] - 0.5, color=NEUTRAL, linewidth=0.8)
    for b, n in enumerate(batch.queries):
        ax.text(picture.shape[1], sum(batch.queries[:b]) + (n - 1) / 2, f"sequence {b}", fontsize=7, va="center")
    ax.set(xlabel="position of the key", ylabel="new token in the batch")


def _draw_blocks(ax: Axes, heights: Sequence[float], block_size: int, total: int) -> None:
    """A bar a token, coloured by block; the rest of `total` tokens is not read yet."""
    colors = [sequence_color(i // block_size) for i in range(len(heights))]
    hatches = [sequence_hatch(i // block_size) for i in range(len(heights))]
    ax.bar(range(len(heights)), heights, color=colors, hatch=hatches, edgecolor=NEUTRAL, linewidth=0.5)
    for i in range(block_size, total, block_size):
        ax.axvline(i - 0.5, color=NEUTRAL, linewidth=0.5)
    if len(heights) < total:
        place = ((len(heights) + total - 1) / 2, 0.5)
        ax.text(*place, "not read yet", ha="center", va="center", style="italic", transform=ax.get_xaxis_transform())
    ax.set(xlim=(-0.6, total - 0.4), xticks=[])


def draw_scores(ax: Axes, scores: Sequence[float], block_size: int, seen: int) -> None:
    """Scores of the first `seen` blocks, and as a line the largest so far, which is what online softmax keeps."""
    import numpy as np

    read = np.asarray(scores, float)[: seen * block_size]
    _draw_blocks(ax, read.tolist(), block_size, len(scores))
    largest = np.maximum.accumulate(read.reshape(seen, block_size).max(axis=1))
    ax.stairs(largest, np.arange(seen + 1) * block_size - 0.5, baseline=None, color="#D55E00", linewidth=2)


def draw_weights(ax: Axes, scores: Sequence[float], block_size: int, seen: int, outlines: bool = True) -> None:
    """Softmax over the first `seen` blocks before it is normalised: exp(score - m), m the largest score so far.

    Dotted outlines show how high the earlier bars stood before the last of these blocks was read.
    """
    import numpy as np

    read, edge = np.asarray(scores, float)[: seen * block_size], (seen - 1) * block_size
    _draw_blocks(ax, np.exp(read - read.max()).tolist(), block_size, len(scores))
    if edge and outlines:
        before = np.exp(read[:edge] - read[:edge].max())
        ax.bar(range(edge), before, facecolor="none", edgecolor=NEUTRAL, linestyle=":", linewidth=1.2)
    ax.set(ylim=(0, 1.08), yticks=[0, 1])


def draw_rates(
    ax: Axes, rates: Mapping[str, Sequence[float]], theirs: Collection[str] = (), roof: float | None = None
) -> None:
    """Tokens a second, logarithmic: a bar to the best of each row's runs, the range beside it; `theirs` are hatched.

    The roof is a dotted bar below: as a line it would cross the numbers.
    """
    least = min(map(min, rates.values()))
    first = 10 ** (len(str(int(least))) - 1)  # bars begin at a power of ten below all of them
    for y, (name, runs) in enumerate(rates.items()):
        color = SEQUENCE_COLORS[name in theirs]
        look: dict[str, Any] = {"facecolor": color}
        if name in theirs:
            look = {"facecolor": "none", "edgecolor": color, "hatch": "//"}
        ax.barh(y, max(runs) - first, 0.7, left=first, **look)
        said = "\N{EN DASH}".join(f"{rate:,.0f}" for rate in sorted({min(runs), max(runs)}))
        ax.text(max(runs), y, f" {said}", va="center", fontsize="small")
    names = list(rates)
    if roof:
        names.append("roof")
        ax.barh(len(rates), roof - first, 0.7, left=first, facecolor="none", edgecolor=NEUTRAL, linestyle=":")
        ax.text(roof, len(rates), f" {roof:,.0f}", va="center", fontsize="small")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="output tokens/s", xlim=(first, 4 * max(roof or 0, *map(max, rates.values()))))


def draw_step_times(ax: Axes, steps: Mapping[str, Mapping[str, Any]], floor_ms: float) -> None:
    """A bar a rung: its kernels' milliseconds by group ("ms by group"), then hatched what is left of "wall ms"."""
    groups = dict.fromkeys(group for step in steps.values() for group in step["ms by group"])
    for y, step in enumerate(steps.values()):
        left = 0.0
        for i, group in enumerate(groups):
            width = step["ms by group"].get(group, 0.0)
            look: dict[str, Any] = {"facecolor": SEQUENCE_COLORS[i], "edgecolor": NEUTRAL, "hatch": sequence_hatch(i)}
            ax.barh(y, width, 0.6, left=left, linewidth=0.5, label=None if y else group, **look)
            left += width
        idle: dict[str, Any] = {"facecolor": "none", "edgecolor": NEUTRAL, "hatch": "...", "linewidth": 0.5}
        ax.barh(y, max(0.0, step["wall ms"] - left), 0.6, left=left, label=None if y else "the GPU waits", **idle)
        ax.text(step["wall ms"], y, f" {step['wall ms']:.1f} ms, busy {left / step['wall ms']:.0%}", va="center")
    ax.axvline(floor_ms, linestyle=":", color=SEQUENCE_COLORS[5], label=f"floor, {floor_ms:.2f} ms")
    ax.set_yticks(range(len(steps)), list(steps))
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds of a step", xlim=(0, 1.25 * max(step["wall ms"] for step in steps.values())))
    ax.figure.legend(loc="outside lower center", ncols=4)
