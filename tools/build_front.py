"""Build the site's first page into a folder: python tools/build_front.py build/site

The stage plays a recording at once; the real pagedlab comes through Pyodide when somebody forks, if `make lite` has put
it beside the pages. Below stands the map of the series. Nothing is asked of another server. The page's files are those
of docs/front, with stage.js and block_grid.js from pagedlab/widgets.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's pagedlab, installed or not

import nbformat  # noqa: E402
from build_lite import NOTEBOOKS as LITE  # noqa: E402 - which notebooks run in a browser
from normalise_notebooks import MAP_ROW, repository  # noqa: E402

from pagedlab.widgets.assets import script, style  # noqa: E402

FRONT, RECORDINGS = ROOT / "docs" / "front", ROOT / "data" / "recordings"
# What front.js fetches for the fork.
PYTHON = ("*.wasm", "python_stdlib.zip", "pyodide-lock.json", "traitlets-*.whl", "pagedlab-*.whl")
COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A8A8A"]
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
    """A notebook of the map: what it asks, and where it can be read and run."""
    stem = next((ROOT / "notebooks").glob(f"{number}_*.ipynb")).stem
    title = html.escape(f"{number} · {name}")
    links = [f'<a href="notebooks/{stem}.html" aria-label="read {title}">read</a>']
    if lite and stem in LITE:
        where = f"lite/notebooks/index.html?path=notebooks/{stem}.ipynb"
        links.append(f'<a href="{where}" aria-label="run {title} in the browser">run in the browser</a>')
    if source := repository():
        colab = source.replace("https://github.com", "https://colab.research.google.com/github")
        where = f"{colab}/blob/main/notebooks/{stem}.ipynb"
        links.append(f'<a href="{where}" aria-label="open {title} in Colab">open in Colab</a>')
    words = f"<h3>{title}</h3><p>{html.escape(question[0].upper() + question[1:])}</p>"
    return f'<article>{thumbnail(THUMBNAILS[number])}{words}<p class="links">{"".join(links)}</p></article>'


def site_address() -> str:
    """Where the site is published; empty as long as pyproject.toml names no repository."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)/?", repository())
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def first_line() -> str:
    """The line of README that leads to the site; empty as long as there is no address."""
    address = site_address()
    return f"**[Try it in your browser]({address})**: nothing to install." if address else ""


def build(site: Path) -> None:
    """Write the page and all that it loads."""
    site.mkdir(parents=True, exist_ok=True)
    pyodide = site / "lite" / "static" / "pyodide"
    lite = (pyodide / "pyodide.mjs").is_file()
    cells = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells
    rows = [row for cell in cells for row in MAP_ROW.findall(cell.source)]
    source = f' · <a href="{repository()}">Source</a>' if repository() else ""
    page = (FRONT / "index.html").read_text(encoding="utf-8")
    page = page.replace("{map}", "\n".join(card(*row, lite=lite) for row in rows)).replace("{source}", source)
    page = page.replace("{bytes}", str(sum(file.stat().st_size for name in PYTHON for file in pyodide.glob(name))))
    if not lite:  # no Python to load: what needs it is left out
        page = re.sub(r'<section aria-labelledby="fork-title">.*?</section>', "", page, flags=re.DOTALL)
    (site / "index.html").write_text(page, encoding="utf-8")
    for name in ("front.css", "front.js", "lean.py", "fork.py"):
        shutil.copy2(FRONT / name, site)
    for name in ("three_answers.json", "one_story.json"):
        shutil.copy2(RECORDINGS / name, site)
    for name in ("stage", "block_grid"):
        (site / f"{name}.js").write_text(script(name), encoding="utf-8")
    (site / "stage.css").write_text(style("block_grid", "stage"), encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
