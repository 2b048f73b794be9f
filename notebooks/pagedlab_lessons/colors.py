"""The palette and the hatches of all figures and widgets, as data.

A sequence keeps its colour wherever it is drawn. The colours are the eight that Okabe and Ito
chose to differ under every common colour blindness, without black, which is lost on a dark theme.
Colour is never the only sign: every look has a hatch too.

widgets/looks.js repeats `SEQUENCE_COLORS`, and block_grid.css the hatches; a test compares looks.
"""

from typing import NamedTuple

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
PINK = "#CC79A7"
SKY = "#56B4E9"
VERMILION = "#D55E00"
YELLOW = "#F0E442"
SEQUENCE_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW)
# empty memory and other shapes: at least 3:1 on white and on JupyterLab's dark ground
NEUTRAL = "#8A8A8A"
# axes and text of figures: at least 4:1 on white, and on the dark grounds of GitHub and JupyterLab
INK = "#6E7681"
WELL = "var(--well)"  # empty memory in a drawing; the page's theme decides

HATCHES = ("", "//", "..", "\\\\", "xx", "--", "||")  # in matplotlib's words


HATCH_LINES = {  # in SVG: a tile of 7 pixels, turned by some degrees, and the path of its lines
    "//": (45, "M0 0V7"),
    "..": (0, "M3 3h0"),
    "\\\\": (-45, "M0 0V7"),
    "xx": (45, "M0 0V7M0 3H7"),
    "--": (90, "M0 0V7"),
    "||": (0, "M0 0V7"),
}


class Look(NamedTuple):
    """How a shape is filled.

    Args:
        color: a hex colour, or a variable of the page's theme.
        hatch: one of `HATCHES`.
        is_pale: whether the colour is a tint only. A hatch keeps its full colour.
    """

    color: str
    hatch: str = ""
    is_pale: bool = False

    @property
    def tint(self) -> "Look":
        """A tint of the colour, without the hatch: text on it can be read."""
        return Look(self.color, is_pale=True)


FREE = Look(WELL)
CACHED = Look(NEUTRAL, "//", is_pale=True)  # a block that no table lists, and whose contents stay
LOST = Look(NEUTRAL, "xx")  # a block with references that no table lists

MEMORY_LOOKS = {  # what is used is solid, so the eye finds it first
    "used": Look(BLUE),
    "reserved": Look(ORANGE, "//", is_pale=True),
    "internal": Look(PINK, "xx", is_pale=True),
    "external": Look(NEUTRAL, "..", is_pale=True),
    "free": FREE,
}
# By the kinds of `widgets.timeline`. What computes nothing is pale. Prefill is violet, and crossed
# where it is done again; decode is grey. So no request has their colour.
STEP_LOOKS = {
    "W": Look(NEUTRAL, "//", is_pale=True),
    "P": Look("#785EF0"),
    "D": Look(NEUTRAL, ".."),
    "R": Look("#785EF0", "xx"),
    "S": Look(NEUTRAL, "||", is_pale=True),
    "-": Look(ORANGE, "--", is_pale=True),
}


def sequence_color(index: int) -> str:
    """Colour of the sequence with this running number."""
    return SEQUENCE_COLORS[index % len(SEQUENCE_COLORS)]


def sequence_hatch(index: int) -> str:
    """Matplotlib hatch of the sequence; it changes every seventh, so colour and hatch together tell
    49 apart.
    """
    return HATCHES[(index + index // len(SEQUENCE_COLORS)) % len(HATCHES)]


def look_of(index: int) -> Look:
    """How the sequence with this running number is filled."""
    return Look(sequence_color(index), sequence_hatch(index))
