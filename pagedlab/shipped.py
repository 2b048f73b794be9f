"""Where the data lies that pagedlab reads: its tiny model and its traces."""

from pathlib import Path

_INSTALLED = Path(__file__).resolve().with_name("data")  # setup.py puts it there in a wheel
_HOME = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "data"  # in a checkout it lies beside pagedlab/


def data_folder(name: str) -> Path:
    """The folder "tiny-qwen2" or "traces", of a checkout or of an installed wheel."""
    return _HOME / name
