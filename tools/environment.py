"""What setup_env.py does: make .venv with what a reader needs, or with what the tests need too.

Standard library only. A second run takes no time.

python tools/setup_env.py --reader      notebooks, server and model loading
python tools/setup_env.py               the same, and all that the tests need

Torch is the part that needs care:
- No NVIDIA GPU: its CPU build, from PyTorch's own index, in place of the default build with its gigabytes of CUDA.
- A GPU, and a torch in this Python that can use it: kept as it is; .venv sees it and pip leaves it alone.
- A GPU, and no such torch: the newest default build that pyproject.toml admits.

PAGEDLAB_NEWEST=1 leaves constraints.txt aside: everything in the newest version that pyproject.toml admits.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "pagedlab-setup"
READER = ("notebooks", "gguf")
EVERYTHING = (*READER, "tests")
NEWEST = os.environ.get("PAGEDLAB_NEWEST") == "1"
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")


def answers(*command: str) -> bool:
    """Whether the command exists and ends well."""
    try:
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    except OSError:
        return False


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"pip could not install {arguments[-1]}; see its message above, then run this again")


def set_up(extras: tuple[str, ...]) -> None:
    """Install the package with these extras, unless they are there already."""
    if os.pathsep in str(VENV):
        sys.exit(
            f"{VENV.parent} has a {os.pathsep!r} in its path, and no environment can be made there:"
            " move or rename the folder, then run this again"
        )
    has_gpu = answers("nvidia-smi", "-L")
    torch_sees_gpu = has_gpu and answers(sys.executable, "-c", "import torch; assert torch.cuda.is_available()")
    recipe = hashlib.sha256(f"{sys.version} {ROOT} {has_gpu} {torch_sees_gpu} {NEWEST}".encode())
    base = recipe.hexdigest()
    for name in ("pyproject.toml", "constraints.txt", "tools/environment.py"):
        recipe.update((ROOT / name).read_bytes())
    done = STAMP.read_text(encoding="utf-8", errors="replace").split() if STAMP.exists() else []
    if done[:2] == [base, recipe.hexdigest()] and set(extras) <= set(done[2:]):
        return
    same = done[:1] == [base]  # only what is to be installed has changed: pip mends that, under whoever is using it
    print(f"{'bringing up to date' if same else 'setting up'} {VENV.name} (a few minutes, once)", flush=True)
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
        pip("--no-deps", "--retries=1", "--extra-index-url", CPU_INDEX, pin)
    pip("--constraint", str(constraints), "--editable", f"{ROOT}[{','.join(extras)}]")
    STAMP.write_text(" ".join([base, recipe.hexdigest(), *extras]))


def main() -> None:
    try:
        set_up(READER if "--reader" in sys.argv[1:] else EVERYTHING)
    except OSError as error:  # the disk is full, say; without its stamp, .venv is made anew next time
        sys.exit(f"the set-up could not write {VENV.name}: {error}; mend that, then run this again")
