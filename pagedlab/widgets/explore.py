"""A figure with sliders: `explore(draw, block_size=[8, 16, 32])` redraws it whenever one is moved.

What is stored in the notebook is the figure as first drawn, so a page that does not run shows it too.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Explorer:
    """Sliders above a picture. `sliders` holds them by name, for a test or a curious reader to move."""

    def __init__(self, draw: Callable[..., Figure], choices: dict[str, tuple[Sequence[Any], Any]]) -> None:
        self._draw = draw
        self.sliders = {
            name: widgets.SelectionSlider(
                options=list(options),
                value=value,
                description=name.replace("_", " "),
                continuous_update=False,  # one drawing when the handle is let go, not one for each value on the way
                style={"description_width": "11em"},
                layout=widgets.Layout(width="34em"),
            )
            for name, (options, value) in choices.items()
        }
        self.picture = widgets.Image(value=self._png(), format="png")
        for slider in self.sliders.values():
            slider.observe(self._redraw, names="value")
        self._box = widgets.VBox([*self.sliders.values(), self.picture])

    def _png(self) -> bytes:
        import matplotlib.pyplot as plt

        figure = self._draw(**{name: slider.value for name, slider in self.sliders.items()})
        plt.close(figure)  # otherwise the notebook shows it a second time
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=100)
        return file.getvalue()

    def _redraw(self, change: Any) -> None:
        self.picture.value = self._png()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = dict(self._box._repr_mimebundle_(**kwargs) or {})
        now = ", ".join(f"{name} = {slider.value}" for name, slider in self.sliders.items())
        bundle["text/plain"] = f"A figure with sliders when the notebook runs, here for {now}"
        bundle["image/png"] = base64.b64encode(self.picture.value).decode()
        return bundle


def explore(draw: Callable[..., Figure], **choices: tuple[Sequence[Any], Any]) -> Explorer:
    """Call `draw` with one keyword a slider, each given as (options, first value), and show the figure it returns."""
    return Explorer(draw, choices)
