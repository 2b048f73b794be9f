"""What a reader does with the explorers of a notebook, to be called in its kernel: move every control of each."""

import base64
import gc
import json
import re
import zlib
from typing import Any

from pagedlab_lessons.widgets.explore import Explorer

TEXTS = ("", "another text", "<b>&", "🦊 中")
SETS = re.compile(r'data-set="([^"]*)"')


def unpacked(stored: dict[str, str]) -> dict[str, Any]:
    """The values of an opening that a notebook stores."""
    return json.loads(zlib.decompress(base64.b64decode(stored["packed"])))


def move_all():
    """Move every control of every explorer that there is."""
    for explorer in gc.get_objects():
        if issubclass(type(explorer), Explorer):
            move(explorer)


def move(explorer: Explorer):
    """Move each control of an explorer: there, and back to where it was.

    A figure of matplotlib takes half a second, so its sliders go to their ends alone. Others stop at
    twelve places or fewer, and at their end.
    """
    is_figure = not isinstance(explorer._shown, str)
    for control in explorer.controls:
        first = explorer.values[control["name"]]
        options = list(explorer._controls[control["name"]].options)
        values = {"switch": [not first], "text": TEXTS, "slider": options[:: len(options) - 1 or 1]}
        if not is_figure:
            values["slider"] = options[:: len(options) // 12 + 1] + options[-1:]
        for value in [*values[control["kind"]], first]:
            explorer.set(**{control["name"]: value})
            look_at(explorer)


def look_at(explorer: Explorer):
    """Raise an AssertionError if the drawing is an error, or if a click on it would do nothing."""
    drawing = explorer.drawn["html"]
    assert 'class="pl-alert"' not in drawing, f"{explorer.values}: {drawing}"
    goals: dict[str, list[Any]] = {control["name"]: control["options"] for control in explorer.controls}
    for setting in SETS.findall(drawing):
        name, _, value = setting.partition("=")
        assert name in goals, f"a click sets {setting}, and there is no control {name}"
        options = [str(option) for option in goals[name]]
        assert not options or value in options, f"a click sets {setting}, and there is only {', '.join(options)}"
