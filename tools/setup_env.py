"""Make .venv with what the series needs: python3 tools/setup_env.py [--reader | --site], or make setup.

--reader is for notebooks, server and models; --site is that and what builds the site. Without an option come the tests'
tools, too. A second run takes no time. constraints.txt pins what CI tested; PAGEDLAB_NEWEST=1 leaves it aside.

This file is valid Python of any version from 3.6 on, so that an old one can say which is needed.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "pagedlab-setup"  # what has been installed
EXTRAS = "notebooks,gguf"  # what a reader needs
GROUPS = {"reader": (), "site": ("site",), "tests": ("site", "tests")}  # dependency groups of pyproject.toml
# JupyterLab's question whether a reader wants its news would lie over the first film.
NO_NEWS = '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}'
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")


def pip(*arguments):
    """Install with .venv's pip; the last argument names what is installed."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *map(str, arguments)]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"pip could not install {arguments[-1]}; see its message above, then run this again")


def pins():
    """What CI tested. Of Python 3.10, some of it is gone: there only torch is pinned."""
    if os.environ.get("PAGEDLAB_NEWEST") == "1":
        return []
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if sys.version_info >= (3, 11) or line.startswith("torch==")]


def recipe():
    """A name for all that decides what is installed."""
    project = (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool.")[0]  # the rest installs nothing
    parts = [sys.version, ROOT, *pins(), project]
    return hashlib.sha256(str(parts).encode()).hexdigest()


def set_up(groups):
    """Install the package and these dependency groups, unless they are there."""
    done = STAMP.read_text(errors="replace").split() if STAMP.exists() else []
    if done[:1] == [recipe()] and {*groups} <= {*done[1:]}:
        return
    print("setting up .venv (a few minutes, once)", flush=True)
    STAMP.unlink(missing_ok=True)
    # Node would take the scripts of JupyterLab for modules, as the repository's own package.json says.
    complete = VENV / "package.json"
    if not (complete.exists() and PYTHON.exists()):  # one that is in use cannot be made anew
        try:
            venv.create(VENV, with_pip=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            sys.exit(f"Python could not make {VENV}: {error}. On Debian and Ubuntu: apt install python3-venv")
        complete.write_text("{}\n")
    constraints = VENV / "constraints.txt"
    constraints.write_text("\n".join(pins()) + "\n")
    if not shutil.which("nvidia-smi"):
        # The build for the CPU is gigabytes smaller. Where its index is out of reach, pip takes what it finds.
        torch = next((pin for pin in pins() if pin.startswith("torch==")), "torch")
        pip("--no-deps", "--retries=1", "--extra-index-url", CPU_INDEX, torch)
    # The clone itself on the path: from the folder above, its name would else be that of a namespace package.
    compat = ("--config-settings", "editable_mode=compat")
    pip("--constraint", constraints, *compat, "--editable", f"{ROOT}[{EXTRAS}]")
    # That mode knows one folder, and the lessons are in another.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(VENV), "platbase": str(VENV)}))
    (packages / "pagedlab_lessons.pth").write_text(f"{ROOT / 'notebooks'}\n")
    settings = VENV / "share/jupyter/lab/settings"
    settings.mkdir(exist_ok=True)
    (settings / "overrides.json").write_text(NO_NEWS)
    if groups:
        pip("pip>=25.1")  # that of Python 3.10 knows no dependency groups
        named = [word for group in groups for word in ("--group", f"{ROOT / 'pyproject.toml'}:{group}")]
        pip("--constraint", constraints, *named)
    STAMP.write_text(" ".join([recipe(), *groups]))
    print(".venv is ready", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("reader", "site"):
        parser.add_argument(f"--{name}", dest="what", action="store_const", const=name, default="tests")
    set_up(GROUPS[parser.parse_args().what])


if __name__ == "__main__":
    if sys.version_info < (3, 10):  # noqa: UP036 - this file meets older ones
        found = sys.version.split()[0]
        sys.exit(f"pagedlab needs Python 3.10 or newer, and this is {found}: make PYTHON=python3.12")
    main()
