"""What figures were measured on, as it stands in data/results/."""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def record(path: Path, about: str, **figures: Any) -> None:
    """Write figures to `path` with today's date, this machine and its libraries before them."""
    head: dict[str, Any] = {
        "about": about,
        "date": date.today().isoformat(),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
    }
    if "torch" in sys.modules and (cuda := sys.modules["torch"].cuda).is_available():
        head["machine"] |= {"gpu": cuda.get_device_name()}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            head[package] = version(package)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head | figures, indent=1) + "\n")
    print(f"written to {path}")
