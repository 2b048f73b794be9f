"""A figure with sliders: `explore(draw, block_size=([8, 16, 32], 16))` redraws it whenever one is moved.

What is stored in the notebook is the figure as first drawn, so a page that does not run shows it too.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets


class Explorer(widgets.VBox):
    """Sliders above the figure that `draw` returns; each is a keyword of it, given as (options, first value).

    `sliders` holds them by name, for a test or a curious reader to move.
    """

    def __init__(self, draw: Callable[..., Any], **choices: tuple[Sequence[Any], Any]) -> None:
        self._draw = draw
        # One drawing when the handle is let go, not one for each value on the way.
        look = {"continuous_update": False, "style": {"description_width": "11em"}, "layout": {"width": "34em"}}
        self.sliders = {
            name: widgets.SelectionSlider(options=options, value=value, description=name.replace("_", " "), **look)
            for name, (options, value) in choices.items()
        }
        self.picture = widgets.Image(format="png")
        super().__init__([*self.sliders.values(), self.picture])
        for slider in self.sliders.values():
            slider.observe(self._redraw, names="value")
        self._redraw()

    def _redraw(self, change: Any = None) -> None:
        import matplotlib.pyplot as plt

        figure = self._draw(**{name: slider.value for name, slider in self.sliders.items()})
        plt.close(figure)  # otherwise the notebook shows it a second time
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=100)
        self.picture.value = file.getvalue()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        now = ", ".join(f"{name} = {slider.value}" for name, slider in self.sliders.items())
        text = f"A figure with sliders when the notebook runs, here for {now}"
        picture = base64.b64encode(self.picture.value).decode()
        return {**super()._repr_mimebundle_(**kwargs), "text/plain": text, "image/png": picture}


explore = Explorer
