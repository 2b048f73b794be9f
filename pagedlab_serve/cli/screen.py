"""Draws the turns of a conversation: with rich in colour, or as plain text.

A block has one colour in all tables, and its words have it too. A mark before its number says
whether it is new, reused, shared, copied or handed on, so that nothing depends on colour:

    blocks =12 =13 +14 +15 5/16
    = reused from the prefix cache, + new, 5/16 slots taken
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from pagedlab.arguments import visible
from pagedlab_serve.cli.conversation import Answer, Cell, Turn

# Backgrounds that black text can be read on, the colours of Okabe and Ito as far as they are.
COLORS = ("#56B4E9", "#E69F00", "#2FBF92", "#F0E442", "#DB93B8", "#E8824A")
MARKS = {"reused": "=", "new": "+", "copied": "c", "handed on": "-"}
SHARED_MARK = "&"
LEGEND = {
    "=": "reused from the prefix cache",
    "+": "new",
    "&": "shared by both answers",
    "c": "copied on write",
    "-": "this answer ended and gave the block back; the other answer uses it now",
}
EQUAL_ANSWERS = "both answers are equal, so they share their full blocks too"
MOST_CELLS = 40  # blocks that are drawn of one table
LIVE_LINES = 12  # of the text, while it grows


@dataclass
class Part:
    """A piece of a line and the colour of its ground; None for none."""

    text: str
    color: str | None = None


def color_of(block_id: int) -> str:
    """Return the colour of a block. It follows the number, so that it is the same in all tables."""
    return COLORS[block_id % len(COLORS)]


def colors_by_index(answer: Answer) -> dict[int, str]:
    """Return the colour of each block of an answer, by the block's logical number."""
    return {cell.index: color_of(cell.block_id) for cell in answer.cells}


def mark_of(cell: Cell, turn: Turn) -> str:
    """Return the mark of a block. Sharing says more than that the block is new or a copy."""
    if cell.state in ("new", "copied") and turn.is_shared(cell):
        return SHARED_MARK
    return MARKS[cell.state]


def cells_line(name: str, cells: list[Cell], turn: Turn) -> list[Part]:
    """Return a block table as one line. Of a long one, the first blocks are left out."""
    parts = [Part(f"{name} ")]
    left_out = max(0, len(cells) - MOST_CELLS)
    if left_out:
        parts.append(Part(f" ({left_out} more before) "))
    for cell in cells[left_out:]:
        held = f"{mark_of(cell, turn)}{cell.block_id}"
        if cell.tokens < turn.block_size:
            held += f" {cell.tokens}/{turn.block_size}"
        unbroken = f" {held} ".replace(" ", "\N{NO-BREAK SPACE}")
        parts.append(Part(unbroken, color_of(cell.block_id)))
        parts.append(Part(" "))
    return parts


def block_lines(turn: Turn) -> list[list[Part]]:
    """Return the lines below an answer: a table for each answer, and the meaning of the marks."""
    several = len(turn.answers) > 1
    lines = []
    for number, answer in enumerate(turn.answers, 1):
        if answer.cells:
            name = f"blocks of answer {number}" if several else "blocks"
            lines.append(cells_line(name, answer.cells, turn))
    cells = [cell for answer in turn.answers for cell in answer.cells]
    seen = {mark_of(cell, turn) for cell in cells}
    meanings = [f"{mark} {meaning}" for mark, meaning in LEGEND.items() if mark in seen]
    partly_full = [cell.tokens for cell in cells if cell.tokens < turn.block_size]
    if partly_full:
        meanings.append(f"{partly_full[-1]}/{turn.block_size} slots taken")
    if meanings:
        lines.append([Part(", ".join(meanings))])
    if turn.answers_are_equal:
        lines.append([Part(EQUAL_ANSWERS)])
    return lines


def figures(turn: Turn, with_speed: bool = True) -> str:
    """Return the figures of a turn in one line."""
    computed = turn.prompt_tokens - turn.cached_tokens
    text = f"prompt: {turn.prompt_tokens} tokens, {turn.cached_tokens} of them reused, "
    answers = "answers" if len(turn.answers) > 1 else "answer"
    tokens = "token" if turn.new_tokens == 1 else "tokens"
    text += f"{computed} computed · {answers}: {turn.new_tokens} {tokens}"
    if with_speed:
        text += f", {turn.tokens_per_second:.0f} a second"
    return text


def _style(color: str | None) -> str:
    """Return rich's style for text on a ground of this colour; None for no ground."""
    return f"black on {color}" if color else ""


class Screen(Protocol):
    """Where turns are drawn."""

    def grow(self, turn: Turn) -> None:
        """Draw a turn whose answers grow."""

    def end(self, turn: Turn) -> None:
        """Draw a turn for good: its answers are complete, or were stopped."""


class PlainScreen:
    """Prints an answer as it grows, and its blocks after it. Nothing is drawn over."""

    def __init__(self) -> None:
        self._printed = 0  # characters of the answer

    def grow(self, turn: Turn) -> None:
        if len(turn.answers) == 1:
            self._print_rest(turn.answers[0].text)

    def _print_rest(self, text: str) -> None:
        print(visible(text[self._printed :]), end="", flush=True)
        self._printed = len(text)

    def end(self, turn: Turn) -> None:
        if len(turn.answers) == 1:
            self._print_rest(turn.answers[0].text)
            print()
        else:
            for number, answer in enumerate(turn.answers, 1):
                print(visible(f"answer {number}: {answer.text.strip()}"))
        self._printed = 0
        for line in block_lines(turn):
            words = "".join(part.text for part in line).split()
            print(" ".join(words))
        print(f"{figures(turn)}\n", flush=True)


class RichScreen:
    """Draws words and blocks in colour. While an answer grows, it is drawn over.

    Args:
        console: a console of rich.
        with_speed: whether to print how fast the answer was.
    """

    def __init__(self, console: Any, with_speed: bool = True) -> None:
        self._console = console
        self._with_speed = with_speed
        self._live: Any = None

    def grow(self, turn: Turn) -> None:
        if self._live is None:
            from rich.live import Live  # rich is optional

            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(self._drawing(turn, LIVE_LINES), refresh=True)

    def end(self, turn: Turn) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._console.print(self._drawing(turn))

    def _drawing(self, turn: Turn, most_lines: int | None = None) -> Any:
        """Return the turn as something that rich prints.

        Args:
            turn: the turn.
            most_lines: lines of each answer, its last ones; None for all.
        """
        from rich.console import Group  # rich is optional
        from rich.text import Text

        below: list[Any] = [self._line(line) for line in block_lines(turn)]
        below.append(Text(figures(turn, self._with_speed), style="dim"))
        below.append(Text())
        if most_lines is not None:
            most_lines = min(most_lines, self._room_for_text(below, len(turn.answers)))
        rows: list[Any] = []
        for number, answer in enumerate(turn.answers, 1):
            if len(turn.answers) > 1:
                rows.append(Text(f"answer {number}", style="bold"))
            lines = self._words(answer).wrap(self._console, self._console.width)
            rows.append(Text("\n").join(lines[-most_lines:] if most_lines else lines))
            rows.append(Text())
        return Group(*rows, *below)

    def _room_for_text(self, below: list[Any], num_answers: int) -> int:
        """Return the lines that each answer may have so that the drawing fits on the screen.

        The terminal cannot draw over lines that have left the screen. It is 1 at least.

        Args:
            below: the texts below the answers.
            num_answers: answers beneath each other.
        """
        width = self._console.width
        taken = sum(len(text.wrap(self._console, width)) for text in below)
        around = 2 if num_answers > 1 else 1  # the title of an answer and the line after it
        free = self._console.height - 1 - taken - around * num_answers
        return max(1, free // num_answers)

    def _words(self, answer: Answer) -> Any:
        from rich.text import Text  # rich is optional

        text = Text()
        colors = colors_by_index(answer)
        for piece in answer.pieces:
            shown = piece.text if text else piece.text.lstrip()
            # The newest token may have no block yet: the next step stores it.
            text.append(visible(shown), style=_style(colors.get(piece.index)))
        text.rstrip()
        return text

    def _line(self, parts: Iterable[Part]) -> Any:
        from rich.text import Text  # rich is optional

        text = Text()
        for part in parts:
            text.append(part.text, style=_style(part.color))
        return text


def make_screen(plain: bool) -> Screen:
    """Return the screen for this terminal: plain where the output is no terminal.

    Args:
        plain: whether the user asks for plain text.
    """
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if plain or not is_terminal or find_spec("rich") is None:
        return PlainScreen()
    from rich.console import Console  # rich is optional; NO_COLOR is its concern

    return RichScreen(Console(highlight=False))
