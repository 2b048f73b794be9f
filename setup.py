"""Everything is in pyproject.toml but one thing: a wheel carries what pagedlab reads from data/, as pagedlab/data/."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CARRIED = {
    "traces": ["*.csv", "README.md"],
    "tiny-qwen2": ["*config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "README.md"],
}


class BuildWithData(build_py):
    """A checkout, and so an editable install, reads data/ itself."""

    def run(self) -> None:
        super().run()
        for folder, patterns in CARRIED.items() if not self.editable_mode else ():
            target = Path(self.build_lib, "pagedlab", "data", folder)
            target.mkdir(parents=True, exist_ok=True)
            for pattern in patterns:
                files = list((ROOT / "data" / folder).glob(pattern))
                if not files:
                    raise FileNotFoundError(f"no data/{folder}/{pattern} to pack: this is not a whole checkout")
                for file in files:
                    shutil.copy2(file, target)


setup(cmdclass={"build_py": BuildWithData})
