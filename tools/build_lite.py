"""Build the notebooks that run without PyTorch as a static site with Python inside: JupyterLite, in build/live/lite.

python tools/build_lite.py [--wheels FOLDER]

The page loads everything from its own server. Pyodide is from its npm package. The compiled wheels (NumPy, Matplotlib,
Pillow) are from Pyodide's server; the lock file in the npm package has the sha256 of each. Where that server cannot be
reached, `--wheels` names a folder with Pyodide's files, such as an unpacked release. Pure-Python wheels are from PyPI.
All of them, and pagedlab's own, are entries of Pyodide's lock file, which loads a package when a cell imports it: no
notebook installs anything. tools/jupyter-lite.json has JupyterLite's own settings.

By hand, because `jupyter lite build` alone loads Pyodide and packages from other servers while a reader waits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lite_notebooks import convert

ROOT = Path(__file__).resolve().parent.parent
JUPYTERLITE = ("jupyterlite-core[contents]==0.6.4", "jupyterlite-pyodide-kernel==0.6.1")  # the last for Python 3.12
NOTEBOOKS = (
    "01_fragmentation",
    "02_block_pool",
    "03_copy_on_write",
    "05_prefix_caching",
    "06_online_softmax",
    "09_continuous_batching",
)
PYODIDE = "0.27.7"  # of the series that jupyterlite-pyodide-kernel 0.6.1 is made for
PYODIDE_SERVER = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
PYODIDE_PYTHON, PYODIDE_PLATFORM = "3.12", "pyemscripten_2024_0_wasm32"
LOCKED = ("micropip", "ssl", "sqlite3", "ipython", "jedi", "numpy", "matplotlib", "pillow")
# From PyPI, in the versions whose browser half is installed here; what each imports under its own name.
PURE = ("anywidget", "comm", "ipywidgets", "jupyterlab_widgets", "psygnal", "tqdm", "typing_extensions")
DEPENDS = {
    "anywidget": ["ipywidgets", "psygnal", "typing-extensions"],
    "ipywidgets": ["comm", "jupyterlab-widgets", "ipython", "traitlets"],
    "pagedlab": ["anywidget", "matplotlib", "numpy", "xxhash"],
}
TOO_LARGE = ("pagedlab/data/tiny-qwen2/", "pagedlab/data/benchmarks/")  # no use without PyTorch
# The tests ask for the application, and widgets outside the window stay on the page as they are.
SETTINGS = Path(__file__).parent / "jupyter-lite.json"
OUTPUT = ROOT / "build" / "live" / "lite"
CACHE = ROOT / "build" / "lite-cache"


class CannotFetch(RuntimeError):
    """Something that the build needs is out of reach."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotFetch(f"{' '.join(map(str, command[:6]))} ... failed:\n{(done.stderr or done.stdout)[-1500:]}")
    return done.stdout


def pip(*arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pyodide(cache: Path) -> Path:
    """The folder of Pyodide's npm package."""
    home = cache / f"pyodide-{PYODIDE}"
    folder = home / "node_modules" / "pyodide"
    if not folder.is_dir():
        if not shutil.which("npm"):
            raise CannotFetch("Pyodide comes from npm, and there is no npm here: install Node.js")
        run("npm", "install", "--silent", "--prefix", home, f"pyodide@{PYODIDE}")
    return folder


def closure(packages: dict[str, Any], roots: tuple[str, ...]) -> dict[str, Any]:
    """The lock file's entries of `roots` and of all that they depend on."""
    found: dict[str, Any] = {}
    names = list(roots)
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = packages[name]
            names += packages[name]["depends"]
    return found


def locked_files(entries: dict[str, Any], cache: Path, server: str) -> None:
    """Put the entries' files into `cache`, each with the sha256 that Pyodide's lock file gives.

    Args:
        entries: entries of the lock file.
        cache: a folder; what it has is not fetched again.
        server: the address of Pyodide's files, which may be that of a folder.

    Raises:
        CannotFetch: a file is out of reach, or has another sha256.
    """
    for entry in entries.values():
        file = cache / entry["file_name"]
        if file.is_file():
            continue
        try:
            with urllib.request.urlopen(server + file.name, timeout=60) as answer:  # noqa: S310 - https or a folder
                data = answer.read()
        except OSError as error:
            raise CannotFetch(f"{server}{file.name}: {error}; name a folder that has it, --wheels FOLDER") from error
        if sha256(data) != entry["sha256"]:
            raise CannotFetch(f"{file.name} has another sha256 than Pyodide's lock file gives")
        file.write_bytes(data)


def pypi_wheel(requirement: str, cache: Path, *options: str) -> Path:
    folder = cache / requirement
    if not any(folder.glob("*.whl")):
        pip("download", "--no-deps", "--only-binary=:all:", *options, "--dest", folder, requirement)
    return next(folder.glob("*.whl"))


def own_wheel(cache: Path) -> Path:
    """pagedlab's wheel, less its model."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools would pack what an older build left
        pip("wheel", "--no-deps", "--wheel-dir", scratch, ROOT)
        built = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(built) as whole, zipfile.ZipFile(cache / built.name, "w", zipfile.ZIP_DEFLATED) as light:
            for member in whole.namelist():
                if not member.startswith(TOO_LARGE):
                    light.writestr(member, whole.read(member))
    return cache / built.name


def lock_entry(wheel: Path) -> dict[str, Any]:
    name, number = wheel.name.split("-")[:2]
    return {
        "name": name.lower().replace("_", "-"),
        "version": number,
        "file_name": wheel.name,
        "sha256": sha256(wheel.read_bytes()),
        "install_dir": "site",
        "package_type": "package",
        "imports": [name, "pagedlab_lessons"] if name == "pagedlab" else [name],
        "depends": DEPENDS.get(name, []),
        "unvendored_tests": False,
    }


def distribution(cache: Path, target: Path, server: str) -> None:
    """Pyodide with every wheel beside it, and a lock file that names those and no others."""
    source = pyodide(cache)
    lock = json.loads((source / "pyodide-lock.json").read_text())
    entries = closure(lock["packages"], LOCKED)
    locked_files(entries, cache, server)
    files = [cache / entry["file_name"] for entry in entries.values()]
    wheels = [pypi_wheel(f"{name}=={version(name)}", cache, "--platform", "any") for name in PURE]
    tags = ("--python-version", PYODIDE_PYTHON, "--platform", PYODIDE_PLATFORM)
    wheels += [pypi_wheel(f"xxhash=={version('xxhash')}", cache, *tags), own_wheel(cache)]
    for entry in map(lock_entry, wheels):
        entries[entry["name"]] = entry
    target.mkdir(parents=True)
    for file in [*source.glob("pyodide*.*js"), *source.glob("*.wasm"), *source.glob("*.zip"), *files, *wheels]:
        shutil.copy2(file, target)
    (target / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": entries}))


def jupyterlite() -> Path:
    """The Python of an environment with JupyterLite; installed here, its extensions would be loaded by JupyterLab."""
    widgets = [f"{name}=={version(name)}" for name in ("anywidget", "ipywidgets", "jupyterlab_widgets")]
    recipe = "\n".join([*JUPYTERLITE, *widgets])
    folder = CACHE / "jupyterlite"
    stamp = folder / "installed"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not stamp.is_file() or stamp.read_text() != recipe:
        venv.create(folder, clear=True)
        pip("--python", python, "install", *JUPYTERLITE, *widgets)
        stamp.write_text(recipe)
    return python


def build(server: str) -> None:
    """Build the site anew. Raises CannotFetch if a part of it is out of reach."""
    CACHE.mkdir(parents=True, exist_ok=True)
    python = jupyterlite()
    with tempfile.TemporaryDirectory() as scratch:
        lite = Path(scratch)
        distribution(CACHE, lite / "static" / "pyodide", server)
        contents = lite / "files"
        names = [f"{name}.ipynb" for name in NOTEBOOKS]
        linked = convert(ROOT / "notebooks", names, contents / "notebooks")
        for path in (file.removeprefix("../") for file in sorted(linked)):
            (contents / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, contents / path)
        shutil.copy2(SETTINGS, lite)
        shutil.rmtree(OUTPUT, ignore_errors=True)
        options = ("--contents", contents, "--output-dir", OUTPUT, "--no-sourcemaps")
        run(python, "-m", "jupyter", "lite", "build", "--lite-dir", lite, *options, cwd=lite)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="a folder with Pyodide's files, in place of Pyodide's server")
    wheels = parser.parse_args().wheels
    try:
        build(f"{wheels.resolve().as_uri()}/" if wheels else PYODIDE_SERVER)
    except CannotFetch as error:
        print(error, file=sys.stderr)
        return 3
    size = sum(file.stat().st_size for file in OUTPUT.rglob("*") if file.is_file())
    print(f"{OUTPUT}: {size / 2**20:.0f} MiB. Look at it: python -m http.server --bind 127.0.0.1 8000")
    return 0


if __name__ == "__main__":
    sys.exit(main())
