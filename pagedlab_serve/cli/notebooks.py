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
    """Copy the series into a folder and open it in JupyterLab.

    Files that are there already stay as they are.
    """
    if not no_open:
        require("notebooks", "jupyterlab")
    (folder / "docs").mkdir(parents=True, exist_ok=True)
    source = shipped.notebooks()
    copied = [_copy(path, folder, "(../docs/", "(docs/") for path in source.glob("*.ipynb")]
    for page in source.with_name("docs").glob("*.md"):
        _copy(page, folder / "docs", "(../notebooks/", "(../")
    typer.echo(f"{sum(copied)} notebooks copied to {folder} (files that were there are kept)")
    if no_open:
        typer.echo(f"to open them: pagedlab notebooks {folder}")
        return
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    command.append(f"--LabApp.default_url=/lab/tree/{FIRST}")
    if sys.platform != "win32" and os.geteuid() == 0:
        command.append("--allow-root")  # without it, JupyterLab does not start as root
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _copy(file: Path, folder: Path, link: str, new: str) -> bool:
    """Copy a file into a folder that has none of its name, and return whether it was copied.

    In the copy, `new` stands for each `link`, because the targets of links are closer.
    """
    copy = folder / file.name
    if copy.exists():
        return False
    text = file.read_text(encoding="utf-8").replace(link, new)
    copy.write_text(text, encoding="utf-8")
    return True
