"""Drafts on the block grid: every checked draft as a picture of the pool, before the check and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes

from pagedlab.blocks import blocks_for
from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.plots import LATE, outlined, page_corners

if TYPE_CHECKING:
    from pagedlab.speculative import Checked

COLUMNS = 8


class Frame(NamedTuple):
    """One check: the text's blocks while it ran, the draft, and the words of the tokens drafted and kept."""

    blocks: list[int]
    draft: Checked
    drafted: list[str]
    kept: list[str]


class DraftFilm:
    """Watches an engine that serves one text after another with drafts, from now on; `frames` are the checks so far.

    llm  has `on_step`, `pool` with `subscribe`, `sequences()`, `decode` and `speculation.checked`
    """

    def __init__(self, llm: Any) -> None:
        self.frames: list[Frame] = []
        self._llm = llm
        self._held: list[int] = []
        self._fresh: list[int] = []
        llm.pool.subscribe(lambda event: self._fresh.append(event.block_id) if event.kind == "allocate" else None)
        llm.on_step(self._on_step)

    def _on_step(self) -> None:
        blocks, self._fresh = self._held + self._fresh, []
        texts = self._llm.sequences()
        for draft in self._llm.speculation.checked:
            words = [self._llm.decode([token]) for token in draft.tokens]
            own = [self._llm.decode([token]) for text in texts for token in text.token_ids[-1:]]
            self.frames.append(Frame(blocks, draft, words, words[: draft.accepted] + own))
        self._held = texts[0].table.block_ids[:] if texts else []

    def draw(self, ax: Axes, i: int, after: bool) -> None:
        """The pool at check i: known tokens solid, drafted hatched; after it, kept ones solid, others crossed."""
        blocks, draft, drafted, kept = self.frames[i]
        size, start, color = self._llm.pool.block_size, draft.position, sequence_color(0)
        solid = start + draft.accepted if after else start
        held = blocks[: blocks_for(solid, size)] if after else blocks
        corners = page_corners(ax, self._llm.pool.num_blocks, size, COLUMNS)
        for block_id, (x, y) in enumerate(corners):
            edge = outlined(color, linewidth=1.6) if block_id in held else outlined(NEUTRAL, linestyle=":")
            ax.broken_barh([(x, size)], (y, 0.72), **edge)
        for position in range(min(start + len(drafted), len(blocks) * size)):
            x, y = corners[blocks[position // size]]
            x += position % size + 0.1
            if position >= solid and after:
                ax.text(x + 0.4, y + 0.36, "×", ha="center", va="center", color=LATE)
                continue
            look = outlined(color, "/////") if position >= solid else {"facecolor": color}
            if start <= position < solid:
                look = outlined(LATE, facecolor=color, linewidth=1.4)
            ax.broken_barh([(x, 0.8)], (y + 0.1, 0.52), **look)
        said, words = (f"{draft.accepted} of {len(drafted)} right, kept", kept) if after else ("draft", drafted)
        ax.set_title(f"{said}: {'|'.join(words)}".replace("\n", "¶"), loc="left")
