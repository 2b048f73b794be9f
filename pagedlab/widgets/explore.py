"""A drawing with controls: `explore(draw, block_size=([8, 16, 32], 16))` draws it again whenever
one is moved.

A control is `(options, first)` for a slider, a str for a text box, a bool for a switch. `draw` gets
them by name and returns a matplotlib figure, or an SVG or HTML in the theme's colours, var(--ink),
--soft, --ground, --card, --well, --line or --accent. In it, elements that share a word of
`data-link` light up together when one is pointed at; `data-say` is what the line below says then; a
click on `data-set="name=value"` sets a control. What is stored in the notebook is the drawing as
last shown, so a page that does not run shows it too.
"""

import html
import io
import re
from collections.abc import Callable
from typing import Any

import traitlets

from pagedlab.lessons.colors import INK
from pagedlab.widgets.assets import live_script, live_style
from pagedlab.widgets.page import Page, png, stored


class Explorer(Page):
    """Controls above what `draw` returns for them; `values` tells how they stand, `set` moves
    them.
    """

    _esm: Any = live_script("explore")
    _css: Any = live_style("block_grid", "explore")
    caption: Any = traitlets.Unicode().tag(sync=True)
    controls: Any = traitlets.List().tag(sync=True)  # name, kind, and a slider's options in words
    # how the controls stand, a slider's by place, and a running number
    asked: Any = traitlets.Dict().tag(sync=True)
    drawn: Any = traitlets.Dict().tag(sync=True)  # the drawing for them, with that number

    def __init__(self, draw: Callable[..., Any], caption: str = "", **controls: Any) -> None:
        self._draw, self._options = draw, dict[str, list[Any]]()
        super().__init__(caption=caption, asked={"number": -1, "at": {}})
        self.offer(**controls)
        self._redraw()
        self.observe(self._answer, names="asked")

    def offer(self, **controls: Any) -> None:
        """Give the controls that there were at first other options and values."""
        kinds, at = [], {}
        for name, given in controls.items():
            kind = {str: "text", bool: "switch"}.get(type(given), "slider")
            if kind == "slider":
                self._options[name], given = list(given[0]), list(given[0]).index(given[1])
            at[name] = given
            said = [
                f"{option:,}" if type(option) is int else str(option)
                for option in self._options.get(name, ())
            ]
            kinds.append({"name": name, "kind": kind, "options": said})
        with self.hold_sync():
            self.controls, self.asked = kinds, {"number": self.asked["number"] + 1, "at": at}

    @property
    def values(self) -> dict[str, Any]:
        """What `draw` is given: each control's value by name."""
        return {
            name: self._options[name][at] if name in self._options else at
            for name, at in self.asked["at"].items()
        }

    def set(self, **values: Any) -> None:
        """Move controls as a reader would."""
        places = {
            name: self._options[name].index(v) if name in self._options else v
            for name, v in values.items()
        }
        self.asked = {"number": self.asked["number"] + 1, "at": {**self.asked["at"], **places}}

    def _answer(self, _: Any) -> None:
        try:
            self._redraw()
        except (
            Exception
        ) as error:  # of the reader's own making, perhaps; the page waits for an answer
            said = html.escape(f"{type(error).__name__}: {error}")
            self.drawn = {"number": self.asked["number"], "html": f'<p class="pl-alert">{said}</p>'}

    def _redraw(self) -> None:
        number, self._shown = self.asked["number"], self._draw(**self.values)
        page = self._shown
        if not isinstance(page, str):
            import matplotlib.pyplot as plt

            plt.close(page)  # otherwise the notebook shows it a second time
            page.savefig(file := io.StringIO(), format="svg", transparent=True)
            page = re.sub(
                r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL
            )
            page = re.sub(INK, "var(--soft)", page, flags=re.IGNORECASE)
        self.drawn = {"number": number, "html": page}

    def __repr__(self) -> str:
        now = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return (
            f"A drawing to move when the notebook runs, here for {now}"
            if now
            else "A drawing to point at"
        )

    def still(self) -> Any:
        if not isinstance(self._shown, str):
            width, height = (int(96 * inches) for inches in self._shown.get_size_inches())
            sizes = {"image/png": {"width": width, "height": height}}
            return {"image/png": png(self._shown, facecolor="white")}, sizes
        return stored(self._shown, repr(self)), {}


explore = Explorer
