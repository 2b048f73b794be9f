"""Drafts on the block grid: every checked draft as a picture of the pool, before the check and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pagedlab.lessons.colors import NEUTRAL, sequence_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        frame, size = self.frames[i], self._llm.pool.block_size
        start, n, accepted = frame.draft.position, len(frame.draft.tokens), frame.draft.accepted
        solid = start + accepted if after else start
        held = -(-solid // size) if after else len(frame.blocks)
        color = sequence_color(0)
        place = {block_id: index for index, block_id in enumerate(frame.blocks)}
        for block_id in range(self._llm.pool.num_blocks):
            row, column = divmod(block_id, COLUMNS)
            left, index = column * (size + 2), place.get(block_id)
            mine = index is not None and index < held
            look: dict[str, Any] = (
                {"edgecolor": color, "linewidth": 1.6} if mine else {"edgecolor": NEUTRAL, "linestyle": ":"}
            )
            ax.broken_barh([(left, size)], (row, 0.72), facecolor="none", **look)
            ax.text(left, row - 0.04, str(block_id), fontsize=6, va="bottom")
            for offset in range(size if index is not None else 0):
                position = (index or 0) * size + offset
                if position >= start + n:
                    break
                x = left + offset + 0.1
                if position < solid:
                    fresh = after and position >= start
                    edge: dict[str, Any] = {"edgecolor": "#D55E00", "linewidth": 1.4} if fresh else {}
                    ax.broken_barh([(x, 0.8)], (row + 0.1, 0.52), facecolor=color, **edge)
                elif after:
                    ax.text(x + 0.4, row + 0.36, "×", ha="center", va="center", color="#D55E00")
                else:
                    ax.broken_barh([(x, 0.8)], (row + 0.1, 0.52), facecolor="none", edgecolor=color, hatch="/////")
        rows = -(-self._llm.pool.num_blocks // COLUMNS)
        ax.set(xlim=(-0.5, COLUMNS * (size + 2) - 1.5), ylim=(rows, -0.35))
        ax.axis("off")
        said, words = (f"{accepted} of {n} right, kept", frame.kept) if after else ("draft", frame.drafted)
        ax.set_title(f"{said}: {'|'.join(words)}".replace("\n", "¶"), loc="left")
