"""Finds the four packages, and copies the data that they read into the wheel, as pagedlab/data/.

It also adapts the README, because PyPI shows it to somebody who has the wheel and no clone, and
derives the wheel's addresses from "Source" in pyproject.toml. Everything else is in pyproject.toml.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CARRIED = {
    "benchmarks": [
        "attention.py",
        "attention_methods.py",
        "common.py",
        "serving.py",
    ],  # 07 and 10 run them
    "notebooks": ["*.ipynb"],  # `pagedlab notebooks` copies them, and
    "docs": ["*.md"],  # the pages that they link to
    "data/results": ["*.json", "README.md"],
    "data/traces": ["README.md", "shapes.json"],
    "data/tiny-qwen2": [
        "*config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
        "README.md",
    ],
}


# a picture or not, the text, a relative target
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
# a picture of the repository, and its caption in italics if it has one
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)\s]+\)\n(\n\*[^*].*?[^*]\*\n)?\n", re.DOTALL)
# from the title of the section to the next
START = re.compile(r"(?<=\n## Start\n\n).*?(?=\n## )", re.DOTALL)
# what only a clone has
OF_A_CLONE = re.compile(r" `make site` builds a website[^.]*\.")
# a link whose words are the name of a file of the repository
FILE = re.compile(r"\[([^\]]+)\]\(\1\)")
START_OF_WHEEL = """You need Python 3.10 or newer.

```sh
pip install "pagedlab[notebooks]"
pagedlab notebooks    # copies the notebooks into a folder and opens them in JupyterLab
```

A model of 7 MB with Qwen's architecture is in the package, so everything works offline after the
installation. A button in notebook 00 downloads the real Qwen2.5-0.5B (1 GB).
"""


def for_wheel(readme: str) -> str:
    """Replace what the README says about a clone with what holds for an installed wheel.

    Raises:
        ValueError: the README has no section "Start", or more than one.
    """
    text, count = START.subn(START_OF_WHEEL, readme)
    if count != 1:
        raise ValueError(f"README.md has {count} sections to start from, and the wheel needs one")
    text = text.replace(" (`.venv/bin/python`)", "")
    text = text.replace(".venv/bin/", "")
    return OF_A_CLONE.sub("", text)


def without_files(text: str) -> str:
    """Leave out each sentence that sends the reader to a file of the repository."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if not FILE.search(paragraph):
            paragraphs.append(paragraph)
            continue
        sentences = re.split(r"(?<=\.)\s+", paragraph)
        kept = [sentence for sentence in sentences if not FILE.search(sentence)]
        if kept:
            paragraphs.append(" ".join(kept))
    return "\n\n".join(paragraphs)


def absolute(text: str, source: str | None) -> str:
    """Make the relative links and pictures of a Markdown text absolute.

    Args:
        text: the Markdown text.
        source: the address of the repository; None if it is not known. Then links become plain
            text. Pictures are left out with their captions, and so are sentences that send the
            reader to a file.
    """

    def replaced(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        if source is None:
            return "" if mark else words
        place = "raw" if mark else "blob"
        return f"{mark}[{words}]({source}/{place}/main/{target})"

    if source is None:
        text = without_files(PICTURE.sub("", text))
    return LINK.sub(replaced, text)


class Described(Distribution):
    """Reads pyproject.toml, then completes what depends on the address of the repository."""

    def parse_config_files(self, *arguments: Any, **options: Any) -> None:
        super().parse_config_files(*arguments, **options)
        metadata: Any = self.metadata
        source = (metadata.project_urls or {}).get("Source")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata.long_description = absolute(for_wheel(readme), source)
        if source:
            metadata.project_urls.update(
                {
                    "Documentation": f"{source}/tree/main/docs",
                    "Issues": f"{source}/issues",
                    "Changelog": f"{source}/blob/main/CHANGELOG.md",
                }
            )


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


HOUSES = ["pagedlab", "pagedlab.*", "pagedlab_fast*", "pagedlab_serve*"]
LESSONS = find_packages("notebooks", include=["pagedlab_lessons*"])
setup(
    packages=[*find_packages(include=HOUSES), *LESSONS],
    package_dir={name: f"notebooks/{name.replace('.', '/')}" for name in LESSONS},
    cmdclass={"build_py": BuildWithData},
    distclass=Described,
)
