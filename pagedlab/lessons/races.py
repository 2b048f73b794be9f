"""Many texts at once, step by step: the race of 09, and 08's rectangle beside blocks. pictures.py
has the others.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.drawing import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    box,
    label,
    legend,
    linked,
    memory,
    stripes,
    svg,
)

Moment = dict[str, dict[str, Any]]  # the texts after a step, as `widgets.recording.Replay` has them


def steps_of(run: Sequence[Moment]) -> dict[str, tuple[int, int]]:
    """Of each text that came before the first step, in which steps it wrote its first word and its
    last one.
    """

    def first(name: str, right: Callable[[dict[str, Any]], bool]) -> int:
        return next(step for step, texts in enumerate(run) if right(texts[name]))

    begins = {
        name: first(name, lambda text: len(text["words"]) > text["prompt"]) for name in run[0]
    }
    ends = {
        name: first(name, lambda text: text["state"] not in ("waiting", "running"))
        for name in run[0]
    }
    return {name: (begins[name], ends[name]) for name in run[0]}


def race(runs: dict[str, Sequence[Moment]], step: int, places: int, blocks: int, size: int) -> str:
    """The same texts after `step` in two runs, on one scale of steps: who waits, who writes what,
    in which blocks.

    The race is over when the last run has one text left; what is still to come is drawn pale then.
    """
    known = {title: steps_of(run) for title, run in runs.items()}
    ends = {title: max(end for _, end in steps.values()) for title, steps in known.items()}
    over = step >= sorted(end for _, end in [*known.values()][-1].values())[-2]
    pitch, y, parts, done = 560 / max(ends.values()), 56.0, list[str](), list[str]()
    for title, run in runs.items():
        now, steps = run[min(step, len(run) - 1)], known[title]
        there, high = sum(end <= step for _, end in steps.values()), 14 * len(steps)
        waiting = sum(start > step for start, _ in steps.values())
        empty = places - sum(start <= step <= end for start, end in steps.values())
        done.append(f"{title.split(':')[0].lower()} {there} of {len(steps)}")
        said, color = (
            f"waiting {waiting}, places empty {empty} of {places}",
            BAD if step and waiting and empty else INK,
        )
        parts += [label(0, y, title, 12.5, look=BOLD), label(632, y, said, 12.5, color, look=BOLD)]
        x = 40 + pitch * step
        parts.append(
            f'<path d="M{x:.1f} {y + 5:.0f}V{y + high + 36:.0f}" stroke="{INK}" '
            'stroke-dasharray="3 3"/>'
        )
        owners = {}
        for row, (name, (start, end)) in enumerate(steps.items()):
            top, color, text = (
                y + 7 + 14 * row,
                sequence_color(row and 1 + (row - 1) % 6),
                now[name],
            )
            drawn = [label(0, top + 10, name, 11, SOFT)]
            for first, last, look in ((0, start - 1, "var(--well)"), (start - 1, end, color)):
                for a, b, share in (
                    (first, min(last, step), 0.75),
                    (max(first, step), last, 0.18 * over),
                ):
                    if a < b and share:
                        edge = LINE if look != color and share > 0.5 else "none"
                        drawn.append(
                            box(40 + pitch * a, top, pitch * (b - a) - 1, 11.5, look, share, edge)
                        )
            if pitch * min(start - 1, step) > 40:
                drawn.append(label(46, top + 9.5, "waits", 10.5, SOFT))
            asked = "".join(text["words"][: text["prompt"]]).split()[-1]
            wrote = "".join(text["words"][text["prompt"] :]).replace("\n", " ")
            shown = f"… {asked}{wrote}" if len(wrote) < 56 else f"… {wrote[-60:].split(' ', 1)[-1]}"
            drawn.append(label(632, top + 10, shown if wrote else "", 11.5, INK, 448))
            say = (
                f"{name} waits {start - 1} steps and writes {end - start + 1}: its answer is there "
                f"after step {end}"
            )
            parts.append(linked([f"{title[0]}-{name}"], say, *drawn))
            for place, block in enumerate(text["blocks"]):
                held = text["words"][place * size : min(text["tokens"], (place + 1) * size)]
                say = f"block {block}, {name}: {''.join(held)!r}"
                owners[block] = f"{title[0]}-{name}", say, color, len(held) / size
        top = y + high + 13
        parts += [label(0, top + 13, "blocks", 11, SOFT, 36), *memory(40, top, 560, blocks, owners)]
        parts.append(
            label(632, top + 13, f"{len(owners)} of {blocks} blocks hold something", 12, SOFT)
        )
        y = top + 42
    axis = y - 9
    parts += [
        label(40 + pitch * n - 8, axis, str(n), 11, SOFT)
        for n in range(0, max(ends.values()) + 1, 10)
    ]
    parts.append(label(0, axis, "step", 11, SOFT))
    whole = " and ".join(
        f"{end} steps {title.split(':')[0].lower()}" for title, end in ends.items()
    )
    said = f"After {step} steps, answers written to their end: {', '.join(done)}."
    more = f"Until everybody has an answer: {whole}." + (
        " Pale is what is still to come." if over else ""
    )
    parts += [label(0, 15, said, 15, look=BOLD), label(0, 33, more, 13)]
    return svg(1080, axis + 6, parts)


def rectangle(
    run: Sequence[Moment], step: int, questions: Sequence[str], size: int, token_bytes: float
) -> str:
    """Chats after `step`, on one scale: as the rows of an ordinary cache, padded on the left, and
    in their blocks.
    """
    ends, prompt = (
        {name: end for name, (_, end) in steps_of(run).items()},
        {n: t["prompt"] for n, t in run[0].items()},
    )
    longest = max(prompt.values())
    columns, unit, now, parts = (
        longest + step - 1,
        500 / (longest + max(ends.values()) - 1),
        run[step],
        list[str](),
    )
    needed = pieces = 0
    for row, (name, text) in enumerate(now.items()):
        y, color, over = 112.0 + 40 * row, sequence_color(row), ends[name] <= step
        held = prompt[name] + min(step, ends[name]) - 1  # what was written last is not stored yet
        left, stored = longest - prompt[name], text["tokens"]
        needed, pieces = needed + stored, pieces + len(text["blocks"])
        first, *_, end = questions[row].split(". ") * 2
        asked = questions[row] if len(questions[row]) < 70 else f"{first}. … {end}"
        # the whole line can be pointed at
        drawn = [
            box(0, y - 12, 540, 36, CARD, 0),
            label(0, y, asked, 12, INK, 500),
        ]
        drawn += [box(0, y + 6, columns * unit, 17, "url(#pl-pad)", 1, LINE)]
        drawn.append(box(left * unit, y + 6, held * unit, 17, CARD))
        drawn.append(box(left * unit, y + 6, held * unit, 17, color, 0.2 if over else 0.75))
        say = f"{asked} A row of {columns} places, {columns - held} of them padding"
        parts.append(
            linked([name], say + ("; the chat has ended, the row stays." if over else "."), *drawn)
        )
        wrote = "".join(text["words"][prompt[name] :]).replace("\n", " ").strip()
        shown = wrote if len(wrote) < 70 else f"… {wrote[-68:].split(' ', 1)[-1]}"
        drawn = [
            box(560, y - 12, 520, 36, CARD, 0),
            label(570, y, shown, 12, SOFT if over else INK, 500),
        ]
        for place, block in enumerate(text["blocks"]):
            x, full = 570 + place * size * unit, min(size, stored - place * size)
            drawn.append(box(x, y + 6, size * unit - 2, 17, CARD, 1, color))
            drawn.append(box(x, y + 6, full * unit - 2, 17, color, 0.75))
            drawn.append(label(x + 4, y + 18.5, str(block), 11, look=BOLD))
        if over:
            drawn.append(
                label(570, y + 19, f"ended with step {ends[name]}; its blocks are free", 11.5, SOFT)
            )
        say = f"{asked} {len(text['blocks'])} blocks of {size} for {stored} tokens."
        parts.append(linked([name], say, *drawn))

    def told(places: int) -> str:
        return f"{places * token_bytes / 1024:,.0f} KiB"

    places, most = (
        columns * len(now),
        max(sum(len(t["blocks"]) for t in texts.values()) for texts in run[: step + 1]),
    )
    said = (
        f"Step {step}: the rectangle takes {told(places)}, the blocks take {told(pieces * size)}."
    )
    more = (
        f"{len(now)} rows x {columns} columns; {1 - needed / places:.0%} is padding or of chats "
        "that ended"
    )
    less = (
        f"{pieces} blocks of {size}; {1 - needed / (pieces * size):.0%} empty. At their peak "
        f"{told(most * size)}"
    )
    parts += [
        label(0, 15, said, 15, look=BOLD),
        label(0, 42, "An ordinary cache: one rectangle", 13, look=BOLD),
    ]
    parts += [
        label(570, 42, "The same chats in blocks", 13, look=BOLD),
        label(0, 61, more, 12, INK, 540),
    ]
    parts.append(label(570, 61, less, 12, INK, 510))
    looks = {"holds a token": (sequence_color(0), 0.75, LINE), "padding": ("url(#pl-pad)", 1, LINE)}
    parts += legend(0, 71, looks | {"of a chat that has ended": (sequence_color(0), 0.2, LINE)})
    return svg(1080, 104 + 40 * len(now), [stripes("pl-pad", NEUTRAL), *parts])
