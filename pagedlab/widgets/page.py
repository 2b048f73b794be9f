"""What all widgets share: what a notebook stores in their place, and their base class."""

import base64
import html
import io
import re
from typing import Any

import anywidget
from IPython.display import display

from pagedlab.widgets.assets import style


def png(figure: Any, **options: Any) -> str:
    """A matplotlib figure at twice the pixels, in base64."""
    figure.savefig(file := io.BytesIO(), format="png", dpi=192, **options)
    return base64.b64encode(file.getvalue()).decode()


ONLY_LIVE = (
    r'<rect[^>]* fill-opacity="0" stroke="none" */>| data-\w+="[^"]*"| fill-opacity="1"| '
    r'stroke="none"'
)
# The theme's colours where there is no theme.
LIGHT = dict(re.findall(r"--(\w+): var\([\w-]+, light-dark\((#\w+)", style("block_grid")))


def stored(drawing: str, said: str) -> dict[str, str]:
    """What a notebook stores of a drawing in the theme's colours, by media type: an SVG on its own
    ground, or HTML.
    """
    # nor does XML have such characters
    page = re.sub(rf"{ONLY_LIVE}|[\x00-\x08\x0b\x0c\x0e-\x1f]", "", drawing)
    page = re.sub(r"var\(--(\w+)[^)]*\)", lambda found: LIGHT.get(found[1], found[0]), page).strip()
    if not page.startswith("<svg"):
        return {
            "text/html": f'<div style="background:#fff;color:#1f2328;padding:12px">{page}</div>'
        }
    svg = re.sub(r'^<svg[^>]*viewBox="(\S+) (\S+) (\S+) (\S+)"[^>]*>', _with_ground, page)
    data = base64.b64encode(
        svg.encode()
    ).decode()  # HTML is what JupyterLab shows before it trusts a notebook
    shown = f'<img alt="{html.escape(said)}" src="data:image/svg+xml;base64,{data}">'
    return {"image/svg+xml": svg, "text/html": shown}


def _with_ground(tag: re.Match[str]) -> str:
    """An <svg> tag for a file of its own: its size in pixels, and a ground with a margin."""
    x, y, width, height = map(float, tag.groups())
    box = f'x="{x - 12}" y="{y - 12}" width="{width + 24}" height="{height + 24}"'
    kept = re.sub(r' (?:xmlns|width|height|viewBox)="[^"]*"|max-width:[^;"]*;?', "", tag[0][4:-1])
    size = (
        f'viewBox="{x - 12} {y - 12} {width + 24} {height + 24}" width="{width + 24}" '
        f'height="{height + 24}"'
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}{kept}><rect {box} rx="10" fill="#fff"/>'


class Page(anywidget.AnyWidget):
    """A widget with a still of itself for where no widget runs.

    In a `with` block it is shown at once, until `end`.
    """

    _handle: Any = None

    def picture(self) -> Any:
        """What is stored of most widgets, as in picture.py; the others have a `still` of
        their own.
        """
        raise NotImplementedError

    def still(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is stored beside the live view, by media type, and the sizes of pictures."""
        return self.picture()._repr_mimebundle_()

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.picture().headline()}"

    def end(self) -> None:
        """What is to be done when the block ends."""

    def close(self) -> None:
        """End, and take the widget off the page."""
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
        return {**live, "text/plain": repr(self), **still}, {**metadata, **sizes}
