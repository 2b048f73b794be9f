"""Build the site's first page into a folder: python tools/build_front.py build/site

The stage plays a recording at once. Two stories that share blocks are drawn as fork.py leaves them here; a visitor's
first click on them loads Pyodide and pagedlab itself, if `make lite` has put both beside the pages. A map of the series
follows. Nothing is asked of another server. The page's files are those of docs/front, with stage.js and block_grid.js
from pagedlab/widgets.

By hand, because the theme's frame of a Sphinx page would leave no room for a first screen that is one picture.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's pagedlab, installed or not

import nbformat  # noqa: E402
from build_lite import NOTEBOOKS as LITE  # noqa: E402 - which notebooks run in a browser
from normalise_notebooks import MAP_ROW, colab_address, minutes, repository  # noqa: E402
from PIL import Image  # noqa: E402

from pagedlab.lessons.colors import NEUTRAL, SEQUENCE_COLORS  # noqa: E402
from pagedlab.trace import Replay  # noqa: E402
from pagedlab.widgets.assets import script, style  # noqa: E402

DOCS = ROOT / "docs"
FRONT = DOCS / "front"
RECORDINGS = ROOT / "data" / "recordings"
# What front.js fetches for the fork.
PYTHON = ("*.wasm", "python_stdlib.zip", "pyodide-lock.json", "traitlets-*.whl", "pagedlab-*.whl")
DESCRIPTION = (
    "A free, interactive course: build PagedAttention, the memory management of today's LLM servers, block by block in "
    "notebooks, until a real Qwen model runs on your code."
)
CARD = "card.png"  # what a link to the site shows elsewhere
FIRST_STEP = 1  # nothing is in memory before
STEPS_A_SECOND = 4  # slow enough that the words can be read
COLORS = [*SEQUENCE_COLORS[:6], NEUTRAL]
# A picture a notebook, seven by four: digits are colours as in colors.py, which come row by row; "." is an empty block.
THUMBNAILS = {
    "00": "0110 101 .... 0.... 1......",
    "01": "06666666 16666666 2666666 5......",
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


def thumbnail(rows: str) -> str:
    """Blocks that come one after the other."""
    cells = [(x, y, c) for y, row in enumerate(rows.split()) for x, c in enumerate(row[:7])]
    blocks = "".join(
        f'<rect x="{16 * x}" y="{16 * y}" width="14" height="14" rx="3" style="--d:{i}" fill="{COLORS[int(c)]}"/>'
        for i, (x, y, c) in enumerate(cells)
        if c != "."
    )
    return f'<svg viewBox="0 0 112 64" aria-hidden="true">{blocks}</svg>'


def card(number: str, name: str, question: str, lite: bool) -> str:
    """A notebook of the map: a click anywhere reads it, and links below its question run it."""
    stem = next((ROOT / "notebooks").glob(f"{number}_*.ipynb")).stem
    title = html.escape(f"{number} · {name}")
    links = list[str]()
    if lite and stem in LITE:
        where = f"lite/notebooks/index.html?path=notebooks/{stem}.ipynb"
        links.append(f'<a href="{where}" aria-label="run in the browser: {title}">run in the browser</a>')
    if where := colab_address(stem):
        links.append(f'<a href="{where}" aria-label="open in Colab: {title}">open in Colab</a>')
    heading = f'<h3><a class="read" href="notebooks/{stem}.html">{title}</a></h3>'
    words = f"<p>{html.escape(question[0].upper() + question[1:])}</p>"
    others = f'<p class="links">{"".join(links)}</p>' if links else ""
    return f"<article>{thumbnail(THUMBNAILS[number])}{heading}{words}{others}</article>"


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
    shown = recording | {"steps": steps}
    return {"recorded": shown, "captions": captions(shown), "speed": STEPS_A_SECOND, "first": FIRST_STEP}


def captions(recording: dict[str, Any]) -> dict[int, str]:
    """What the film says, by step, where something happens. The stage shows each until the next one."""
    num_blocks, last = recording["num_blocks"], len(recording["steps"]) - 1
    before, after = Replay(recording), Replay(recording)
    owners = dict[int, str]()  # who had a block last
    said = {0: f"No chat is here yet. All {num_blocks} blocks are free."}
    for step in range(1, last):
        if sentences := events(before.seek(step - 1), after.seek(step), owners):
            said[step] = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
        for name, sequence in after.sequences.items():
            owners |= dict.fromkeys(sequence.blocks, name)
    answers = len(after.seek(last).sequences)
    enough = f"{num_blocks} blocks were enough, because a chat that ends leaves its blocks to the next."
    said[last] = f"All {answers} answers are complete. {enough}"
    return said


def events(before: Replay, after: Replay, owners: dict[int, str]) -> list[str]:
    """A sentence for each thing that happened to a chat in a step."""
    size, free = after.recording["block_size"], after.recording["num_blocks"] - after.used
    started, sentences = [], list[str]()
    for name, now in after.sequences.items():
        was = before.sequences.get(name)
        runs = was is not None and was.state == "running"
        left = {owners[block] for block in now.blocks if block in owners} - {name}
        if now.state == "waiting" and was is None:
            need = -(-now.prompt // size)
            sentences.append(f"{name} must wait: it needs {need} blocks, and {free} are free.")
        elif now.state == "running" and not runs and left:
            sentences.append(f"{name} starts. It takes blocks {listed(now.blocks)}, which {listed(sorted(left))} left.")
        elif now.state == "running" and not runs:
            started.append(name)
        elif now.state == "stop" and runs:
            sentences.append(f"{name} ends. Its {len(was.blocks)} blocks are free again.")
        elif runs and len(now.blocks) > len(was.blocks):
            sentences.append(f"{name} has filled its blocks. It takes block {now.blocks[-1]}.")
    start = f"{listed(started)} start{'s' if len(started) == 1 else ''}."
    return [start, *sentences] if started else sentences


def listed(things: Sequence[object]) -> str:
    """Them as in a sentence: 3, 4 and 5."""
    *first, last = [*map(str, things)] or [""]
    return f"{', '.join(first)} and {last}" if first else last


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
    """What fork.py says at the start of its story. It runs in a process of its own, as it does on the page."""
    program = (
        "import fork, json, sys; "
        "fork.story.update(json.load(open(sys.argv[1], encoding='utf-8'))); print(fork.start(False))"
    )
    command = [sys.executable, "-c", program, RECORDINGS / "one_story.json"]
    folders = f"{FRONT}{os.pathsep}{ROOT}"
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, check=True
    )
    return done.stdout


def card_tags() -> str:
    """The tags for the picture that other sites show beside a link; they need an absolute address."""
    address = site_address()
    if not address:
        return ""
    tags = {"og:url": address, "og:image": address + CARD, "og:image:alt": "Blocks of memory, coloured by chat"}
    lines = [f'<meta property="{name}" content="{value}">\n' for name, value in tags.items()]
    return "".join([*lines, '<meta name="twitter:card" content="summary_large_image">\n'])


def build(site: Path) -> None:
    """Write the page and all that it loads."""
    site.mkdir(parents=True, exist_ok=True)
    pyodide = site / "lite" / "static" / "pyodide"
    lite = (pyodide / "pyodide.mjs").is_file()
    first = ROOT / "notebooks" / "00_start_here.ipynb"
    notebook = nbformat.read(first, as_version=4)
    rows = [row for cell in notebook.cells for row in MAP_ROW.findall(cell.source)]
    loaded = sum(file.stat().st_size for name in PYTHON for file in pyodide.glob(name))
    recording = json.loads((RECORDINGS / "three_answers.json").read_text(encoding="utf-8"))
    picture = Image.open(DOCS / "stage.webp")
    values = {
        "description": html.escape(DESCRIPTION),
        "card": card_tags(),
        "first": first.stem,
        "count": str(len(rows)),
        "minutes": str(minutes(notebook)),
        "block_size": str(recording["block_size"]),
        "num_blocks": str(recording["num_blocks"]),
        "picture_width": str(picture.width),
        "picture_height": str(picture.height),
        "bytes": str(loaded),
        "megabytes": str(round(loaded / 1e6)),
        "map": "\n".join(card(*row, lite=lite) for row in rows),
        "source": f'<a href="{repository()}">Source</a>' if repository() else "",
    }
    page = (FRONT / "index.html").read_text(encoding="utf-8")
    if not lite:  # no Python to load: what needs it is left out
        page = re.sub(r'<section id="fork-section".*?</section>', "", page, flags=re.DOTALL)
        page = page.replace('<a href="#fork-title">Try it</a>', "")
    for name, value in values.items():
        page = page.replace(f"{{{name}}}", value)
    (site / "index.html").write_text(page, encoding="utf-8")
    (site / "three_answers.json").write_text(json.dumps(for_visitors(recording)), encoding="utf-8")
    (site / "fork_start.json").write_text(prepared_fork(), encoding="utf-8")
    for name in ("front.css", "front.js", "lean.py", "fork.py"):
        shutil.copy2(FRONT / name, site)
    for file in (
        RECORDINGS / "one_story.json",
        DOCS / "stage.webp",
        DOCS / "static" / "favicon.svg",
        DOCS / "static" / CARD,
    ):
        shutil.copy2(file, site)
    for name in ("stage", "block_grid"):
        (site / f"{name}.js").write_text(script(name), encoding="utf-8")
    (site / "stage.css").write_text(style("block_grid", "stage"), encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
