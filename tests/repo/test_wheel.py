"""The wheel: built from a clean copy, installed where nothing of this checkout is on the path, and used there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USE = """
import sys
from pathlib import Path

import pagedlab
from pagedlab import BlockPool, blocks_for
from pagedlab.checks import check
from pagedlab.widgets.quiz import quiz_of
from pagedlab.widgets import PRESETS, BlockPoolWidget

assert Path(pagedlab.__file__).is_relative_to(sys.prefix), pagedlab.__file__
for preset in PRESETS:
    grid = BlockPoolWidget(preset=preset)
    assert grid.state["used"] > 0 and "render" in grid._esm and "{" in grid._css
assert BlockPoolWidget(BlockPool(8, 4))._repr_mimebundle_()
assert check.block_of(4).status == "passed"
assert check.block_of(3).status == "failed"
assert blocks_for(36, 16) == 3
assert len(quiz_of("13")) == 3
assert "torch" not in sys.modules
"""
USE_DATA = """
import subprocess
import sys
from pathlib import Path

from pagedlab import LLM, SamplingParams
from pagedlab.lessons import traces
from pagedlab.model import TINY_MODEL
from pagedlab.shipped import benchmark, results

assert results("h200")["attention"]["rows"] and results("mutants")["bugs"]
for name in ("attention", "serving"):
    assert Path(benchmark(name)).is_relative_to(sys.prefix)
    done = subprocess.run([sys.executable, benchmark(name), "--help"], capture_output=True, text=True)
    assert "--json" in done.stdout, done.stderr
assert Path(TINY_MODEL).is_relative_to(sys.prefix), TINY_MODEL
assert len(traces.load("conversation")) == len(traces.load("code")) == 2000
llm = LLM(TINY_MODEL, device="cpu", num_blocks=16, verbose=False)
(answer,) = llm.generate(["Once upon a time"], SamplingParams(max_tokens=4, ignore_eos=True))
assert len(answer.outputs[0].token_ids) == 4
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: setuptools writes into the folder that it builds from
    source.mkdir()
    for name in ("pagedlab", "data", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The Python of an environment with the wheel, which borrows from this one what pagedlab depends on."""
    folder = wheel.parent / "venv"
    venv.create(folder, symlinks=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip("--python", python, "install", "--no-deps", wheel)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Paths in a .pth are searched, but the .pth files there are not read: the editable pagedlab stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def run(python: Path, *arguments: str) -> str:
    """Run Python without a model in its reach but the shipped one; what it prints. Nothing may come on stderr."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PAGEDLAB_")}
    env["HF_HOME"] = str(python.parent / "no-models")
    run = subprocess.run([python, *arguments], cwd=python.parent, env=env, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    return run.stdout


def use(python: Path, code: str) -> None:
    run(python, "-I", "-c", code)


def test_carries_every_file_of_the_package_and_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pagedlab").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert source <= carried
    rest = {name for name in carried - source if ".dist-info/" not in name}
    assert rest
    assert all(name.startswith("pagedlab/data/") for name in rest)
    assert any(name.endswith("LICENSE") for name in carried)
    rest = {name for name in rest if not name.startswith("pagedlab/data/benchmarks/")}
    assert not any(name.endswith((".py", ".txt")) for name in rest)  # the training script and its texts stay behind


def test_widgets_presets_and_checks_work_from_the_wheel(python: Path) -> None:
    use(python, USE)


def test_the_tiny_model_traces_and_results_come_with_the_wheel(python: Path) -> None:
    use(python, USE_DATA)


def test_the_command_line_writes_nothing_to_stderr(python: Path) -> None:
    """With the versions of this environment: those that CI's job "newest" has are the newest allowed ones."""
    printed = run(python, "-I", "-m", "pagedlab", "hi")
    assert "> hi" in printed
    assert "model: tiny-qwen2" in printed
