"""A drawing with controls: `explore(draw, block_size=([8, 16, 32], 16))`.

The drawing is made again whenever a control is moved. A notebook stores it as it was shown last, so
a page without a kernel shows it too.
"""

import html
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import traitlets

from pagedlab.arguments import one_of
from pagedlab_lessons.figure_words import as_png, described
from pagedlab_lessons.widgets.opening import opening, share_parts
from pagedlab_lessons.widgets.page import Page, close_figure, name_of, stored, svg_of

KINDS = "(options, first) for a slider, a str for a text box or a bool for a switch"
# The frames that a notebook stores for pages without a kernel.
MOST_FRAMES = 300
LARGEST_FRAME = 150_000  # characters of a drawing: to draw all frames of a larger one takes minutes
MOST_BYTES = 150_000  # of all drawings of a widget, packed
_Draw = Callable[..., Any]
Settings = dict[str, Any]  # positions or values of controls, by name


class _Control(NamedTuple):
    """A control: its kind, its options, and where it begins.

    The page knows the position of a value among the options, not the value.
    """

    kind: str  # "slider", "text" or "switch"
    options: Sequence[Any]  # of a text none
    at: Any  # a position, or a text

    def value(self, at: Any) -> Any:
        """Return the value at a position."""
        return self.options[at] if self.options else at

    def place(self, name: str, value: Any) -> Any:
        """Return the position of a value of this control.

        Raises:
            ValueError: If it has no such value.
        """
        return self.options.index(one_of(name, value, self.options)) if self.options else value

    def sent(self) -> list[int | str]:
        """Return the options as the page gets them: a whole number, or a text."""
        return [option if type(option) is int else str(option) for option in self.options]


def _control(name: str, given: Any) -> _Control:
    """Return the control that a caller describes.

    Raises:
        ValueError: If the description is none of `KINDS`.
    """
    if isinstance(given, bool):
        return _Control("switch", (False, True), given)
    if isinstance(given, str):
        return _Control("text", (), given)
    try:
        options, first = given
        slider = _Control("slider", list(options), first)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {KINDS}, got {given!r}") from None
    return slider._replace(at=slider.place(name, first))


def _as_page(drawn: Any) -> str:
    """Return what `draw` returned as SVG or HTML.

    Raises:
        TypeError: If it is no drawing.
    """
    if isinstance(drawn, str):
        return drawn + getattr(drawn, "narrow", "")  # a `lessons.drawing.Drawing` has two variants
    if hasattr(drawn, "savefig"):
        close_figure(drawn)
        return svg_of(drawn)
    raise TypeError(f"draw must return a matplotlib figure, or SVG or HTML as a str, got {drawn!r}")


def _alert(error: Exception) -> str:
    """Return an error as HTML."""
    message = html.escape(f"{type(error).__name__}: {error}")
    return f'<p class="pl-alert">{message}</p>'


class Explorer(Page, page="explore"):
    """Controls above what `draw` returns for them. Made by `explore`, which says what they are.

    `values` holds the current settings; `set` changes them.
    """

    caption = traitlets.Unicode()
    controls: Any = traitlets.List()  # name, kind, and a slider's options
    # the positions of the controls, and a running number
    asked = traitlets.Dict()
    drawn = traitlets.Dict()  # the drawing for them, with that number

    def __init__(self, draw: _Draw, caption: str = "", **controls: Any) -> None:
        self._draw = draw
        self._controls: dict[str, _Control] = {}
        super().__init__(caption=caption, asked={"number": -1, "at": {}})
        self.offer(**controls)
        self._show(draw(**self.values))
        self.observe(self._answer, names="asked")

    def offer(self, **controls: Any) -> None:
        """Give controls new options and a new value, as in `explore`."""
        self._controls |= {name: _control(name, given) for name, given in controls.items()}
        with self.hold_sync():
            self.controls = [
                {"name": name, "kind": control.kind, "options": control.sent()}
                for name, control in self._controls.items()
            ]
            self._ask({name: control.at for name, control in self._controls.items()})

    def _ask(self, at: Settings) -> None:
        """Put the controls there."""
        self.asked = {"number": self.asked["number"] + 1, "at": at}

    @property
    def values(self) -> Settings:
        """Each control's value by name, as `draw` gets it."""
        return self._values(self.asked["at"])

    def _values(self, at: Settings) -> Settings:
        return {name: self._controls[name].value(place) for name, place in at.items()}

    def set(self, **values: Any) -> None:
        """Move controls as a reader would.

        Args:
            values: the new value of each control to move.

        Raises:
            ValueError: If there is no such control, or it has no such value.
        """
        at = dict(self.asked["at"])
        for name, value in values.items():
            at[name] = self._controls[one_of("control", name, self._controls)].place(name, value)
        self._ask(at)

    def _answer(self, _: Any) -> None:
        """Draw what the page asked for. It waits for an answer, so an error is one too."""
        try:
            self._show(self._draw(**self.values))
        except Exception as error:  # from the reader's own `draw`, perhaps
            self._show(_alert(error))

    def _show(self, drawn: Any) -> None:
        self.drawn = {"number": self.asked["number"], "html": _as_page(drawn)}
        self._shown = drawn

    def opening(self) -> dict[str, str] | None:
        """Return a drawing for each setting of the sliders and switches; texts are fixed.

        The last control is fixed, too, if the drawings would be too many or too large. None if they
        still are, or if nothing moves and nothing can be pointed at.
        """
        page = self.drawn["html"]
        if len(page) > LARGEST_FRAME or not (self._controls or "data-" in page):
            return None
        moving = [name for name, control in self._controls.items() if control.options]
        made = self._opening(moving)
        return self._opening(moving[:-1]) if made is None and len(moving) > 1 else made

    def _opening(self, moving: list[str]) -> dict[str, str] | None:
        """Return the opening in which some controls move; the last one's position changes fastest.

        None if the drawings are too many or too large.
        """
        places = [
            range(len(control.options)) if name in moving else [self.asked["at"][name]]
            for name, control in self._controls.items()
        ]
        if math.prod(map(len, places)) > MOST_FRAMES:
            return None
        drawings: dict[str, int] = {}
        order = []
        for chosen in itertools.product(*places):
            drawing = self._drawing_at(dict(zip(self._controls, chosen, strict=True)))
            order.append(drawings.setdefault(drawing, len(drawings)))
        controls = [{**shown, "fixed": shown["name"] not in moving} for shown in self.controls]
        values = {"caption": self.caption, "controls": controls, "at": self.asked["at"]}
        made = opening("explore", {**values, "order": order, **share_parts(drawings)})
        return made if len(made["packed"]) <= MOST_BYTES else None

    def _drawing_at(self, at: Settings) -> str:
        """Return the drawing for these positions, or why there is none."""
        try:
            return _as_page(self._draw(**self._values(at)))
        except Exception as error:  # as on a live page
            return _alert(error)

    def __repr__(self) -> str:
        in_words = name_of if isinstance(self._shown, str) else described
        words = [part.rstrip(".") for part in (in_words(self._shown), self.caption) if part]
        settings = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        said = [*words, f"For {settings}"] if settings else words
        return ". ".join(said) or "A drawing"

    def still(self) -> Any:
        if isinstance(self._shown, str):
            return stored(self._shown, repr(self)), {}
        png, size = as_png(self._shown)
        size["alt"] = repr(self)
        return {"image/png": png}, {"image/png": size}


def explore(draw: _Draw, caption: str = "", **controls: Any) -> Explorer:
    """Show a drawing with controls; it is drawn again whenever a control is moved. ::

        explore(draw_blocks, "Blocks of a chat.", size=([8, 16, 32], 16), words="Hi")

    An SVG or HTML uses the theme's colours: var(--ink), --soft, --ground, --card, --well, --line
    and --accent. Its elements may have these attributes::

        data-link="a b"        lights up together with every element that shares a word
        data-say="..."         what the line below the drawing says while it is pointed at
        data-set="name=value"  a click moves this slider or switch

    A `lessons.drawing.Drawing` has a second SVG, for a narrow page.

    Args:
        draw: called with each control's value by name; returns a matplotlib figure, or SVG or HTML
            as a str.
        caption: the line below the drawing.
        controls: each is (options, first) for a slider, a str for a text box, or a bool for a
            switch.

    Returns:
        The widget. Make it the last line of a cell. `values` holds its settings; `set(name=value)`
        changes them.

    Raises:
        ValueError: If a control is none of these.
        TypeError: If `draw` returns something else.
    """
    return Explorer(draw, caption, **controls)
