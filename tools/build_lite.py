"""Build the notebooks that run without PyTorch as a site with Python inside, in build/live/lite: JupyterLite.

python tools/build_lite.py

`jupyter lite build` does the work. Pyodide comes from its own server and pure packages from PyPI, once a reader opens a
notebook there; pagedlab's wheel and the notebooks are part of the site. Each notebook runs here once without PyTorch. A
cell that fails then becomes text: its code, and the picture or the words that the notebook has stored.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path

import nbformat
from colab_cell import is_for_colab
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
JUPYTERLITE = ("jupyterlite-core[contents]==0.6.4", "jupyterlite-pyodide-kernel==0.6.1")  # made for Pyodide 0.27.7
WIDGETS = tuple(f"{name}=={version(name)}" for name in ("anywidget", "ipywidgets", "jupyterlab_widgets"))
NOTEBOOKS = ("01_fragmentation", "02_block_pool", "03_copy_on_write", "05_prefix_caching", "09_continuous_batching")
OUTPUT = ROOT / "build" / "live" / "lite"
CACHE = ROOT / "build" / "lite-cache"
KERNEL = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
WITHOUT_TORCH = """\
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "triton", "safetensors", "tokenizers")))"""
STARTS = (
    "**This notebook runs in your browser**: nothing is installed, and what you write stays on this page. The next "
    "cell loads Python and pagedlab. The first time, they come from cdn.jsdelivr.net and pypi.org within a minute, "
    "unless your network blocks these."
)
# build_front.py has it, too. pagedlab asks for PyTorch, so it is installed without what it needs.
INSTALL = f"""\
import piplite
await piplite.install({[*WIDGETS[:2], "matplotlib", "numpy", "tqdm", "xxhash"]})
await piplite.install("pagedlab", deps=False)"""
NOTE = "**This cell needs PyTorch, which does not run in a browser.** Here are its code and what it showed elsewhere."
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)]*)\)")  # not to an address with a scheme


def for_browser(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook with a cell that installs pagedlab, and text in place of each cell that needs PyTorch."""
    failing = ids_that_fail(notebook)
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(link_here, cell.source)
        if not is_for_colab(cell):
            cells.append(as_text(cell) if cell.id in failing else cell)
    first = [new_markdown_cell(STARTS, id="in-the-browser"), new_code_cell(INSTALL, id="install")]
    return new_notebook(cells=[cells[0], *first, *cells[1:]], metadata={"kernelspec": KERNEL})


def ids_that_fail(notebook: NotebookNode) -> set[str]:
    """Return the ids of the cells that fail where PyTorch cannot be imported."""
    tried = copy.deepcopy(notebook)
    tried.cells.insert(0, new_code_cell(WITHOUT_TORCH))
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(tried, timeout=300, allow_errors=True, extra_arguments=["--log-level=40"])
        client.execute(cwd=folder)
    outputs = [(cell.id, output) for cell in tried.cells for output in cell.get("outputs", [])]
    return {cell_id for cell_id, output in outputs if output.output_type == "error"}


def link_here(link: re.Match[str]) -> str:
    """Keep a link to a notebook that is here. What another link points to is not, so its text remains."""
    return link[0] if Path(link[2].partition("#")[0]).stem in NOTEBOOKS else link[1]


def as_text(cell: NotebookNode) -> NotebookNode:
    """Return a text cell with the code and its stored outputs. Pictures become attachments."""
    parts = [NOTE, f"```python\n{cell.source}\n```"]
    attachments = {}
    for number, output in enumerate(cell.outputs):
        data = output.get("data", {})
        if "image/png" in data:
            name = f"{number}.png"
            attachments[name] = {"image/png": data["image/png"]}
            said = output.metadata.get("image/png", {}).get("alt", "output")
            parts.append(f"![{re.sub(r'[][]', '', said)}](attachment:{name})")
        elif "text/markdown" in data:
            parts.append(data["text/markdown"])
        elif text := output.get("text") or data.get("text/plain"):
            parts.append(f"```text\n{text.rstrip()}\n```")
    return new_markdown_cell("\n\n".join(parts), id=cell.id, attachments=attachments)


def jupyterlite() -> Path:
    """Return the Python of an environment with JupyterLite; installed here, JupyterLab would load its extensions."""
    recipe = "\n".join([*JUPYTERLITE, *WIDGETS])
    folder = CACHE / "jupyterlite"
    stamp = folder / "installed"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not stamp.is_file() or stamp.read_text() != recipe:
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *JUPYTERLITE, *WIDGETS], check=True)
        stamp.write_text(recipe)
    return python


def main() -> None:
    python = jupyterlite()
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools would pack what an older build left
    shutil.rmtree(OUTPUT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        contents = Path(scratch, "contents")
        (contents / "notebooks").mkdir(parents=True)
        for name in NOTEBOOKS:
            notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
            # Not nbformat.write, which cuts text into lists of lines: JupyterLite takes them as they are.
            Path(contents, "notebooks", f"{name}.ipynb").write_text(json.dumps(for_browser(notebook)), encoding="utf-8")
        shutil.copy2(Path(__file__).parent / "jupyter-lite.json", scratch)
        wheels = Path(scratch, "pypi")  # where `jupyter lite build` looks for wheels
        subprocess.run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
        options = ["--lite-dir", scratch, "--contents", contents, "--output-dir", OUTPUT, "--no-sourcemaps"]
        subprocess.run([python, "-m", "jupyter", "lite", "build", *options], cwd=scratch, check=True)
    print(f"{OUTPUT} is ready")


if __name__ == "__main__":
    main()
