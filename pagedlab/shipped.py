"""Paths of the files that pagedlab ships: tiny model, traces, results, benchmarks, notebooks.

They do not depend on the current folder, so a notebook can be copied anywhere.
"""

import json
from pathlib import Path
from typing import Any

_INSTALLED = Path(__file__).resolve().with_name("data")  # setup.py puts it there in a wheel
_CHECKOUT = _INSTALLED.parents[1] / "data"
_HOME = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
_ROOT = _HOME if _HOME == _INSTALLED else _HOME.parent  # of notebooks and benchmarks
DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def data_folder(name: str) -> Path:
    """Return the path of the folder "tiny-qwen2", "traces" or "results"."""
    return _HOME / name


def notebooks() -> Path:
    """Return the path of the folder with the notebooks of the series."""
    return _ROOT / "notebooks"


def results(name: str) -> Any:
    """Return the measured results in data/results/<name>.json, for instance of "h200"."""
    path = data_folder("results") / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def benchmark(name: str) -> str:
    """Return the path of benchmarks/<name>.py, which runs in a separate process."""
    return str(_ROOT / "benchmarks" / f"{name}.py")
