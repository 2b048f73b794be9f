"""The wheel: built from a clean copy, installed where nothing of this checkout is on the path, and used there."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from support.paths import NOTEBOOKS, ROOT

USE = """
import subprocess
import sys
from pathlib import Path

import pagedlab
from pagedlab import BlockPool, blocks_for
from pagedlab_lessons.checks import check
from pagedlab_lessons import traces
from pagedlab.shipped import benchmark, data_folder, results
from pagedlab_lessons.widgets.quiz import quiz_of
from pagedlab_lessons.widgets import PRESETS, BlockPoolWidget

for path in (pagedlab.__file__, benchmark("attention"), data_folder("tiny-qwen2")):
    assert Path(path).is_relative_to(sys.prefix), path
for preset in PRESETS:
    grid = BlockPoolWidget(preset=preset)
    assert grid.state["figures"]["used"] > 0 and "render" in grid._esm and "{" in grid._css
assert BlockPoolWidget(BlockPool, num_blocks=8)._repr_mimebundle_()
assert check.table_by_hand([8, 1, 0]).status == "passed"
assert check.table_by_hand([5, 1, 0]).status == "failed"
assert blocks_for(36, 16) == 3
assert len(quiz_of("13")) == 3
assert results("h200")["attention"]["rows"]
assert len(traces.load("conversation").rows) == 2000
assert "torch" not in sys.modules
done = subprocess.run([sys.executable, benchmark("serving"), "--help"], capture_output=True, text=True)
assert "--json" in done.stdout, done.stderr
"""

HOUSES = "pagedlab", "pagedlab_fast", "pagedlab_serve"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: setuptools writes into the folder that it builds from
    source.mkdir()
    copy_source(source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


def copy_source(source):
    for name in ("pagedlab", "pagedlab_fast", "pagedlab_serve", "data", "benchmarks", "docs", "notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def python(wheel):
    """The Python of an environment with the wheel, which borrows from this one what pagedlab depends on."""
    folder = wheel.parent / "venv"
    venv.create(folder, symlinks=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip("--python", python, "install", "--no-deps", wheel)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Paths in a .pth are searched, but the .pth files there are not read: the editable pagedlab stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def run(python, *arguments, status=""):
    """Run a program of the environment, with no model in its reach but the shipped one.

    Nothing may come on stderr but the status, a regular expression.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PAGEDLAB_")}
    env["HF_HOME"] = str(python.parent / "no-models")
    run = subprocess.run([python, *arguments], cwd=python.parent, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(status, run.stderr), run.stderr
    return run.stdout


def test_carries_every_file_of_the_package_and_its_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    source = {
        path.relative_to(ROOT if house in HOUSES else ROOT / "notebooks").as_posix()
        for house in (*HOUSES, "notebooks/pagedlab_lessons")
        for path in (ROOT / house).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert source <= carried
    rest = {name for name in carried - source if ".dist-info/" not in name}
    assert all(name.startswith("pagedlab/data/") for name in rest)
    notebooks = {path.name for path in NOTEBOOKS}
    assert notebooks == {Path(name).name for name in rest if name.endswith(".ipynb")}
    assert "pagedlab/data/docs/glossary.md" in rest
    assert any(name.endswith("LICENSE") for name in carried)


def test_widgets_checks_traces_and_results_work_from_the_wheel(python):
    run(python, "-I", "-c", USE)


def test_the_command_pagedlab_comes_with_the_wheel_and_writes_its_status_alone_to_stderr(python):
    """With the versions of this environment: those that CI's job "newest" has are the newest allowed ones."""
    status = r"loading .*\nmodel: tiny-qwen2 .*\nattention: .*\n\n3 tokens in .*\n"
    printed = run(python.with_name("pagedlab"), "generate", "hi", "--max-tokens", "3", status=status)
    assert re.fullmatch(r"\s?[^\n]+\n", printed), "the text alone, because stdout is no terminal"


REPOSITORY_FILE = re.compile(
    r"\b(?:docs|benchmarks|data|tests)/\w|\b[A-Z]+\.(?:md|cff)\b|\bmake \w+\b|\bclone\b|\.venv"
)
RELATIVE = re.compile(r"\]\((?!https?:|#)")


def test_its_description_is_for_somebody_without_a_clone(metadata):
    assert set(metadata.get_all("Provides-Extra", [])) == {"notebooks", "server", "gguf"}
    description = str(metadata.get_payload())
    assert 'pip install "pagedlab[notebooks]"' in description
    assert REPOSITORY_FILE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert REPOSITORY_FILE.findall(description) + RELATIVE.findall(description) == []
    for left_out in ("(weights of 4 bits) on a CPU", "Each square is a block of 16 tokens"):
        assert left_out not in description, "the caption of a picture"


PREPARE = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"


def test_all_addresses_follow_from_that_of_the_source(tmp_path):
    copy_source(tmp_path)
    address = "https://example.org/someone/pagedlab"
    project = (tmp_path / "pyproject.toml").read_text()
    project = re.sub(r'\n(# )?\[project\.urls\]\n(# )?Source = ".*"\n', "\n", project)
    (tmp_path / "pyproject.toml").write_text(f'{project}\n[project.urls]\nSource = "{address}"\n')
    subprocess.run([sys.executable, "-c", PREPARE], cwd=tmp_path, capture_output=True, check=True)
    (file,) = tmp_path.glob("*.dist-info/METADATA")
    metadata = message_from_bytes(file.read_bytes())
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert urls["Source"] == address
    assert all(url.startswith(address) for url in urls.values())
    targets = re.findall(rf"{address}/(?:blob|raw)/main/([^)#\s]+)", str(metadata.get_payload()))
    assert "notebooks/00_start_here.ipynb" in targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
