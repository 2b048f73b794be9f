"""What setup_env.py does: make .venv with what a reader needs, or with what the tests need too.

Standard library only. A second run takes no time.

python tools/setup_env.py --reader      notebooks, server and model loading
python tools/setup_env.py --site        the same, and what builds the site
python tools/setup_env.py               the same, and all that the tests need

uv installs if it is there, else pip. uv shows its progress; of pip's long output, the large files are shown. What they
install are extras of pyproject.toml (for users) and its dependency groups (for those who work on the series).

Torch is the part that needs care:
- No NVIDIA GPU: its CPU build, from PyTorch's own index, in place of the default build with its gigabytes of CUDA.
- A GPU, and a torch in this Python that can use it: kept as it is; .venv sees it and pip leaves it alone.
- A GPU, and no such torch: the newest default build that pyproject.toml admits.

PAGEDLAB_NEWEST=1 leaves constraints.txt aside: everything in the newest version that pyproject.toml admits.

By hand, because uv cannot see a torch that .venv borrows, and a reader may have no uv.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "pagedlab-setup"
EXTRAS = "notebooks,gguf"  # what a reader needs
# the dependency groups beside them, by the option that asks for them
GROUPS: dict[str, tuple[str, ...]] = {"--reader": (), "--site": ("site",), "": ("site", "tests")}
PIP_WITH_GROUPS = "pip>=25.1"
LARGE_FILE = re.compile(r"^\s*(Downloading|Processing|Using cached) .*\(\d\d[\d.]* MB\)")
NEWEST = os.environ.get("PAGEDLAB_NEWEST") == "1"
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")


def answers(*command: str) -> bool:
    """Whether the command exists and ends well."""
    try:
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    except OSError:
        return False


def install(uv: str | None, *arguments: str, retries: int = 5) -> None:
    """Install with uv, or with pip if there is no uv or uv fails. The last argument names what is installed."""
    if uv:
        command = [uv, "pip", "install", "--python", str(PYTHON), *arguments]
        if subprocess.run(command, check=False).returncode == 0:
            return
        print("uv could not install it, see above: now pip tries", flush=True)
    pip = (str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", f"--retries={retries}")
    if not run_briefly(*pip, *arguments):
        sys.exit(f"pip could not install {arguments[-1]}; see its message above, then run this again")


def run_briefly(*command: str) -> bool:
    """Run pip, and show of its output one line for each large file; all of it if pip fails."""
    lines = []
    with subprocess.Popen(list(command), stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout:
            lines.append(line)
            if LARGE_FILE.search(line):
                print(line.rstrip(), flush=True)
    if process.returncode:
        print("".join(lines), end="", flush=True)
    return process.returncode == 0


def set_up(groups: tuple[str, ...]) -> None:
    """Install the package and these dependency groups, unless they are there already."""
    if os.pathsep in str(VENV):
        sys.exit(
            f"{VENV.parent} has a {os.pathsep!r} in its path, and no environment can be made there:"
            " move or rename the folder, then run this again"
        )
    has_gpu = answers("nvidia-smi", "-L")
    torch_sees_gpu = has_gpu and answers(sys.executable, "-c", "import torch; assert torch.cuda.is_available()")
    uv = None if torch_sees_gpu else shutil.which("uv")  # it would install a torch that .venv borrows a second time
    recipe = hashlib.sha256(f"{sys.version} {ROOT} {has_gpu} {torch_sees_gpu} {NEWEST}".encode())
    base = recipe.hexdigest()
    for name in ("pyproject.toml", "constraints.txt", "tools/environment.py"):
        recipe.update((ROOT / name).read_bytes())
    done = STAMP.read_text(encoding="utf-8", errors="replace").split() if STAMP.exists() else []
    if done[:2] == [base, recipe.hexdigest()] and set(groups) <= set(done[2:]):
        return
    same = done[:1] == [base]  # only what is to be installed has changed: pip mends that, under whoever is using it
    what = "bringing up to date" if same else "setting up"
    print(f"{what} {VENV.name} with {'uv' if uv else 'pip'} (a few minutes, once)", flush=True)
    STAMP.unlink(missing_ok=True)
    try:
        if not same:
            venv.create(VENV, with_pip=True, system_site_packages=torch_sees_gpu, clear=VENV.exists())
    except subprocess.CalledProcessError:
        sys.exit("python's venv module has no pip to put into .venv; on Debian and Ubuntu: apt install python3-venv")
    pins = [] if NEWEST else (ROOT / "constraints.txt").read_text().splitlines()
    if sys.version_info < (3, 11):  # some of what CI tested has left Python 3.10 behind; the ranges have not
        pins = [pin for pin in pins if pin.startswith("torch==")]
    if has_gpu:  # the pinned torch is the one CI tested on a CPU; a GPU's own must not be replaced by it
        pins = [pin for pin in pins if not pin.startswith(("torch==", "triton=="))]
    constraints = VENV / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    if not has_gpu:
        pin = next((pin for pin in pins if pin.startswith("torch==")), "torch")
        # Torch alone, so that nothing else is looked for there. Where the index is out of reach, pip goes on with
        # what it has, be it a CPU build on disk.
        install(uv, "--no-deps", "--extra-index-url", CPU_INDEX, pin, retries=1)
    # Node would take the scripts of JupyterLab for modules, as the repository's own package.json says.
    (VENV / "package.json").write_text("{}\n")
    # The clone itself on the path: from the folder above, its name would else be that of a namespace package.
    compat = ("--config-settings", "editable_mode=compat")
    install(uv, "--constraint", str(constraints), *compat, "--editable", f"{ROOT}[{EXTRAS}]")
    # That mode knows one folder, and the lessons are in another.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(VENV), "platbase": str(VENV)}))
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "pagedlab_lessons.pth").write_text(f"{ROOT / 'notebooks'}\n")
    if groups:
        install(uv, PIP_WITH_GROUPS)
        options = [word for group in groups for word in ("--group", f"{ROOT / 'pyproject.toml'}:{group}")]
        install(uv, "--constraint", str(constraints), *options)
    print(f"{VENV.name} is ready", flush=True)
    STAMP.write_text(" ".join([base, recipe.hexdigest(), *groups]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--reader", "--site"):
        parser.add_argument(option, dest="groups", action="store_const", const=GROUPS[option], default=GROUPS[""])
    try:
        set_up(parser.parse_args().groups)
    except OSError as error:  # the disk is full, say; without its stamp, .venv is made anew next time
        sys.exit(f"the set-up could not write {VENV.name}: {error}; mend that, then run this again")
