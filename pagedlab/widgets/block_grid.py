"""The block grid: a pool that is driven by clicks, and drawn as it says it is.

    page   --{op: "append", sequence: "s0", n: 5}-->   BlockPoolWidget   -->   Session   -->   pool and tables
    page   <------------- `state`, whole --------------   snapshot        <--   reading   <---------'

One message in, one trait out: `state` is replaced as a whole after every operation, and the page
changes what differs. block_grid.js and block_grid.css draw; nothing about blocks is decided there.
"""

from collections.abc import Callable
from typing import Any

import traitlets

from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab.lessons.memory import MODELS
from pagedlab.lessons.readers_code import explain
from pagedlab.validation import one_of
from pagedlab.widgets.assets import live_script, live_style
from pagedlab.widgets.examples import CHALLENGES, PRESETS, Challenge, example
from pagedlab.widgets.page import Page
from pagedlab.widgets.picture import Picture
from pagedlab.widgets.session import Session

LOG_WINDOW = 60  # entries of the log that travel with a state


class BlockPoolWidget(Page):
    """A block pool to click on.

    pool       an instance with BlockPool's verbs, fresh, or a class called as `pool(num_blocks, block_size)`
    table      a class called as `table(pool)`, with append, fork, free, block_ids and num_tokens
    preset     the name of an example to begin with, see `examples.PRESETS`
    challenge  a goal: a name from `examples.CHALLENGES`, or a `Challenge`; it brings the size of its pool

    What pool or table raise or do wrong is shown in the widget. Undo, redo and the scrubber replay
    the log on the same pool object, started over. `ValueError` if an argument makes no sense or the
    pool is in use.
    """

    _esm: Any = live_script("block_grid")
    _css: Any = live_style("block_grid")
    setup = traitlets.Dict().tag(sync=True)  # what stays the same: examples, models
    state = traitlets.Dict().tag(sync=True)  # what the page shows: `Reading.snapshot`, and more

    def __init__(
        self,
        pool: Pool | type[Pool] | None = None,
        *,
        table: Callable[[Pool], Any] = BlockTable,
        num_blocks: int = 64,
        block_size: int = 16,
        preset: str | None = None,
        challenge: str | Challenge | None = None,
    ) -> None:
        if isinstance(challenge, str):
            challenge = CHALLENGES[one_of("challenge", challenge, CHALLENGES)]
        self.challenge = challenge
        if self.challenge:
            num_blocks, block_size = self.challenge.num_blocks, self.challenge.block_size
        self.session = Session(BlockPool if pool is None else pool, table, num_blocks, block_size)
        if self.challenge and (self.session.num_blocks, self.session.block_size) != (
            num_blocks,
            block_size,
        ):
            raise ValueError(
                f"this challenge needs {num_blocks} blocks of {block_size}: pass the class of your "
                "pool"
            )
        self._serial = 0
        self._solved = 0  # steps of the solution shown
        self.tables = self.session.tables  # those that exist now, by the name of their sequence
        models = [{"name": model.name, "bytes": model.bytes_per_token} for model in MODELS.values()]
        super().__init__(
            setup={"models": models, "presets": [] if self.challenge else list(PRESETS)}
        )
        self.on_msg(self.receive)
        self.preset(preset) if preset else self._show()

    def do(self, verb: str, sequence: str | None = None, n: int | None = None) -> str | None:
        """Do what a click does and return the name of the sequence that it made or changed.

        new       a sequence of `n` tokens (default 0), named `sequence` (default: the next free s0, s1, ...)
        append    `n` tokens (default 1) to `sequence`; "write" is an append of one: the sequence writes its
                  next token, in its last block if there is room, and that block is copied first if it is shared
        fork      a second sequence over the same blocks
        truncate  keep the first `n` tokens of `sequence`
        free      give back all blocks of `sequence`

        An error of the pool's or the table's is shown, not raised. `ValueError` for an unknown verb
        or sequence.
        """
        if verb == "write":
            verb, n = "append", 1
        done = self.session.do(verb, sequence, int(verb == "append") if n is None else n).operation
        self._solved = 0
        self._show(done.child or done.sequence)
        return done.child or done.sequence

    def undo(self) -> None:
        """Go back one step."""
        self.seek(self.session.cursor - 1)

    def redo(self) -> None:
        """Go forward one step that was undone."""
        self.seek(self.session.cursor + 1)

    def seek(self, step: int) -> None:
        """Show the state after `step` operations."""
        self.session.seek(step)
        done = self.session.last.operation if self.session.last else None
        self._show(done and (done.child or done.sequence))

    def reset(self) -> None:
        """Start over with a fresh pool and an empty log."""
        self.session.reset()
        self._solved = 0
        self._show()

    def preset(self, name: str) -> None:
        """Start over and play an example. It ends at the first operation that fails."""
        operations = example(
            PRESETS[one_of("preset", name, PRESETS)],
            self.session.num_blocks,
            self.session.block_size,
        )
        self.session.reset()
        for operation in operations:
            if self.session.do(*operation).error:
                break
        self._show()

    def solve(self) -> None:
        """Show one more step of the challenge's solution. The first starts over."""
        if self.challenge is None:
            raise ValueError(
                'there is no challenge: make the widget with challenge="one_copy" or another name'
            )
        if self._solved in (0, len(self.challenge.solution)):
            self.session.reset()
            self._solved = 0
        done = self.session.do(*self.challenge.solution[self._solved]).operation
        self._solved += 1
        self._show(done.child or done.sequence)

    def picture(self) -> Picture:
        """The present state as a drawing and as text, for places where no widget runs."""
        return Picture(self.state)

    # ------------------------------------------------------------------ page and Python

    def receive(self, _widget: Any, message: Any, _buffers: Any = None) -> None:
        try:
            match message:
                case {"op": "undo" | "redo" | "reset" | "solve" as verb}:
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

    def _show(self, focus: str | None = None, note: str | None = None) -> None:
        session, last, origins = self.session, self.session.last, self.session.origins()
        first = max(0, min(session.cursor - LOG_WINDOW // 2, len(session.log) - LOG_WINDOW))
        self.pool = session.pool  # the one that is driven
        self._serial += 1
        self.state = {
            **session.reading.snapshot(session.colors),
            "serial": self._serial,
            "focus": focus,
            "note": note,
            "step": session.cursor,
            "steps": len(session.log),
            "copied": session.copied,
            "copies": [list(copy) for copy in last.copies] if last else [],
            "error": last.error if last else None,
            "problems": [*(last.problems if last else ()), *session.reading.problems],
            "calls": list(last.calls) if last else [],
            "born": {str(block_id): step for block_id, step in origins.items()},
            "origins": {
                str(step): str(session.log[step - 1].operation) for step in set(origins.values())
            },
            "log_first": first,
            "log": [
                [e.text, bool(e.error or e.problems)]
                for e in session.log[first : first + LOG_WINDOW]
            ],
            "challenge": self._goal(self.challenge) if self.challenge else None,
        }

    def _goal(self, challenge: Challenge) -> dict[str, Any]:
        missing = challenge.missing(self.session)
        return {
            "goal": challenge.goal,
            "missing": missing,
            "hint": challenge.hint,
            "why": "" if missing else challenge.why,
            "solved": [self._solved, len(challenge.solution)],
        }
