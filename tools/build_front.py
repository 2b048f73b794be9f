"""Build the site's first page into a folder: python tools/build_front.py build/site

The stage plays a recording at once. Two stories that share blocks run on pagedlab itself, in a console of JupyterLite,
once a visitor opens them; this needs what `make lite` builds. A map of the series follows. The page's files are those
of docs/front, and index.html is a form that jinja2 fills in.

By hand, because the theme's frame of a Sphinx page would leave no room for a first screen that is one picture.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import site_openings
from build_lite import INSTALL, OUTPUT
from build_lite import NOTEBOOKS as IN_THE_BROWSER
from jinja2 import Environment, FileSystemLoader
from normalise_notebooks import colab_address, repository
from pagedlab_lessons.colors import NEUTRAL, SEQUENCE_COLORS
from pagedlab_lessons.widgets.opening import opening

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FRONT = DOCS / "front"
RECORDINGS = ROOT / "data" / "recordings"
DESCRIPTION = (
    "A free, interactive course: build PagedAttention, the memory management of today's LLM servers, block by block in "
    "notebooks, until a real Qwen model runs on your code."
)
CARD = "_static/card.png"  # what a link to the site shows elsewhere
# What the page's console runs: two stories over the same blocks.
FORK = f"""\
{INSTALL}
from pagedlab_lessons.widgets import BlockPoolWidget
widget = BlockPoolWidget(num_blocks=8, block_size=4)
widget.do("new", "s0", 10)
widget.do("fork", "s0")
widget"""
# A row of the map in notebook 00: number, name, file and question. What the same notebook says of its length.
MAP_ROW = re.compile(r"^\| \*\*(\d\d)\*\* \| \[(.*?)\]\((.*?)\.ipynb\) \| (.*?) \|", re.MULTILINE)
TAKES = re.compile(r"\*\*Takes\*\* (\d+) minutes")
COLORS = [*SEQUENCE_COLORS[:6], NEUTRAL]
# A picture a notebook, seven by four: digits are colours as in colors.py, which come row by row; "." is an empty block.
THUMBNAILS = {
    "00": "0110 101 .... 0....",
    "01": "0666666 1666666 2666666 5......",
    "02": "012 ..0.1.2 0..2..1 .1..0.2",
    "03": "0000... 000014. 0000.14 ...1..4",
    "04": "..0.... .0.1... 0.1.2.. 0.12.3.",
    "05": "22200.. 22211.. 22233.. 222....",
    "06": "0...... 01..... 012.... 0123...",
    "07": "0.1.2.3 0.1.2.3 4444444 5555555",
    "08": "0000666 1116666 2222266 3666666",
    "09": "0000011 2233331 4444555 222.555",
    "10": "6...... 46..... 2246... 0022446",
    "11": "000.111 000.111 000.111 000.111",
    "12": "000444. 000044. 0000444 0000000",
    "13": "0..2..1 01.2.11 0122.11 0122211",
    "14": "5...... 5.....1 5...111 5011111",
    "15": "0...... 01..... 0123... 0123456",
}


def card(number: str, name: str, stem: str, question: str) -> dict[str, Any]:
    """What the page's form says of a notebook: its words, its links, and the blocks of its picture."""
    return {
        "title": f"{number} · {name}",
        "question": question[0].upper() + question[1:],
        "stem": stem,
        "in_lite": OUTPUT.is_dir() and stem in IN_THE_BROWSER,
        "colab": colab_address(stem),
        "blocks": [
            {"x": 16 * x, "y": 16 * y, "color": COLORS[int(digit)]}
            for y, row in enumerate(THUMBNAILS[number].split())
            for x, digit in enumerate(row)
            if digit != "."
        ],
    }


def site_address() -> str:
    """Where the site is published; empty as long as pyproject.toml names no repository."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)/?", repository())
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def for_visitors(recording: dict[str, Any]) -> dict[str, Any]:
    """The recording as the page shows it: plain names, no chat template, captions, up to its last full step."""
    used = [step["used"] for step in recording["steps"]]
    fullest = max(index for index, blocks in enumerate(used) if blocks == max(used))
    steps = [step | {"texts": renamed(step.get("texts", {}))} for step in recording["steps"][: fullest + 2]]
    if len(steps) > fullest + 1:  # the last word is here already: the next step says so, and frees the blocks
        for name, change in steps.pop()["texts"].items():
            steps[-1]["texts"][name]["state"] = change.get("state", "running")
    captions = json.loads((RECORDINGS / "captions.json").read_text(encoding="utf-8"))
    for step, caption in captions.items():
        steps[int(step)]["said"] = caption
    return {
        "recorded": recording | {"steps": steps},
        "first": 1,  # nothing is in memory before
        "speed": 4,  # slow enough that the words can be read
        "pause": 1500,  # milliseconds for a caption
    }


def renamed(texts: dict[str, Any]) -> dict[str, Any]:
    """What a step says of "r0", said of "chat 1", and so on."""
    result = {}
    for name, change in texts.items():
        first, pieces = change.get("words", [0, []])
        if "prompt" in change:
            change = change | {"words": [first, without_template(pieces)]}
        result[f"chat {int(name.removeprefix('r')) + 1}"] = change
    return result


def without_template(pieces: list[str]) -> list[str]:
    """A prompt's pieces: a note in place of the system message, then the question, then the answer on a new line."""
    question = pieces.index("user") + 2
    answer = pieces.index("assistant")
    end = max(index for index in range(answer) if pieces[index].strip()) + 1
    hidden = ["[fixed instructions] ", *[""] * (question - 1)]
    gap = ["\n", *[""] * (answer + 1 - end)]
    return [*hidden, *pieces[question:end], *gap, *pieces[answer + 2 :]]


def build(site: Path) -> None:
    """Write the page and all that it loads."""
    shutil.copytree(FRONT, site, dirs_exist_ok=True)
    shutil.copytree(DOCS / "static", site / "_static", dirs_exist_ok=True)
    shutil.copy2(DOCS / "stage.webp", site)
    first = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in first.cells)
    recording = json.loads((RECORDINGS / "three_answers.json").read_text(encoding="utf-8"))
    forms = Environment(loader=FileSystemLoader(FRONT), autoescape=True, trim_blocks=True)
    page = forms.get_template("index.html").render(
        description=DESCRIPTION,
        address=site_address(),
        card=CARD,
        source=repository(),
        try_it=FORK if OUTPUT.is_dir() else "",
        minutes=TAKES.findall(text)[0],
        notebooks=[card(*row) for row in MAP_ROW.findall(text)],
        recording=recording,
    )
    (site / "index.html").write_text(page, encoding="utf-8")
    (site / "film.json").write_text(json.dumps(opening("stage", for_visitors(recording))), encoding="utf-8")
    site_openings.write(site / "_static", [])


if __name__ == "__main__":
    build(Path(sys.argv[1]))
