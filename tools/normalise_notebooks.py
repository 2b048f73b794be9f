"""Make executed notebooks comparable: no timings, no counters, no widget state, nothing that changes run by run.

python tools/normalise_notebooks.py [--check] notebook.ipynb ...

Outputs stay, since they are what people browse. What a numbered notebook says of the series (previous, map, next, the
minutes it takes, the map in 00) is written anew from the files beside it. Once the series is published ("Source" in
pyproject.toml), each numbered notebook has the folded cell that sets up Google Colab. `--check` changes nothing and
fails if a file is not normal.

nbstripout strips. By hand is what it does not know: closed bars, drawings as PNG, and what is said of the series.
"""

from __future__ import annotations

import argparse
import base64
import copy
import html
import io
import math
import re
import sys
from pathlib import Path

import nbformat
from cells import WIDGET_VIEW, moved
from colab_cell import colab_cell, is_for_colab
from nbstripout import strip_output

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
NAVIGATION = ("navigation", "navigation-end")  # ids of the cells behind the title and at the end
TAKES = re.compile(r"\*\*Takes\*\* \d+ minutes")
MAP_ROW = re.compile(r"^\| \**(\d\d)\** \| \[?([^|\]]*?)(?:\]\([^)]*\))? \| ([^|]*?) \|.*$", re.MULTILINE)
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
SOLUTION = re.compile(r"<summary>\s*Solution\s*</summary>.*?```python\n(.*?)```", re.DOTALL)


def normalised(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy with outputs kept and everything else that differs between two runs taken away."""
    clean = strip_output(copy.deepcopy(notebook), keep_output=True, keep_count=False, keep_id=True)
    ran = {key: notebook.metadata[key] for key in ("pagedlab",) if key in notebook.metadata}  # tools/time_notebooks.py
    clean.metadata = nbformat.from_dict(METADATA | ran)
    for cell in clean.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type != "code":
            continue
        cell.outputs = merged([output for output in cell.outputs if not moved(output)])
        for output in cell.outputs:
            data = output.get("data", {})
            # Without the state behind it a view is dead weight; the picture beside it is what people see.
            data.pop(WIDGET_VIEW, None)
            if "image/svg+xml" in data:
                draw(output)
            for text in (output, data):
                for key in ("text", "text/plain", "text/html"):
                    if key in text:
                        text[key] = ADDRESS.sub("", text[key])
    return clean


def draw(output: nbformat.NotebookNode) -> None:
    """Make a drawing and its HTML a PNG at twice the pixels, with the drawing's words for who cannot see it.

    GitHub's page of a notebook is known to lose SVG, alone and inside HTML. The font is matplotlib's own, so that the
    same drawing gives the same file on every machine.
    """
    import matplotlib
    import resvg_py
    from PIL import Image

    drawing, page = output.data.pop("image/svg+xml"), output.data.pop("text/html", "")
    fonts = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVuSansMono*.ttf"))
    family = {"monospace_family": "DejaVu Sans Mono", "font_files": [*map(str, fonts)], "skip_system_fonts": True}
    drawn = bytes(resvg_py.svg_to_bytes(svg_string=drawing, zoom=2, background="#fff", **family))
    with Image.open(io.BytesIO(drawn)) as picture:
        width, height = picture.size
        picture.convert("RGB").quantize(128).save(file := io.BytesIO(), "PNG", optimize=True)
    output.data["image/png"] = base64.b64encode(file.getvalue()).decode()
    alt = html.unescape("".join(re.findall(r'^<img alt="([^"\n]*)', page)))  # the rest is there as text
    output.metadata["image/png"] = {"width": width // 2, "height": height // 2, "alt": alt}


def merged(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join neighbouring pieces of one stream: how a kernel cuts its prints is chance."""
    result: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = result[-1] if result else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            result.append(output)
    return result


def minutes(notebook: nbformat.NotebookNode) -> int:
    """What a notebook takes, in steps of five: 200 words a minute of text, code and shown source, and for each exercise
    four minutes and one for three lines of its solution."""
    words = exercises = 0.0
    for cell in notebook.cells:
        if cell.id not in NAVIGATION and not is_for_colab(cell):
            words += len(FOLDED.sub("", cell.source).split())
            exercises += sum(4 + len(found.splitlines()) / 3 for found in SOLUTION.findall(cell.source))
            for output in cell.get("outputs", []):
                words += len(output.get("data", {}).get("text/markdown", "").split())
    return 5 * math.ceil((words / 200 + exercises) / 5)


def in_series(notebook: nbformat.NotebookNode, path: Path) -> nbformat.NotebookNode:
    """The notebook with what it says of its neighbours, if it is one of the numbered ones; changed in place."""
    series = sorted(path.parent.glob("[0-9][0-9]_*.ipynb"))
    if path not in series:
        return notebook
    here, others = series.index(path), {file.name[:2]: file for file in series}
    links = [f"[map]({series[0].name})"] if here else ["The map is in this notebook"]
    if here:
        links.insert(0, f"[‹ {title(series[here - 1])}]({series[here - 1].name})")
    if path != series[-1]:
        links.append(f"[{title(series[here + 1])} ›]({series[here + 1].name})")
    first, *rest = [cell for cell in notebook.cells if cell.id not in NAVIGATION and not is_for_colab(cell)]
    top, end = (nbformat.v4.new_markdown_cell(" | ".join(links), id=name) for name in NAVIGATION)
    is_wanted = repository() or any(is_for_colab(cell) for cell in notebook.cells)
    colab = [colab_cell(repository())] if is_wanted else []
    notebook.cells = [first, top, *colab, *rest, end]

    def map_row(row: re.Match[str]) -> str:
        number, name, question = row.groups()
        if number not in others:
            return f"| {number} | {name} | {question} | |"
        file = others[number]
        return f"| **{number}** | [{name}]({file.name}) | {question} | {minutes(nbformat.read(file, 4))} |"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = TAKES.sub(f"**Takes** {minutes(notebook)} minutes", cell.source)
            if not here:
                cell.source = MAP_ROW.sub(map_row, cell.source)
    return notebook


def repository() -> str:
    """The address that the series is published at: "Source" in pyproject.toml, and nowhere else; or nothing."""
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^Source = "(.+)"', text, re.MULTILINE)
    return found[1] if found else ""


def colab_address(stem: str) -> str:
    """Where Colab opens a notebook of the series; empty as long as pyproject.toml names no repository."""
    colab = repository().replace("https://github.com", "https://colab.research.google.com/github")
    return colab and f"{colab}/blob/main/notebooks/{stem}.ipynb"


def title(path: Path) -> str:
    return nbformat.read(path, 4).cells[0].source.splitlines()[0].removeprefix("# ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which files are not normal")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    bad = []
    for path in arguments.files:
        before = path.read_text()
        notebook = in_series(normalised(nbformat.reads(before, as_version=4)), path)
        after = nbformat.writes(notebook) + "\n"
        if after != before:
            bad.append(path)
            if not arguments.check:
                path.write_text(after)
    if bad and arguments.check:
        print("not normal, run `make notebooks`:", *bad)
    return 1 if bad and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
