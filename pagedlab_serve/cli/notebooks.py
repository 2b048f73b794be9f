"""pagedlab notebooks: copies the series into a folder of the reader's, and opens it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pagedlab import shipped
from pagedlab.extras import require

FIRST = "00_start_here.ipynb"


def notebooks(
    folder: Annotated[Path, typer.Argument(help="Where they are copied to.")] = Path(
        "pagedlab-notebooks"
    ),
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not start JupyterLab.")] = False,
) -> None:
    """Copy the series into a folder of yours and open it in JupyterLab.

    Notebooks that are there already stay as they are.
    """
    if not no_open:
        require("notebooks", "jupyterlab")
    (folder / "docs").mkdir(parents=True, exist_ok=True)
    present = {path.name for path in folder.iterdir()}
    missing = [path for path in shipped.notebooks().glob("*.ipynb") if path.name not in present]
    for notebook in missing:
        _copy(notebook, folder, "(../docs/", "(docs/")
    for page in shipped.notebooks().with_name("docs").glob("*.md"):
        _copy(page, folder / "docs", "(../notebooks/", "(../")
    typer.echo(f"{len(missing)} notebooks copied to {folder}; those that were there are kept")
    if no_open:
        return
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    command.append(f"--LabApp.default_url=/lab/tree/{FIRST}")
    if sys.platform != "win32" and os.geteuid() == 0:
        command.append("--allow-root")  # without it, JupyterLab does not start as root
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _copy(file: Path, folder: Path, link: str, new: str) -> None:
    """Copy a text file, in which `new` stands for each `link`: it moves closer to its targets."""
    text = file.read_text(encoding="utf-8").replace(link, new)
    (folder / file.name).write_text(text, encoding="utf-8")
