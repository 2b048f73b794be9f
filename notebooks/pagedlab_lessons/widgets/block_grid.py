"""The block grid: a pool that is driven by clicks, and drawn as it says it is.

    page   --{op: "append", sequence: "s0", n: 5}-->   BlockPoolWidget  -->  Session  -->  pool
    page   <------------- `state`, whole --------------  snapshot  <--  reading  <---  and tables

A message arrives, and `state` is replaced as a whole after every operation; the page updates what
differs. block_grid.js and block_grid.css draw. They decide nothing about blocks.
"""

from collections.abc import Callable
from typing import Any

import traitlets

from pagedlab.arguments import one_of
from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab_lessons.readers_code import explain
from pagedlab_lessons.widgets.examples import CHALLENGES, PRESETS, Challenge
from pagedlab_lessons.widgets.page import Page
from pagedlab_lessons.widgets.picture import Picture, picture_of_grid
from pagedlab_lessons.widgets.reading import columns_of
from pagedlab_lessons.widgets.session import Session


class BlockPoolWidget(Page, page="block_grid"):
    """A block pool to click on.

    Errors and mistakes of the pool and the tables are shown in the widget. Undo, redo and the
    scrubber make a fresh pool and repeat the log.

    Args:
        pool: a class with BlockPool's verbs, called as `pool(num_blocks, block_size)`.
        table: a class called as `table(pool)`, with append, fork, free, block_ids and num_tokens.
        num_blocks: of the pool.
        block_size: of the pool.
        preset: the name of an example to begin with, one of `PRESETS`.
        challenge: the name of a goal, one of `CHALLENGES`. It sets the number of blocks.

    Raises:
        ValueError: If an argument makes no sense.
    """

    state = traitlets.Dict().tag(sync=True)  # what the page shows, as block_grid.js says

    def __init__(
        self,
        pool: Callable[[int, int], Any] = BlockPool,
        *,
        table: Callable[[Pool], Any] = BlockTable,
        num_blocks: int = 64,
        block_size: int = 16,
        preset: str | None = None,
        challenge: str | None = None,
    ) -> None:
        self.challenge = None
        if challenge:
            self.challenge = CHALLENGES[one_of("challenge", challenge, CHALLENGES)]
            num_blocks = self.challenge.num_blocks
        self.session = Session(pool, table, num_blocks, block_size)
        super().__init__()
        self.on_msg(self.receive)
        if preset:
            self.preset(preset)
        else:
            self._show()

    @property
    def pool(self) -> Any:
        """The pool that is driven."""
        return self.session.pool

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that exist now, by the name of their sequence."""
        return self.session.tables

    def do(self, verb: str, sequence: str | None = None, n: int | None = None) -> str:
        """Do what a click does. An error of the pool or the table is shown, not raised.

        The verbs::

            new         make a sequence of `n` tokens (default 0)
            append      add `n` tokens (default 1)
            write       append one token. If the last block is shared, it is copied first
            fork        make a second sequence over the same blocks
            free        release all blocks

        Args:
            verb: one of these.
            sequence: name of the sequence; a new one is s0, s1, ... by default.
            n: number of tokens.

        Returns:
            The name of the sequence that was made or changed.

        Raises:
            ValueError: For an unknown verb or sequence.
        """
        if verb == "write":
            verb, n = "append", 1
        entry = self.session.do(verb, sequence, n)
        self._show()
        return entry.operation.changed

    def undo(self) -> None:
        """Go back one step."""
        self.seek(self.session.cursor - 1)

    def redo(self) -> None:
        """Go forward one step that was undone."""
        self.seek(self.session.cursor + 1)

    def seek(self, step: int) -> None:
        """Show the state after `step` operations."""
        self.session.seek(step)
        self._show()

    def reset(self) -> None:
        """Start over with a fresh pool and an empty log."""
        self.session.reset()
        self._show()

    def preset(self, name: str) -> None:
        """Start over and play an example, up to the first operation that fails.

        Args:
            name: one of `PRESETS`.
        """
        operations = PRESETS[one_of("preset", name, PRESETS)]
        self.session.reset()
        for operation in operations:
            if self.session.do(*operation).error:
                break
        self._show()

    def picture(self) -> Picture:
        """Return the present state as a drawing and as text, for where no widget runs."""
        return picture_of_grid(self.state)

    # ------------------------------------------------------------------ page and Python

    def receive(self, _widget: Any, message: Any, _buffers: Any = None) -> None:
        """Answer a message of the page: do the operation, or show why not."""
        try:
            match message:
                case {"op": "undo" | "redo" | "reset" as verb}:
                    getattr(self, verb)()
                case {"op": "seek", "step": int(step)}:
                    self.seek(step)
                case {"op": "preset", "name": str(name)}:
                    self.preset(name)
                case {"op": str(verb)}:
                    self.do(verb, message.get("sequence"), message.get("n"))
                case _:
                    raise ValueError(f"not an operation: {message!r}")
        except Exception as error:  # a click never goes without an answer
            self._show(note=explain(error))

    def _show(self, note: str = "") -> None:
        """Send the present state to the page.

        Args:
            note: why a message was refused.
        """
        session = self.session
        reading = session.reading
        last = session.last
        problems = [*last.problems, *reading.problems]
        copying = sum(len(table.blocks) for table in reading.tables.values())
        tokens = max(0, copying - reading.used) * session.block_size
        self.state = {
            "block_size": session.block_size,
            "columns": columns_of(session.num_blocks),
            "counts": reading.counts,
            "tables": [
                {"name": name, **table._asdict(), "look": session.looks[name]}
                for name, table in reading.tables.items()
            ],
            "used": reading.used,
            "free": reading.free,
            "shared": reading.shared,
            "copying": copying,  # blocks in use if each sequence had its own copies
            "saved": f"{tokens // 2:,} MiB",  # of LLaMA-2-7B, half a MiB a token
            "serial": self.state.get("serial", 0) + 1,  # number of the state
            "presets": [] if self.challenge else ["Examples …", *PRESETS],
            "usual": session.block_size * 5 // 4,
            "focus": None if note else last.operation.changed,
            "next": {name: self._next(name) for name in reading.tables},
            "alert": "\n".join(filter(None, [note, last.error, *problems])),
            "spoken": note or last.text,
            "step": session.cursor,
            "steps": len(session.log),
            "copied": session.copied,
            "copies": list(map(list, last.copies)),
            "log": [[entry.text, bool(entry.error or entry.problems)] for entry in session.log],
            "challenge": self._goal(self.challenge) if self.challenge else None,
        }

    def _next(self, name: str) -> str:
        """Say what the reader can do while this sequence is selected."""
        session = self.session
        blocks, tokens = session.reading.tables[name]
        last = blocks[-1] if blocks else 0
        if tokens % session.block_size and session.reading.counts[last] > 1:
            # A reader's own table may forget the copy, so this says the rule and not what happens.
            return (
                f"{name} shares block {last}, which has room. A write must copy this block first: "
                "write a token and see."
            )
        if len(session.tables) > 1:
            return f"{name} is selected. Click a block or a row to select another sequence."
        return (
            f"{name} is selected. Append to it, or Fork it: a second sequence over the same blocks."
        )

    def _goal(self, challenge: Challenge) -> dict[str, Any]:
        """Return what the page shows of a challenge."""
        missing = challenge.missing(self.session)
        return {
            "goal": challenge.goal,
            "said": f"Not yet: {'; '.join(missing)}." if missing else f"Done. {challenge.why}",
            "is_done": not missing,
            "hint": challenge.hint,
            "solution": challenge.solution,
        }
