"""Build the site's first page into a folder: python tools/build_front.py build/site

The stage plays a recording at once. Two stories that share blocks are drawn as fork.py leaves them here; a visitor's
first click on them loads Pyodide and pagedlab itself, if `make lite` has put both beside the pages. A map of the series
follows. Nothing is asked of another server. The page's files are those of docs/front, with stage.js and block_grid.js
from notebooks/pagedlab_lessons/widgets. index.html is a form that jinja2 fills in.

By hand, because the theme's frame of a Sphinx page would leave no room for a first screen that is one picture.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FRONT = DOCS / "front"
RECORDINGS = ROOT / "data" / "recordings"
sys.path[:0] = [str(ROOT), str(FRONT)]  # the checkout's pagedlab, installed or not

import fork  # noqa: E402
import nbformat  # noqa: E402
from build_lite import NOTEBOOKS as LITE  # noqa: E402 - which notebooks run in a browser
from jinja2 import Environment, FileSystemLoader  # noqa: E402
from normalise_notebooks import colab_address, repository  # noqa: E402
from pagedlab_lessons.colors import NEUTRAL, SEQUENCE_COLORS  # noqa: E402
from pagedlab_lessons.widgets.assets import script, style  # noqa: E402
from PIL import Image  # noqa: E402

# What front.js fetches for the fork.
PYTHON = ("*.wasm", "python_stdlib.zip", "pyodide-lock.json", "traitlets-*.whl", "pagedlab-*.whl")
DESCRIPTION = (
    "A free, interactive course: build PagedAttention, the memory management of today's LLM servers, block by block in "
    "notebooks, until a real Qwen model runs on your code."
)
CARD = "card.png"  # what a link to the site shows elsewhere
# A row of the map in notebook 00: number, name, file and question. What the same notebook says of its length.
MAP_ROW = re.compile(r"^\| \*\*(\d\d)\*\* \| \[(.*?)\]\((.*?)\.ipynb\) \| (.*?) \|", re.MULTILINE)
TAKES = re.compile(r"\*\*Takes\*\* (\d+) minutes")
COPIED = (
    *(FRONT / name for name in ("front.css", "front.js", "lean.py", "fork.py")),
    RECORDINGS / "one_story.json",
    DOCS / "stage.webp",
    DOCS / "static" / "favicon.svg",
    DOCS / "static" / CARD,
)
FIRST_STEP = 1  # nothing is in memory before
STEPS_A_SECOND = 4  # slow enough that the words can be read
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
}


def card(number: str, name: str, stem: str, question: str) -> dict[str, Any]:
    """What the page's form says of a notebook: its words, its links, and the blocks of its picture."""
    return {
        "title": f"{number} · {name}",
        "question": question[0].upper() + question[1:],
        "stem": stem,
        "in_lite": stem in LITE,
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
    shown = recording | {"steps": steps}
    return {"recorded": shown, "captions": captions, "speed": STEPS_A_SECOND, "first": FIRST_STEP}


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


def prepared_fork() -> str:
    """What fork.py says at the start of its story, as it does later on the page."""
    fork.story.update(json.loads((RECORDINGS / "one_story.json").read_text(encoding="utf-8")))
    return fork.start(False)


def build(site: Path) -> None:
    """Write the page and all that it loads."""
    site.mkdir(parents=True, exist_ok=True)
    pyodide = site / "lite" / "static" / "pyodide"
    first = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in first.cells)
    recording = json.loads((RECORDINGS / "three_answers.json").read_text(encoding="utf-8"))
    prepared = prepared_fork()
    state = json.loads(prepared)["state"]
    forms = Environment(loader=FileSystemLoader(FRONT), autoescape=True, trim_blocks=True)
    page = forms.get_template("index.html").render(
        description=DESCRIPTION,
        address=site_address(),
        card=CARD,
        source=repository(),
        lite=(pyodide / "pyodide.mjs").is_file(),  # without it there is no Python to load
        loaded=sum(file.stat().st_size for name in PYTHON for file in pyodide.glob(name)),
        minutes=TAKES.findall(text)[0],
        notebooks=[card(*row) for row in MAP_ROW.findall(text)],
        recording=recording,
        block_size=state["block_size"],
        tokens=state["tables"][0]["tokens"],
        blocks=len(state["tables"][0]["blocks"]),
        picture=Image.open(DOCS / "stage.webp"),
    )
    (site / "index.html").write_text(page, encoding="utf-8")
    (site / "three_answers.json").write_text(json.dumps(for_visitors(recording)), encoding="utf-8")
    (site / "fork_start.json").write_text(prepared, encoding="utf-8")
    for file in COPIED:
        shutil.copy2(file, site)
    for name in ("stage", "block_grid"):
        (site / f"{name}.js").write_text(script(name), encoding="utf-8")
    (site / "stage.css").write_text(style("block_grid", "stage"), encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
