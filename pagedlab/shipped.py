"""Where the files lie that pagedlab brings along: its tiny model, traces, measured results, and
what measured them.

They are found from wherever a notebook was copied to; nothing reads `../data`.
"""

import json
from pathlib import Path
from typing import Any

_INSTALLED = Path(__file__).resolve().with_name("data")  # setup.py puts it there in a wheel
# in a checkout it lies beside pagedlab/
_HOME = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "data"


def data_folder(name: str) -> Path:
    """The folder "tiny-qwen2", "traces" or "results", of a checkout or of an installed wheel."""
    return _HOME / name


def results(name: str) -> Any:
    """What was measured and recorded as data/results/<name>.json: results("h200")["attention"], for
    one.
    """
    return json.loads((data_folder("results") / f"{name}.json").read_text(encoding="utf-8"))


def benchmark(name: str) -> str:
    """The path of benchmarks/<name>.py, to be run in a process of its own."""
    home = _HOME if _HOME == _INSTALLED else _HOME.parent
    return str(home / "benchmarks" / f"{name}.py")
