"""Notebook 04's pictures: a tree of beams with their blocks, and one step of a search."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pagedlab.blocks import blocks_for
from pagedlab_lessons.colors import NEUTRAL, sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    Block,
    Blocks,
    Drawing,
    Drawn,
    Grid,
    Item,
    Place,
    Space,
    Word,
    box,
    label,
    linked,
    note,
    owned,
    page,
    plain,
    slots,
    title,
    wide,
)

# The beams of one step, best first: new token ids and block ids of each.
Beams = list[tuple[list[int], list[int]]]
Path = tuple[int, ...]  # a beam of each step, each the parent of the next

ROW = 31  # pixels from beam to beam in the tree
TOKEN = 24  # height of a box with a token, in pixels
NARROW_STEPS = 4  # that a narrow drawing shows
EXPLAINED = (
    "Bold: a block's id. No block holds a beam's newest token yet. A thick grey line leads to "
    "several beams."
)


def parents_of(run: Sequence[Beams]) -> list[list[int]]:
    """Return the parents of each step but the first.

    Args:
        run: the beams of each step.

    Returns:
        For each beam of a step, the beam of the step before that it continues.
    """
    parents = []
    for old, new in pairwise(run):
        before = [ids for ids, _ in old]
        parents.append([before.index(ids[:-1]) for ids, _ in new])
    return parents


def lines_of_descent(parents: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Return the line of descent of each beam of each step: its number and colour in the picture.

    A beam's best child continues its line. Further children restart the lines that are dropped.

    Args:
        parents: for each step but the first, the beam of the step before that each beam continues.
        width: number of beams.
    """
    lines = [list(range(width))]
    for step_parents in parents:
        lines_of_parents = [lines[-1][parent] for parent in step_parents]
        dropped = iter(sorted({*range(width)} - {*lines_of_parents}))
        now = []
        for line in lines_of_parents:
            now.append(next(dropped) if line in now else line)
        lines.append(now)
    return lines


def beam_tree(
    run: Sequence[Beams],
    step: int,
    prompt: Sequence[int],
    block_size: int,
    decode: Callable[[list[int]], str],
) -> Drawing:
    """Draw the beams up to a step as a tree, and below it the blocks that its beams hold.

    A column of the tree is a step; the first one is step 1. A box is a beam and shows its newest
    token. A row below the tree is a beam, with its tokens in its blocks. A block that several beams
    share is drawn across their rows. A beam's number and colour are those of its line of descent.
    A narrow drawing shows the last steps, and the blocks without their words.

    Args:
        run: the beams of each step.
        step: the index in `run` of the step to show.
        prompt: token ids.
        block_size: slots in a block.
        decode: from token ids to text.
    """
    tree = _BeamTree(run, step, prompt, block_size, decode)
    copies = sum(len(blocks) for _, blocks in run[step])
    first = max(0, step + 1 - NARROW_STEPS)
    shown = f"Each token of steps {first + 1} to {first + NARROW_STEPS} of {len(run)}:"
    return page(
        f"Step {step + 1} of {len(run)}: {len(tree.used(step))} blocks in use; "
        f"a copy for each beam would take {copies}.",
        note(("", shown)),
        tree.tokens,
        note(("", "The blocks of each beam:")),
        tree.tables,
        note(EXPLAINED),
        more=tree.changes(),
    )


@dataclass
class _BeamTree:
    """The parts of the picture that `beam_tree` draws, with the arguments of `beam_tree`."""

    run: Sequence[Beams]
    step: int
    prompt: Sequence[int]
    block_size: int
    decode: Callable[[list[int]], str]

    def __post_init__(self) -> None:
        self.beams = self.run[self.step]
        self.width = len(self.beams)
        self.parents = parents_of(self.run[: self.step + 1])
        self.lines = lines_of_descent(self.parents, self.width)
        self.names = self.lines[-1]  # of the beams of the shown step
        self.colors = list(map(sequence_color, self.names))
        self.full = len(self.prompt) // self.block_size  # blocks of the prompt, for all beams
        # The path to each beam of each step. In the order of paths no line crosses another one.
        self.paths: list[list[Path]] = [[(beam,) for beam in range(self.width)]]
        for parents in self.parents:
            paths = [(*self.paths[-1][parent], beam) for beam, parent in enumerate(parents)]
            self.paths.append(paths)

    def used(self, step: int) -> set[int]:
        return {block for _, blocks in self.run[step] for block in blocks}

    def changes(self) -> str:
        """Return what the shown step changed: beams that restarted, and blocks that are free."""
        if not self.step:
            return ""
        before, now = self.lines[-2:]
        restarts = [
            f"beam {new} is dropped and restarts as a fork of beam {before[parent]}"
            for new, parent in zip(now, self.parents[-1], strict=True)
            if before[parent] != new
        ]
        text = "; ".join(restarts) or "each beam continues"
        text = f"{text[0].upper()}{text[1:]}."
        if freed := self.used(self.step - 1) - self.used(self.step):
            text += f" Free again: block{'s' * (len(freed) > 1)} {_listed(sorted(freed))}."
        return text

    def tokens(self, space: Space) -> Drawn:
        """Draw the newest token of each beam of each step, and lines to those before."""
        steps = space.pick(len(self.run), NARROW_STEPS)
        first = max(0, self.step + 1 - steps)
        pitch = space.width / steps
        lines = []
        boxes = []
        tops: dict[Path, float] = {}
        for step in range(first, self.step + 1):
            x = space.x + pitch * (step - first) + 7
            for row, path in enumerate(sorted(self.paths[step])):
                # the beams of the shown step that descend from this one
                heirs = [heir for heir, own in enumerate(self.paths[-1]) if path == own[: step + 1]]
                top = tops[path] = space.y + ROW * row
                if step > first:
                    lines.append(self._curve(heirs, x, tops[path[:-1]], top))
                boxes.append(self._token(path, heirs, Place(x, top, pitch - 14, TOKEN)))
        return Drawn([*lines, *boxes], space.y + ROW * self.width + 8)

    def _curve(self, heirs: Sequence[int], x: float, before: float, top: float) -> str:
        """Draw a line from a beam to its parent, as wide as it has heirs; grey for several."""
        color = SOFT if heirs else LINE
        if len(heirs) == 1:
            color = self.colors[heirs[0]]
        start, end = before + TOKEN / 2, top + TOKEN / 2
        curve = f"M{x - 14:.1f} {start}C{x:.1f} {start} {x - 14:.1f} {end} {x:.1f} {end}"
        return f'<path fill="none" d="{curve}" stroke="{color}" stroke-width="{1 + len(heirs)}"/>'

    def _token(self, path: Path, heirs: Sequence[int], place: Place) -> str:
        """Draw the token of the beam at the end of a path, in the colours of the beam's heirs."""
        x, y, width, _ = place
        step, beam = len(path) - 1, path[-1]
        text = plain(self.decode(self.run[step][beam][0][-1:]))
        say = f"{text!r}, chosen at step {step + 1}"
        drawn = [box(*place, CARD, 1, LINE)]
        for i, heir in enumerate(heirs):
            band = width / len(heirs)
            drawn.append(box(x + band * i, y, band, TOKEN, self.colors[heir], 0.34))
        look = "" if heirs else "text-decoration:line-through;opacity:.8"
        left = x + max(2, (width - wide(text, 12)) / 2)
        base = y + TOKEN / 2 + 4
        drawn.append(label(left, base, text, 12, INK, width - 4, look))
        if not heirs:
            return linked([f"t{step}-{beam}"], f"{say}: this branch is dropped", *drawn)
        if step < self.step:  # the newest one is in no block yet
            at = (len(self.prompt) + step) // self.block_size
            blocks = list(dict.fromkeys(self.beams[heir][1][at] for heir in heirs))
            links = [f"b{block}" for block in blocks]
            return linked(links, f"{say}, in block {_listed(blocks)}", *drawn)
        name = self.names[beam]
        drawn.append(label(x + width + 1, base, str(name), 12, look=BOLD))
        return linked([f"last{name}"], f"beam {name}: {say}", *drawn)

    def tables(self, space: Space) -> Drawn:
        """Draw the names of the beams, the prompt's full blocks as one, and every other block."""
        row, gap, prompt, left = space.pick((44, 6, 84, 164), (30, 3, 74, 124))
        bottom = space.y + row * self.width
        beams = [path[-1] for path in sorted(self.paths[-1])]  # who share a block are neighbours
        parts = []
        for i, beam in enumerate(beams):
            parts.append(self._name(beam, space.y + row * i + row / 2 - 3, prompt - 26))
        place = Place(prompt, space.y, left - prompt - gap, bottom - space.y - gap)
        parts.append(self._prompt(place))
        longest = blocks_for(len(self.prompt) + len(self.run), self.block_size)
        pitch = (space.width - left) / (longest - self.full)
        for at in range(self.full, len(self.beams[0][1])):
            x = left + pitch * (at - self.full)
            first = 0
            for block, rows in Counter(self.beams[beam][1][at] for beam in beams).items():
                grid = Grid(x, space.y + row * first, 1, pitch - gap, row * rows - gap)
                drawn = self._block(at, block, beams[first : first + rows], space.is_narrow)
                parts += slots([drawn], grid)
                first += rows
        return Drawn(parts, bottom + 2)

    def _name(self, beam: int, middle: float, right: float) -> str:
        """Draw the name of a beam of the shown step, and its colour."""
        blocks = self.beams[beam][1]
        number = self.names[beam]
        name = label(0, middle + 6, f"beam {number}", 12.5, look=BOLD)
        color = box(right, middle - 7, 14, 18, self.colors[beam], 0.6)
        say = f"beam {number}: blocks {', '.join(map(str, blocks))}"
        # All beams have the prompt's blocks: linked with them, all would light up.
        links = [f"last{number}", *(f"b{block}" for block in blocks[self.full :])]
        return linked(links, say, name, color)

    def _prompt(self, place: Place) -> str:
        """Draw the prompt's full blocks, which all beams share."""
        blocks = self.beams[0][1][: self.full]
        tokens = self.full * self.block_size
        numbers = ", ".join(map(str, blocks))
        say = f"blocks {numbers}: the first {tokens} tokens of the prompt, for all beams"
        x, y, width, _ = place
        drawn = [
            box(*place, NEUTRAL, 0.16, LINE),
            label(x + 3, y + 20, "prompt", within=width - 5),
            label(x + 3, y + 38, f"{len(blocks)} blocks", 11.5, within=width - 5),
            label(x + 3, y + 56, f"{self.width} beams", 11.5, within=width - 5, look=BOLD),
        ]
        return linked([f"b{block}" for block in blocks], say, *drawn)

    def _block(self, at: int, block: int, beams: Sequence[int], is_narrow: bool) -> Block:
        """Return a block that these beams share; a narrow one has no room for its words."""
        token_ids = [*self.prompt, *self.beams[beams[0]][0][:-1]]
        stored = token_ids[at * self.block_size : (at + 1) * self.block_size]
        words = [plain(self.decode([token])) for token in stored]
        names = _listed(sorted(self.names[beam] for beam in beams))
        return Block(
            block,
            owned(*(self.colors[beam] for beam in beams)),
            words=() if is_narrow else tuple(map(Word, words)),
            note=f"{len(beams)} beams" if len(beams) > 1 and not is_narrow else "",
            say=f"block {block}, held by beam {names}: {' '.join(words)}",
        )


def _listed(numbers: Iterable[int]) -> str:
    """Return "1 and 2" for [1, 2]."""
    return " and ".join(map(str, numbers))


# One step of a search -----------------------------------------------------------------------------


class Tried(NamedTuple):
    """A beam before a step, and its likeliest next tokens.

    Args:
        text: the beam's new tokens.
        total: the sum of their log-probabilities.
        tokens: the next tokens and their log-probabilities, the likeliest first.
    """

    text: str
    total: float
    tokens: list[tuple[str, float]]


def draw_step(beams: Sequence[Tried], width: int) -> Drawing:
    """Draw what each beam tries, with the sums, and which continuations win.

    Args:
        beams: of the step, each with `width` next tokens.
        width: how many continuations win.
    """
    totals = [beam.total + logprob for beam in beams for _, logprob in beam.tokens]
    worst = sorted(totals, reverse=True)[width - 1]
    items: list[Item] = []
    for number, beam in enumerate(beams):
        tried = [_candidate(number, beam, *token, worst) for token in beam.tokens]
        wins = sum(beam.total + logprob >= worst for _, logprob in beam.tokens)
        outcome = ("it is dropped", "it goes on")[wins] if wins < 2 else f"it is forked: {wins} win"
        items.append(
            title(f"{beam.text.strip() or 'the prompt'} …", f"sum {beam.total:.2f}; {outcome}")
        )
        items.append(Blocks(tried, (len(tried), 2), size=3))
    explained = (
        "In a box: a likely next token, its log-probability, and the new sum; all are rounded."
    )
    return page(
        f"Each beam tries every next token. The {width} largest sums win.", note(explained), *items
    )


def _candidate(number: int, beam: Tried, token: str, logprob: float, worst: float) -> Block:
    """A beam's next token with its log-probability and the sum; a winner is filled."""
    total = beam.total + logprob
    is_winner = total >= worst
    text = plain(token)
    kind = "new" if is_winner else "empty"
    words = tuple(Word(word, kind) for word in (text, f"{logprob:.2f}", f"{total:.2f}"))
    owners = owned(NEUTRAL) if is_winner else ()
    say = f"{text!r}: {beam.total:.2f} and {logprob:.2f} are {total:.2f}, "
    say += "one of the largest sums." if is_winner else "too little."
    return Block(None, owners, words=words, links=(f"beam{number}",), say=say)
