"""One palette for widgets and figures, so that a sequence keeps its colour wherever it is drawn.

The eight colours that Okabe and Ito chose to stay apart under every common colour blindness,
without black, which is lost on a dark theme. Colour is never the only sign: `HATCHES` gives each
sequence a pattern too.
"""

SEQUENCE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "||")
# empty memory and other shapes: at least 3:1 on white and on JupyterLab's dark ground
NEUTRAL = "#8A8A8A"
# axes and text of figures, 5.7:1 on their white ground; on a live page it is the theme's
INK = "#5F6772"


def sequence_color(index: int) -> str:
    """Colour of the sequence with this running number."""
    return SEQUENCE_COLORS[index % len(SEQUENCE_COLORS)]


def sequence_hatch(index: int) -> str:
    """Matplotlib hatch of the sequence; it changes every seventh, so colour and hatch together tell
    49 apart.
    """
    return HATCHES[(index + index // len(SEQUENCE_COLORS)) % len(HATCHES)]


def sequence_look(index: int) -> dict[str, str | int]:
    """Both for a page that draws: the colour, and the hatch as its number in `HATCHES`."""
    return {"color": sequence_color(index), "pattern": HATCHES.index(sequence_hatch(index))}
