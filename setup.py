"""Copies the data that pagedlab and its notebooks read into the wheel, as pagedlab/data/.

Everything else is in pyproject.toml.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CARRIED = {
    "benchmarks": [
        "attention.py",
        "attention_methods.py",
        "machine.py",
        "serving.py",
    ],  # 07 and 10 run them
    "data/results": ["*.json", "README.md"],
    "data/traces": ["*.csv", "README.md"],
    "data/tiny-qwen2": [
        "*config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
        "README.md",
    ],
}


class BuildWithData(build_py):
    """A checkout, and so an editable install, reads data/ and benchmarks/ themselves."""

    def run(self) -> None:
        super().run()
        for folder, patterns in CARRIED.items() if not self.editable_mode else ():
            target = Path(self.build_lib, "pagedlab", "data", Path(folder).name)
            target.mkdir(parents=True, exist_ok=True)
            for pattern in patterns:
                files = list((ROOT / folder).glob(pattern))
                if not files:
                    raise FileNotFoundError(
                        f"no {folder}/{pattern} to pack: this is not a whole checkout"
                    )
                for file in files:
                    shutil.copy2(file, target)


setup(cmdclass={"build_py": BuildWithData})
