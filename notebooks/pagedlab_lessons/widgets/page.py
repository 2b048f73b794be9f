"""What all widgets share: what a notebook stores in their place, and their base class."""

import base64
import html
import io
import re
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from pagedlab_lessons.colors import INK
from pagedlab_lessons.widgets import opening
from pagedlab_lessons.widgets.assets import script, style

# Figures ------------------------------------------------------------------------------------------


def close_figure(figure: Any) -> None:
    """Close a matplotlib figure, so that the notebook does not show it a second time."""
    import matplotlib.pyplot as plt

    plt.close(figure)


def svg_of(figure: Any) -> str:
    """Return a matplotlib figure as SVG, with text in the theme's colour."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "pagedlab"}):  # the same figure, the same file
        figure.savefig(file, format="svg", transparent=True)
    around = r"^.*?(?=<svg)|<metadata>.*?</metadata>"
    page = re.sub(around, "", file.getvalue(), flags=re.DOTALL)
    return re.sub(INK, "var(--soft)", page, flags=re.IGNORECASE)


# What a notebook stores ---------------------------------------------------------------------------

# Parts of a drawing that only a live page needs, and characters that XML does not have.
_ONLY_LIVE = re.compile(
    r'<rect[^>]* fill-opacity="0" stroke="none" */>| data-\w+="[^"]*"| fill-opacity="1"| '
    r'stroke="none"|[\x00-\x08\x0b\x0c\x0e-\x1f]'
)
# The theme's colours where there is no theme.
LIGHT = dict(re.findall(r"--(\w+): light-dark\((#\w+)", style("block_grid")))


def stored(drawing: str, name: str) -> dict[str, str]:
    """Return what a notebook stores of a drawing: an SVG on a white ground, or HTML.

    Args:
        drawing: SVG or HTML in the theme's colours.
        name: says what is seen, for those who do not see it.

    Returns:
        The pictures by media type.
    """
    page = _ONLY_LIVE.sub("", drawing)
    light = re.sub(r"var\(--(\w+)[^)]*\)", lambda color: LIGHT.get(color[1], color[0]), page)
    page = light.strip()
    if not page.startswith("<svg"):
        card = f'<div style="background:#fff;color:#1f2328;padding:12px">{page}</div>'
        return {"text/html": card}
    svg = re.sub(r'^<svg[^>]*viewBox="(\S+) (\S+) (\S+) (\S+)"[^>]*>', _with_ground, page)
    # JupyterLab shows HTML, but no SVG, before it trusts a notebook.
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="{html.escape(name)}" src="data:image/svg+xml;base64,{data}">'
    return {"image/svg+xml": svg, "text/html": image}


def _with_ground(tag: re.Match[str]) -> str:
    """Return an <svg> tag for a file of its own: its size in pixels, and a ground with a margin."""
    x, y, width, height = map(float, tag.groups())
    x, y, width, height = x - 12, y - 12, width + 24, height + 24
    kept = re.sub(r' (?:xmlns|width|height|viewBox)="[^"]*"|max-width:[^;"]*;?', "", tag[0][4:-1])
    size = f'viewBox="{x} {y} {width} {height}" width="{width}" height="{height}"'
    ground = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}{kept}>{ground}'


def name_of(drawing: str) -> str:
    """Return the name of a drawing: its aria-label, or the first text in it."""
    labelled = re.match(r'\s*<svg[^>]* aria-label="([^"]+)"', drawing)
    named = labelled or re.search(r"<text[^>]*>([^<]*)</text>", drawing)
    return html.unescape(named[1]).strip() if named else ""


class Page(anywidget.AnyWidget):
    """A widget that stores a picture of itself for pages on which no widget runs.

    Its page gets every trait of its class. A `with` block shows it at once and calls `end` when the
    block ends.
    """

    _handle: Any = None

    def __init_subclass__(cls, page: str = "", **options: Any) -> None:
        """Give a widget the script and the style sheet of this name."""
        if page:
            cls._esm = script(page)
            cls._css = style(*dict.fromkeys(("block_grid", page)))
        for trait in vars(cls).values():
            if isinstance(trait, traitlets.TraitType):
                trait.tag(sync=True)
        super().__init_subclass__(**options)

    def picture(self) -> Any:
        """Return the SVG that the notebook stores; some widgets override `still` instead."""
        raise NotImplementedError

    def still(self) -> Any:
        """Return what the notebook stores by media type, and the sizes of pictures."""
        drawing = self.picture()
        return stored(drawing, name_of(drawing)), {}

    def opening(self) -> dict[str, str] | None:
        """Return what a page without a kernel plays, None if that is nothing."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {name_of(self.picture())}"

    def end(self) -> None:
        """Finish: called when the `with` block ends."""

    def close(self) -> None:
        """Finish, and remove the widget from the page."""
        self.end()
        super().close()

    def __enter__(self) -> Any:
        self._handle = display(self, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._handle is not None:  # None outside a notebook
            self._handle.update(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        live, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        still, sizes = self.still()
        data = {**live, "text/plain": repr(self), **still}
        if opening.are_stored() and (played := self.opening()):
            data[opening.MEDIA_TYPE] = played
        return data, {**metadata, **sizes}
