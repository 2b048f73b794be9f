"""pagedlab notebooks: copies the series into a folder of the reader's, and opens it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from pagedlab.shipped import notebooks
from pagedlab_serve.command_line import print_now, program_name

FIRST = "00_start_here.ipynb"


def run(folder: str, no_open: bool) -> int:
    """Copy the notebooks that are missing in the folder, and open the first one in JupyterLab.

    Args:
        folder: where they are copied to. It is made if it does not exist.
        no_open: do not start JupyterLab, but print how to.

    Returns:
        The exit code.

    Raises:
        ValueError: If the folder has no name, or cannot be written.
    """
    if not folder:
        raise ValueError("the name of the folder is empty: name a folder, or . for this one")
    target = Path(folder).expanduser()
    try:
        copied, kept = copy_missing(notebooks(), target)
    except FileExistsError:
        raise ValueError(f"{target} is a file, not a folder: name a folder") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"cannot copy the notebooks to {target} ({why})") from None
    there = f", {kept} that were there are as they were" if kept else ""
    print_now(f"{copied} notebooks copied to {target}{there}")
    if no_open:
        print_now(f"open them with: {program_name()} notebooks {shlex.quote(str(target))}")
        return 0
    command = [sys.executable, "-m", "jupyterlab", *_as_root(), *_opening_first(target)]
    return subprocess.run(command, check=False).returncode


def _opening_first(folder: Path) -> list[str]:
    """Return options: each address that JupyterLab prints then opens the first notebook."""
    return [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{FIRST}"]


def _as_root() -> list[str]:
    """Return the option without which JupyterLab refuses to start as root; none for others."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return ["--allow-root"] if is_root else []


def copy_missing(source: Path, target: Path) -> tuple[int, int]:
    """Copy the notebooks that the target folder does not have.

    Returns:
        How many were copied, and how many were there already.
    """
    target.mkdir(parents=True, exist_ok=True)
    copied = 0
    kept = 0
    for notebook in sorted(source.glob("*.ipynb")):
        if (target / notebook.name).exists():
            kept += 1
        else:
            shutil.copy2(notebook, target)
            copied += 1
    return copied, kept
