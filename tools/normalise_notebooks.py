"""Make executed notebooks comparable: no timings, no counters, no widget state, nothing that changes run by run.

python tools/normalise_notebooks.py [--check] notebook.ipynb ...

Outputs stay, since they are what people browse. Once the series is published ("Source" in pyproject.toml), each
notebook has the folded cell that sets up Google Colab. `--check` changes nothing and fails if a file is not normal.

nbstripout strips, and nbconvert joins what a kernel printed in pieces. By hand is what they do not know: closed bars,
and drawings as PNG.
"""

from __future__ import annotations

import argparse
import base64
import copy
import html
import io
import re
import sys
from pathlib import Path

import nbformat
from cells import WIDGET_VIEW, moved
from colab_cell import colab_cell, is_for_colab
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbstripout import strip_output

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WHEN_IT_RAN = "cell.metadata.execution"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
AFTER_NAVIGATION = 2  # the place of the cell for Colab: after the title and the navigation


def normalised(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy with outputs kept and everything else that differs between two runs taken away."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not moved(output)]
    clean, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    clean = strip_output(clean, keep_output=True, keep_count=False, keep_id=True, extra_keys=[WHEN_IT_RAN])
    ran = {key: notebook.metadata[key] for key in ("pagedlab",) if key in notebook.metadata}  # tools/time_notebooks.py
    clean.metadata = nbformat.from_dict(METADATA | ran)
    for cell in clean.cells:
        for output in cell.get("outputs", []):
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


def with_colab_cell(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with the address of the series in its cell for Colab; once there is an address, it has the cell."""
    cells = [cell for cell in notebook.cells if not is_for_colab(cell)]
    if repository() or len(cells) < len(notebook.cells):
        cells.insert(AFTER_NAVIGATION, colab_cell(repository()))
    notebook.cells = cells
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which files are not normal")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    status = 0
    for path in arguments.files:
        before = path.read_text()
        notebook = with_colab_cell(normalised(nbformat.reads(before, as_version=4)))
        after = nbformat.writes(notebook) + "\n"
        if after == before:
            continue
        if arguments.check:
            print(f"{path} is not normal: run `make notebooks`")
            status = 1
        else:
            path.write_text(after)
    return status


if __name__ == "__main__":
    sys.exit(main())
