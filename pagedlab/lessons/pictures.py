"""The pictures that open notebooks, drawn with drawing.py; those of 08 and 09 stand in races.py."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from textwrap import wrap

from pagedlab.blocks import BlockTable, OutOfBlocks
from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.drawing import (
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    WRONG,
    block_of_words,
    box,
    label,
    legend,
    linked,
    plain,
    stripes,
    svg,
    wide,
    words,
)
from pagedlab.lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request
from pagedlab.lessons.races import race, rectangle, steps_of  # noqa: F401 - the notebooks take them from here

# 03: two stories ----------------------------------------------------------------------------------

Story = tuple[list[str], list[int]]  # its tokens, and the slot of each


def _words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words without punctuation, each with the numbers of its tokens."""
    starts = [i for i, token in enumerate(tokens) if i == 0 or token.startswith((" ", "\n"))]
    spans = [range(a, b) for a, b in pairwise([*starts, len(tokens)])]
    return [(re.sub(r"\W", "", "".join(tokens[i] for i in span)), [*span]) for span in spans]


def two_stories(stories: Sequence[Story], right: Sequence[Story], size: int) -> str:
    """Two forks of one beginning, their words in the colour of the block that holds them, and the
    blocks.

    Two kinds of words are marked: words that are overwritten in memory, and words that a story
    takes from the other one. A word is taken if the other story has written it into a block of
    this story's table, at the same position or before, and the right story does not have it.

    Args:
        right: what they write with copy-on-write.
    """
    length = min(len(slots) for _, slots in stories)
    # the second writes last
    held = {slots[at]: tokens[at] for at in range(length) for tokens, slots in stories}
    tables = [list(dict.fromkeys(slot // size for slot in slots)) for _, slots in stories]
    blocks = sorted(set(tables[0] + tables[1]))
    # by the block's number, so that a block keeps its colour when copying is switched on
    color = {n: sequence_color(n) if n < 7 else f"url(#ps-{n})" for n in blocks}
    lost = {
        slot
        for tokens, slots in stories
        for at, slot in enumerate(slots)
        if held[slot] != tokens[at]
    }
    strike, frame = f"text-decoration:line-through 2px {WRONG}", 'stroke-width="2"'

    def block(x: float, y: float, number: int, whose: str) -> str:
        slots = range(number * size, (number + 1) * size)
        texts = [plain(held[slot]) if slot in held else "·" for slot in slots]
        say, marked = (
            f"block {number}, {whose}: {' '.join(texts)}",
            [i for i, slot in enumerate(slots) if slot in lost],
        )
        return block_of_words(x, y, 344, 40, number, texts, color[number], say, *marked)

    parts = [label(368, 16, "In both tables", 15, look=BOLD)]
    shared = [number for number in tables[0] if number in tables[1]]
    copied, kept = (next((n for n in table if n not in shared), 0) for table in tables)
    said = (
        f"Story 0 wrote first: it found block {kept} in two tables, and took a copy, block "
        f"{copied}. Shared blocks are only read."
    )
    if lost:
        said = (
            "Both wrote into one block. Story 1 wrote last, and story 0 reads those words as its "
            "past."
        )
        parts += [
            label(368, 142, "word", 12, look=strike),
            box(368, 150, 42, 17, edge=WRONG, look=frame),
        ]
        for y, text in (
            (142.0, "written, then overwritten in memory"),
            (163.0, "taken from the other story"),
        ):
            parts.append(label(418, y, text, 12, SOFT))
    parts += [label(368, 52 + 20 * i, line, 12.5) for i, line in enumerate(wrap(said, 44))]
    parts += [block(368, 182 + 48 * i, number, "in both tables") for i, number in enumerate(shared)]
    for me, (tokens, slots) in enumerate(stories):
        x, y, mine = 736 * me, 52.0, {word for word, _ in _words(right[me][0])}
        others = _readable(stories[1 - me], held, shared, size)
        taken = {
            at
            for word, places in _words(tokens)
            if word not in mine and others.get(word, length) <= places[0]
            for at in places
        }
        table = f"table: {' '.join(map(str, tables[me]))}"
        parts += [label(x, 16, f"Story {me}", 15, look=BOLD), label(x + 84, 16, table, 12, SOFT)]
        left: float = x
        for at, (token, slot) in enumerate(zip(tokens, slots, strict=True)):
            width = wide(plain(token), 12.5) + 2
            left += 5 * token.startswith((" ", "\n"))
            if left + width > x + 344:
                left, y = x, y + 25
            drawn, look = [box(left - 2, y - 14, width + 3, 20, color[slot // size], 0.28)], ""
            say = f"{plain(token)!r} is in block {slot // size}"
            if held[slot] != token:
                look, say = (
                    strike,
                    f"story {me} wrote {plain(token)!r}; memory holds {plain(held[slot])!r}, of "
                    f"story {1 - me}",
                )
            elif at in taken:
                drawn.append(box(left - 2, y - 14, width + 3, 20, edge=WRONG, look=frame))
                look, say = (
                    BOLD,
                    f"{plain(token)!r} is a word of story {1 - me}; with copy-on-write it is not "
                    "here",
                )
            drawn.append(label(left, y, plain(token), 12.5, INK, width, look))
            parts.append(linked([f"b{slot // size}"], say, *drawn))
            left += width
        own = [number for number in tables[me] if number not in shared]
        parts += [
            block(x, 182 + 48 * i, number, f"story {me}'s own") for i, number in enumerate(own)
        ]
        if tokens != right[me][0]:
            pairs = enumerate(zip(right[0][0], right[1][0], strict=False))
            apart = next(at for at, (one, other) in pairs if one != other)
            lines = ["With a copy it writes:", *wrap("".join(right[me][0][apart:]).strip(), 46)]
            y = 182 + 48 * len(own) + 16
            parts += [
                label(x, y + 17 * i, line, 12, INK if i else SOFT) for i, line in enumerate(lines)
            ]
    return svg(
        1080,
        182 + 48 * 5,
        [*parts, *(stripes(f"ps-{n}", sequence_color(n), share=0.3) for n in blocks if n >= 7)],
    )


def _readable(
    story: Story, held: dict[int, str], shared: Sequence[int], size: int
) -> dict[str, int]:
    """The words of a story that memory holds in shared blocks, and where each first begins.

    Words of up to three letters are left out: they are in any story.
    """
    tokens, slots = story
    found: dict[str, int] = {}
    for word, places in _words(tokens):
        telling = len(word) > 3 or word[:1].isupper()
        letters = [at for at in places if re.search(r"\w", tokens[at])]
        stored = all(
            slots[at] // size in shared and held[slots[at]] == tokens[at] for at in letters
        )
        if telling and stored:
            found.setdefault(word, places[0])
    return found


# 04: a tree of beams ------------------------------------------------------------------------------

# of one step, best first: new token ids and block ids of each
Beams = list[tuple[list[int], list[int]]]


def parents_of(run: Sequence[Beams]) -> list[list[int]]:
    """For each step but the first, the beam of the step before that each beam continues."""
    return [
        [[ids for ids, _ in old].index(ids[:-1]) for ids, _ in new] for old, new in pairwise(run)
    ]


def lines_of_descent(parents: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """For each step, the line of each beam: what it keeps its number and colour by.

    A beam's best child continues its line. Further children restart the lines that are dropped.

    Args:
        parents: for each step but the first, the beam of the step before that each beam continues.
        width: how many beams there are.
    """
    lines = [list(range(width))]
    for known in parents:
        taken: dict[int, int] = {}  # beam: its line
        for beam, parent in enumerate(known):
            line = lines[-1][parent]
            if line not in taken.values():
                taken[beam] = line
        dropped = iter(line for line in range(width) if line not in taken.values())
        lines.append([taken[b] if b in taken else next(dropped) for b in range(width)])
    return lines


def beam_tree(
    run: Sequence[Beams],
    step: int,
    prompt: Sequence[int],
    size: int,
    decode: Callable[[list[int]], str],
) -> str:
    """Above, all beams up to a step, token by token, a column a step; below, the blocks that its
    beams hold.

    A row below is a beam with its blocks; a block that several beams hold is drawn across their
    rows. A beam's number and colour are those of its line of descent.
    """
    parents, width = parents_of(run)[:step], len(run[0])
    line = lines_of_descent(parents, width)
    # children are in the order of their parents, so no line crosses another
    ranked = [list(range(width))]
    for known in parents:
        places = [ranked[-1].index(parent) for parent in known]
        ranked.append(sorted(range(width), key=places.__getitem__))
    # the beams of the last step that descend from each beam
    heirs = [{beam: {beam} for beam in range(width)}]
    for known in reversed(parents):
        heirs.insert(
            0,
            {
                parent: {h for b in heirs[0] if known[b] == parent for h in heirs[0][b]}
                for parent in known
            },
        )
    pitch, row, top = 1080 / len(run), 31, 66 + 31 * width
    chip, lines, parts = pitch - 14, list[str](), list[str]()
    for t in range(step + 1):
        for beam, (ids, _) in enumerate(run[t]):
            x, y, mine = (
                pitch * t + 7,
                50 + row * ranked[t].index(beam),
                sorted(heirs[t].get(beam, ())),
            )
            if t:
                before = 50 + row * ranked[t - 1].index(parents[t - 1][beam])
                look = (
                    f'stroke="{sequence_color(line[step][mine[0]]) if mine else LINE}" '
                    f'stroke-width="{1 + len(mine)}"'
                )
                curve = f"M{x - 14:.1f} {before}C{x:.1f} {before} {x - 14:.1f} {y} {x:.1f} {y}"
                lines.append(f'<path fill="none" d="{curve}" {look}/>')
            # the token chosen last is not stored yet
            text, at = (
                plain(decode(ids[-1:])),
                (len(prompt) + t) // size,
            )
            blocks = dict.fromkeys(run[step][heir][1][at] for heir in mine if t < step)
            say = f"{text!r}, chosen at step {t}" + ("" if mine else ": this branch is dropped")
            say += f", in block {' and '.join(map(str, blocks))}" if blocks else ""
            drawn = [box(x, y - 12, chip, 24, CARD, 1, LINE)]
            band = chip / max(1, len(mine))
            drawn += [
                box(x + i * band, y - 12, band, 24, sequence_color(line[step][h]), 0.34)
                for i, h in enumerate(mine)
            ]
            left = x + max(2, (chip - wide(text, 12)) / 2)
            strike = "" if mine else "text-decoration:line-through"
            drawn.append(label(left, y + 4, text, 12, INK if mine else SOFT, chip - 4, strike))
            if t == step:
                drawn.append(label(x + 1, y - 13, f"{line[t][beam]}", 9, look=BOLD))
                say = f"beam {line[t][beam]}: {say}"
            link = [f"last{line[t][beam]}"] if t == step else [f"t{t}-{beam}"]
            parts.append(linked([f"b{block}" for block in blocks] or link, say, *drawn))
    stored = [[plain(decode([token])) for token in (*prompt, *ids[:-1])] for ids, _ in run[step]]
    tables = {beam: run[step][beam][1] for beam in ranked[step]}
    parts += _tables(
        tables, line[step], stored, len(prompt) // size, len(prompt) + len(run), size, top
    )
    used = {block for _, blocks in run[step] for block in blocks}
    copies = sum(len(blocks) for _, blocks in run[step])
    said = f"Step {step}: {len(used)} blocks in use; a copy for each beam would take {copies}."
    parts.append(label(0, 14, said, 12.5, INK, 1080, "font-weight:600"))
    if step:
        parts.append(label(0, 31, _changes(run, step, line), 12, SOFT, 1080))
    below = top + 44 * width
    parts.append(
        label(
            0,
            below + 8,
            "The word chosen last is not stored yet: no block holds it. A line is as thick as the "
            "number of beams that it leads to.",
            11.5,
            SOFT,
        )
    )
    return svg(1080, below + 16, [*lines, *parts])


def _changes(run: Sequence[Beams], step: int, line: Sequence[Sequence[int]]) -> str:
    """What a step changed: which beams were dropped and restarted, which blocks are free again."""
    parents = parents_of(run)[step - 1]
    said = []
    for beam, parent in enumerate(parents):
        old, new = line[step - 1][parent], line[step][beam]
        if old != new:
            said.append(f"beam {new} is dropped and restarts as a fork of beam {old}")
    text = f"{'; '.join(said)}." if said else "each beam continues."
    before = {block for _, blocks in run[step - 1] for block in blocks}
    freed = sorted(before - {block for _, blocks in run[step] for block in blocks})
    if freed:
        text += f" Free again: block {' and '.join(map(str, freed))}."
    return text[0].upper() + text[1:]


def _tables(
    tables: dict[int, list[int]],
    line: Sequence[int],
    stored: list[list[str]],
    whole: int,
    longest: int,
    size: int,
    top: int,
) -> list[str]:
    """The blocks of beams, a row each, with the words in them; the `whole` full ones of the prompt
    as one.
    """
    parts = list[str]()
    # Beams with a block in common are neighbours: all their blocks before it are common too.
    order = {
        (at, block): i
        for i, beam in reversed([*enumerate(tables)])
        for at, block in enumerate(tables[beam])
    }
    ranked = sorted(tables, key=lambda beam: [order[place] for place in enumerate(tables[beam])])
    column = 916 / (-(-longest // size) - whole)
    for at, beam in enumerate(ranked):
        y, blocks = top + 44 * at, tables[beam]
        name = [
            label(0, y + 25, f"beam {line[beam]}", 12.5, look=BOLD),
            box(58, y + 12, 14, 18, sequence_color(line[beam]), 0.6),
        ]
        # The blocks of the prompt are every beam's: with them, all beams would light up.
        link = [f"last{line[beam]}", *(f"b{block}" for block in blocks[whole:])]
        parts.append(
            linked(link, f"beam {line[beam]}: blocks {', '.join(map(str, blocks))}", *name)
        )
    first = tables[0][:whole]
    numbers = ", ".join(map(str, first))
    said = f"blocks {numbers}: the first {whole * size} tokens of the prompt, for all beams"
    drawn = [
        box(84, top, 72, 44 * len(ranked) - 6, sequence_color(0), 0.16, LINE),
        label(90, top + 20, "prompt"),
    ]
    drawn += [
        label(90, top + 38, f"{whole} blocks", 11.5),
        label(90, top + 56, f"{len(ranked)} beams", 11.5, look=BOLD),
    ]
    parts.append(linked([f"b{block}" for block in first], said, *drawn))
    for place in range(whole, len(tables[0])):
        x, at = 164 + column * (place - whole), 0
        # those that share one are neighbours
        holders = Counter(tables[beam][place] for beam in ranked)
        for block, rows in holders.items():
            mine, y, high = ranked[at : at + rows], top + 44 * at, 44 * rows - 6
            text, band = (
                " ".join(stored[mine[0]][place * size : (place + 1) * size]),
                (column - 6) / rows,
            )
            drawn = [
                box(x + band * i, y, band, high, sequence_color(line[beam]), 0.3)
                for i, beam in enumerate(mine)
            ]
            drawn += [
                box(x, y, column - 6, high, edge=LINE),
                label(x + 6, y + 30, text, 12, INK, column - 18),
            ]
            drawn.append(
                label(
                    x + 6,
                    y + 13,
                    f"block {block}" + (f", {rows} beams" if rows > 1 else ""),
                    10.5,
                    INK,
                    column - 18,
                    BOLD,
                )
            )
            who = " and ".join(str(number) for number in sorted(line[beam] for beam in mine))
            parts.append(
                linked([f"b{block}"], f"block {block}, held by beam {who}: {text}", *drawn)
            )
            at += rows
    return parts


# 05: two prompts ----------------------------------------------------------------------------------

# its tokens, its blocks, the hashes of the full ones
Prompt = tuple[list[str], list[int], list[str]]


def two_prompts(prompts: Sequence[Prompt], size: int) -> str:
    """Two prompts block by block, in up to four rows of six: a block that both hold is drawn once,
    across both.
    """
    length = len(prompts[1][0])
    found, most = (sum(map(int.__eq__, *(p[1] for p in prompts))), max(len(p[1]) for p in prompts))
    said = (
        f"The second prompt has {length} tokens. {found * size} of them are found in the first "
        "one's blocks"
    )
    parts = [
        label(
            0,
            16,
            f"{said}; {length - found * size} must be computed.",
            14,
            INK,
            1080,
            "font-weight:600",
        )
    ]
    whose = ("in both, stored once", "the first's own", "the second's own")
    parts += legend(0, 27, {text: (sequence_color(row), 0.6) for row, text in enumerate(whose)})
    parts += [
        label(524, 39, "≠", 13, WRONG, look=BOLD),
        label(540, 39, "same words, different past: different hash", 12, SOFT),
    ]
    for row, (_, blocks, names) in enumerate(prompts):
        for place in range(found * row, min(len(blocks), 24)):
            both, full = place < found, place < len(names)
            mine, other = (
                p[0][place * size : (place + 1) * size] for p in (prompts[row], prompts[1 - row])
            )
            x, y, high = place % 6 * 180, 54 + place // 6 * 128 + 58 * row, 108 if both else 50
            color, middle = sequence_color(0 if both else 1 + row), y + high / 2 - 4
            name = f"block {blocks[place]} · {names[place]}" if full else "not full: no hash"
            edge = f'stroke-width="2" stroke-dasharray="{"none" if full else 4}"'
            drawn = [box(x, y, 172, high, color, 0.24 * full, color, edge)]
            differ = [i for i, token in enumerate(mine) if other[i : i + 1] != [token]]
            drawn += words(x + 8, middle, [plain(token) for token in mine], 158, differ)
            drawn.append(label(x + 8, middle + 19, name, 11, INK if full else SOFT))
            say = name + (", in both tables" if both else "")
            if full and not both and not differ:
                others = prompts[1 - row][2]
                if names[place] == others[place]:
                    say += "; the hash is known, but the prompt's last token must be computed"
                else:
                    drawn.append(label(x + 152, middle + 19, "≠", 13, WRONG, look=BOLD))
                    say += (
                        "; the other prompt has the same words after a different past, so they "
                        "have a different hash"
                    )
            parts.append(linked([f"w{place}"], say, *drawn))
    if most > 24:
        parts.append(label(0, 54 + 4 * 128 + 4, f"and {most - 24} more blocks", 12, SOFT))
    return svg(1080, 64 + 128 * max(1, min(4, -(-most // 6))), parts)


# 01: which user holds which slots -----------------------------------------------------------------


def _merged(regions: Sequence[Region]) -> list[Region]:
    """The same slots, with regions that follow one another joined."""
    runs = list[Region]()
    for start, size in regions:
        if runs and runs[-1].start + runs[-1].size == start:
            runs[-1] = Region(runs[-1].start, runs[-1].size + size)
        else:
            runs.append(Region(start, size))
    return runs


def taken_places(
    requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged, row: int
) -> str:
    """Memory in rows of `row` slots after these (prompt, output) requests were admitted: which
    request holds which slots, and which one is refused.

    Solid holds a token, striped is set aside and empty, blank is free.
    """
    size, inside, end, parts = allocator.num_slots, 0, 0, list[str]()
    for key, request in enumerate(requests):
        try:
            allocator.admit(key, Request(*request))
        except (OutOfMemory, OutOfBlocks):
            break
        inside += 1

    def strip(start: int, length: int, color: str, edge: str = "none") -> list[str]:
        drawn = []
        for at in range(start // row, -(-(start + length) // row)):
            left, right = max(start, at * row), min(start + length, (at + 1) * row)
            x = 52 + (left - at * row) * 1028 / row
            drawn.append(box(x, 62 + 29 * at, (right - left) * 1028 / row, 23, color, 1, edge))
        return drawn

    parts += strip(0, size, "var(--well)", LINE)
    for key, (prompt, _) in enumerate(requests[:inside]):
        runs = _merged(allocator.regions(key))
        length = allocator.held(key)[0]
        drawn, left = list[str](), prompt
        for start, slots in runs:
            drawn += strip(start, slots, f"url(#pl-{key % 7})")
            drawn += strip(start, min(left, slots), sequence_color(key))
            left = max(0, left - slots)
        if length == row:
            drawn.append(label(0, 78 + 29 * (runs[0].start // row), f"user {key + 1}", 11, SOFT))
        taken = f"{length:,} slots taken, {length - prompt:,} of them empty"
        if len(runs) > 1:
            taken += f", in {len(runs)} pieces"
        parts.append(
            linked([f"u{key}"], f"User {key + 1}: a prompt of {prompt:,} tokens, {taken}", *drawn)
        )
        end += length
    said = f"{inside} of {len(requests)} users are in; {end:,} of {size:,} slots are taken."
    if inside < len(requests):
        need, at = allocator.needs(Request(*requests[inside])), end // row
        said = f"User {inside + 1} is out of memory. {said}"
        asks, x, width = (
            f"{need:,} more? {size - end:,} are left",
            52 + end % row * 1028 / row,
            need * 1028 / row,
        )
        parts.append(
            box(
                x,
                62 + 29 * at,
                width,
                23,
                "none",
                1,
                WRONG,
                'stroke-width="2" stroke-dasharray="6 4"',
            )
        )
        x += width - wide(asks, 12) - 8 if width > wide(asks, 12) + 8 else width + 8
        parts.append(label(x, 78 + 29 * at, asks, 12, INK, look=BOLD))
    parts += [stripes(f"pl-{i}", sequence_color(i)) for i in range(7)]
    looks = {
        "holds a token": sequence_color(0),
        "taken, and empty": "url(#pl-0)",
        "free": "var(--well)",
    }
    parts += legend(52, 30, {text: (look, 1, LINE) for text, look in looks.items()})
    head = label(52, 18, said, 15, "var(--bad)" if inside < len(requests) else INK, 1028, BOLD)
    return svg(1080, 66 + 29 * -(-size // row), [head, *parts])


# 02: position, table, slot ------------------------------------------------------------------------


def position_to_slot(texts: Sequence[str], table: BlockTable, left_out: int = 0) -> str:
    """Words in the order of a text, its block table, and the slots that hold them, each linked
    with its counterparts.

    Args:
        left_out: words of the text that had no slot.
    """
    size, blocks, pool = table.pool.block_size, table.block_ids, table.pool
    pitch = 1080 / 16
    said = f"The text, {len(texts)} words by position"
    if left_out:
        said += f"; {left_out} more find no free block"
    parts = [label(0, 14, said, 13, INK, look=BOLD)]

    def cell(
        at: int, y: float, number: int, text: str, color: str, share: float, high: int = 46
    ) -> list[str]:
        x, y = at % 16 * pitch + at % 16 // size * 3, y + at // 16 * high
        if len(text) > 11:
            text = f"{text[:10]}…"
        where = box(x, y, pitch - 6, 40, color, share, LINE)
        return [
            where,
            label(x + 4, y + 12, str(number), 10),
            label(x + 4, y + 30, text, 12, INK, pitch - 12),
        ]

    def say(at: int) -> str:
        entry, offset = divmod(at, size)
        slot = f"slot {blocks[entry]} × {size} + {offset} = {blocks[entry] * size + offset}"
        return (
            f"position {at} = {entry} × {size} + {offset}: entry {entry} says block "
            f"{blocks[entry]}; so {slot}"
        )

    for at, text in enumerate(texts):
        parts.append(
            linked([f"t{at}"], say(at), *cell(at, 22, at, text, sequence_color(at // size), 0.3))
        )
    y = 40 + 46 * max(1, -(-len(texts) // 16))
    parts.append(
        label(
            0,
            y + 12,
            "Its block table: the number of each entry, and the block that it names",
            13,
            INK,
            look=BOLD,
        )
    )
    for entry, block in enumerate(blocks):
        mine = range(entry * size, min(len(texts), (entry + 1) * size))
        drawn = cell(entry, y + 20, entry, f"block {block}", sequence_color(entry), 0.3)
        said = (
            f"entry {entry}: the words {mine[0]} to {mine[-1]} are in block {block}, from slot "
            f"{block * size} on"
        )
        parts.append(linked([f"e{entry}", *(f"t{at}" for at in mine)], said, *drawn))
    y += 84
    for at in range(0, pool.num_blocks * size, size):
        x = at % 16 * pitch + at % 16 // size * 3
        parts.append(label(x + 1, y + 32 + at // 16 * 60, f"block {at // size}", 11, SOFT))
    parts.append(
        label(
            0,
            y + 12,
            f"Memory, {pool.num_blocks * size} slots in blocks of {size}",
            13,
            INK,
            look=BOLD,
        )
    )
    for slot in range(pool.num_blocks * size):
        block, offset = divmod(slot, size)
        at = blocks.index(block) * size + offset if block in blocks else -1
        if 0 <= at < len(texts):
            drawn = cell(slot, y + 37, slot, texts[at], sequence_color(at // size), 0.3, 60)
            parts.append(linked([f"t{at}"], say(at), *drawn))
        else:
            color = NEUTRAL if at < 0 and pool.refcount(block) else CARD
            parts += cell(slot, y + 37, slot, "", color, 0.25, 60)
    parts += legend(
        420, y + 1, {"another sequence's": (NEUTRAL, 0.25, LINE), "free": (CARD, 0.25, LINE)}
    )
    return svg(1100, y + 24 + 60 * -(-pool.num_blocks * size // 16), parts)
