"""The set-up before there is anything to set up with: each thing that can be missing ends in a sentence."""

import ast
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from packaging.utils import canonicalize_name

from support.packages import installed_by
from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def setup_env(tmp_path, monkeypatch):
    """tools/environment.py with an environment of its own to make, no GPU, and no real pip."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path / ".venv"
    for name, value in (("VENV", folder), ("STAMP", folder / "stamp"), ("PYTHON", folder / "bin" / "python")):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "answers", lambda *command: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(venv, "create", lambda path, **options: Path(path).mkdir(exist_ok=True))

    def start(*options):
        monkeypatch.setattr(sys, "argv", ["setup_env.py", *options])
        module.main()

    module.start = start
    return module


def pip_answers(monkeypatch, code, uv_code=0, said=()):
    """Let pip and uv end with these codes, and pip say these lines; the list fills with what they were asked."""
    asked = []

    def run(command, **options):
        asked.append(list(command))
        return subprocess.CompletedProcess(command, uv_code if command[0] == "/bin/uv" else code)

    @contextmanager
    def started(command, **options):
        done = run(command)
        yield SimpleNamespace(stdout=iter(said), returncode=done.returncode)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(subprocess, "Popen", started)
    return asked


def message(setup_env, *options):
    with pytest.raises(SystemExit) as exit:
        setup_env.start(*options)
    assert isinstance(exit.value.code, str), "a message, and status 1"
    assert "\n" not in exit.value.code
    assert not setup_env.STAMP.exists(), "the next run must start over"
    return exit.value.code


ENTRY = ROOT / "tools" / "setup_env.py"
TOO_OLD = "pagedlab needs Python 3.10 or newer, and this is {}: make PYTHON=python3.12, or"
TOO_OLD += " python3.12 tools/setup_env.py"
EVERYTHING = 4  # calls of pip: torch, the project, a pip that knows dependency groups, the groups
OLD_PYTHONS = ("2.7", "3.6", "3.9")
# The syntax that Python 2.7 shares with every later one, as far as the entry needs it.
OLD_SYNTAX = {"Module", "Expr", "Constant", "Import", "ImportFrom", "alias", "If", "Compare", "Lt", "Eq", "Attribute"}
OLD_SYNTAX |= {"Name", "Load", "Store", "Tuple", "Call", "Assign", "BinOp", "Add", "Subscript"}


def test_python_is_too_old(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    monkeypatch.setattr(sys, "version", "3.9.18 (main)")
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(ENTRY), run_name="__main__")
    assert exit.value.code == TOO_OLD.format("3.9.18")


def test_the_entry_can_be_read_by_any_python():
    """Its tree has nodes of old syntax only, and its bytes need no declaration of their encoding."""
    source = ENTRY.read_bytes().decode("ascii")
    tree = ast.parse(source, feature_version=(3, 4))
    assert {type(node).__name__ for node in ast.walk(tree)} <= OLD_SYNTAX
    kinds = [type(node).__name__ for node in tree.body]
    assert kinds == ["Expr", "Import", "If", "ImportFrom", "If"], "the version is checked before the rest is imported"


@pytest.mark.parametrize("version", OLD_PYTHONS)
def test_an_old_python_says_which_is_needed(version):
    """Where such a Python is installed."""
    name = f"python{version}"
    asked = [name, "-c", "import sys; print(sys.version.split()[0])"]
    if not shutil.which(name) or (told := subprocess.run(asked, capture_output=True, text=True)).returncode:
        pytest.skip(f"{name} is not installed")
    run = subprocess.run([name, ENTRY], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", TOO_OLD.format(told.stdout.strip()) + "\n")


def test_the_path_cannot_hold_an_environment(setup_env, tmp_path, monkeypatch):
    (folder := tmp_path / f"a{os.pathsep}b").mkdir()
    monkeypatch.setattr(setup_env, "VENV", folder / ".venv")
    monkeypatch.setattr(setup_env, "STAMP", folder / ".venv" / "stamp")
    asked = pip_answers(monkeypatch, 0)
    said = message(setup_env)
    assert str(folder) in said
    assert f"has a {os.pathsep!r} in its path" in said
    assert "move or rename the folder" in said
    assert not asked
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_of_pips_output_large_files_are_shown_and_everything_if_it_fails(setup_env, monkeypatch, capsys, code):
    large = "Downloading torch-2.13.0-cp311-linux_x86_64.whl (190.6 MB)\n"
    small = "Downloading idna-3.11-py3-none-any.whl (71 kB)\n"
    pip_answers(monkeypatch, code, said=(small, large))
    if code:
        message(setup_env)
    else:
        setup_env.start()
    output = capsys.readouterr().out
    assert large in output
    assert (small in output) == bool(code)


def test_a_stamp_that_is_no_text_counts_as_out_of_date(setup_env, monkeypatch):
    asked = pip_answers(monkeypatch, 0)
    setup_env.VENV.mkdir()
    setup_env.STAMP.write_bytes(b"\xff\xfe\x00 \x80")
    setup_env.start()
    assert len(asked) == EVERYTHING
    setup_env.start()
    assert len(asked) == EVERYTHING


def test_a_reader_gets_less_than_the_tests_need(setup_env, monkeypatch):
    asked = pip_answers(monkeypatch, 0)
    setup_env.start("--reader")
    assert asked[-1][-1].endswith("[notebooks,gguf]")
    setup_env.start("--reader")
    assert len(asked) == 2, "nothing is left to install"
    setup_env.start("--site")
    assert asked[-2][-1] == "pip>=25.1", "the pip of Python 3.10 knows no dependency groups"
    assert asked[-1][-2:] == ["--group", f"{ROOT / 'pyproject.toml'}:site"]
    setup_env.start()
    assert asked[-1][-2:] == ["--group", f"{ROOT / 'pyproject.toml'}:tests"]
    done = len(asked)
    for option in ("--reader", "--site"):
        setup_env.start(option)
    assert len(asked) == done, "what the tests need holds what a reader needs"


def test_an_unknown_option(setup_env, capsys):
    with pytest.raises(SystemExit):
        setup_env.start("--everything")
    assert "unrecognized arguments: --everything" in capsys.readouterr().err
    assert not setup_env.STAMP.exists()


def with_uv(setup_env, monkeypatch, code):
    """Run the set-up where there is a uv that ends with this code, and pip ends well; what was asked of both."""
    asked = pip_answers(monkeypatch, 0, uv_code=code)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    setup_env.start("--reader")
    return asked


def test_uv_installs_if_it_is_there(setup_env, monkeypatch):
    asked = with_uv(setup_env, monkeypatch, 0)
    assert [command[:5] for command in asked] == [["/bin/uv", "pip", "install", "--python", str(setup_env.PYTHON)]] * 2


def test_pip_installs_where_uv_cannot(setup_env, monkeypatch):
    asked = with_uv(setup_env, monkeypatch, 2)
    programs = [Path(command[0]).name for command in asked]
    assert programs == ["uv", "python", "uv", "python"]
    assert asked[0][-1] == asked[1][-1]


def test_a_torch_of_the_machine_is_not_installed_a_second_time(setup_env, monkeypatch):
    """uv does not see the packages that an environment borrows."""
    monkeypatch.setattr(setup_env, "answers", lambda *command: True)
    asked = with_uv(setup_env, monkeypatch, 0)
    assert [Path(command[0]).name for command in asked] == ["python"]


NO_SPACE = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NO_SPACE, "could not write .venv.*No space left on device"),
        (subprocess.CalledProcessError(1, "ensurepip"), "apt install python3-venv"),
    ],
)
def test_an_environment_that_cannot_be_made(setup_env, monkeypatch, error, said):
    monkeypatch.setattr(venv, "create", Mock(side_effect=error))
    assert re.search(said, message(setup_env))


def test_the_disk_is_full_when_the_stamp_is_written(setup_env, monkeypatch):
    pip_answers(monkeypatch, 0)
    write_text = Path.write_text

    def full(path, text):
        if path == setup_env.STAMP:
            raise NO_SPACE
        return write_text(path, text)

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in message(setup_env)


def test_pip_fails(setup_env, monkeypatch):
    pip_answers(monkeypatch, 1)
    assert "pip could not install torch==" in message(setup_env)


@pytest.mark.parametrize("newest", [False, True], ids=["pinned", "newest"])
def test_a_second_run_does_nothing(setup_env, monkeypatch, newest):
    monkeypatch.setattr(setup_env, "NEWEST", newest)
    asked = pip_answers(monkeypatch, 0)
    setup_env.start()
    torch, project, *_ = asked
    assert torch[-1] == "torch" if newest else torch[-1].startswith("torch==")
    assert project[-1].endswith("[notebooks,gguf]")
    pins = (setup_env.VENV / "constraints.txt").read_text()
    assert ("torch==" in pins) is not newest
    assert ("==" in pins) is not newest
    setup_env.start()
    assert len(asked) == EVERYTHING
    monkeypatch.setattr(setup_env, "NEWEST", not newest)
    setup_env.start()
    assert len(asked) == 2 * EVERYTHING, "another recipe, another environment"


def test_other_requirements_are_installed_into_the_same_environment(setup_env, monkeypatch, tmp_path):
    asked, made = pip_answers(monkeypatch, 0), []
    monkeypatch.setattr(venv, "create", lambda path, **options: (made.append(path), Path(path).mkdir(exist_ok=True)))
    setup_env.start()
    base = setup_env.STAMP.read_text().split()[0]
    setup_env.STAMP.write_text(f"{base} another")  # as if pyproject.toml had been changed since
    setup_env.start()
    assert (len(asked), len(made)) == (2 * EVERYTHING, 1)


# What the site needs ----------------------------------------------------------------------------------------------


def imported_modules(path):
    """The first part of each module's name that a file imports at its top: before it does anything."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found}


def modules_of_the_site():
    """Third-party modules that `make site` imports: docs/conf.py, its tools, and the tools that these import."""
    files = [ROOT / "docs" / "conf.py", ROOT / "tools" / "build_lite.py", ROOT / "tools" / "build_front.py"]
    modules = set()
    for file in files:  # it grows
        for name in imported_modules(file):
            own = [ROOT / folder / f"{name}.py" for folder in ("tools", "docs", "docs/front")]
            tool = next((path for path in own if path.exists()), None)
            if tool is None:
                modules.add(name)
            elif tool not in files:
                files.append(tool)
    return modules - set(sys.stdlib_module_names) - {"pagedlab", "pagedlab_lessons"}


def test_make_site_installs_what_its_tools_import(setup_env):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [project["dependency-groups"][group] for group in setup_env.GROUPS["--site"]]
    extras = [project["project"]["optional-dependencies"][extra] for extra in setup_env.EXTRAS.split(",")]
    asked = [text for texts in (project["project"]["dependencies"], *groups, *extras) for text in texts]
    installed = installed_by([text for text in asked if not text.startswith("pagedlab")])
    packages = packages_distributions()
    modules = modules_of_the_site()
    assert {"sphinx", "nbformat", "nbstripout"} <= modules
    lacking = [name for name in modules if not installed & {canonicalize_name(each) for each in packages[name]}]
    assert not lacking


# What the environment has -----------------------------------------------------------------------------------------


def test_pip_shows_its_progress_and_the_environment_suits_node_and_the_folder_above(setup_env, monkeypatch):
    """The repository's package.json says "type": "module", and JupyterLab's yarn.js is none.

    From the folder above, Python takes a clone named pagedlab for a namespace package, unless the path has it.
    """
    asked = pip_answers(monkeypatch, 0)
    setup_env.start()
    assert not any("--quiet" in command or "-q" in command for command in asked)
    assert json.loads((setup_env.VENV / "package.json").read_text()) == {}
    project = next(command for command in asked if "--editable" in command)
    assert project[project.index("--config-settings") + 1] == "editable_mode=compat"
