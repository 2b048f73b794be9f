"""The scripts' tools: pinned, from whatever registry npm is set to, and a plain line where there is none."""

import json
import re
from pathlib import Path

import pytest

import javascript
from support.paths import ROOT


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What npm was asked; it makes an empty node_modules/."""
    calls = []

    def npm(*arguments):
        calls.append(arguments)
        (tmp_path / "node_modules").mkdir(exist_ok=True)
        return 0

    (tmp_path / "package-lock.json").write_text("{}")
    monkeypatch.setattr(javascript, "LOCK", tmp_path / "package-lock.json")
    monkeypatch.setattr(javascript, "INSTALLED", tmp_path / "node_modules" / "stamp")
    monkeypatch.setattr(javascript, "npm", npm)
    return calls


def test_packages_are_installed_once_and_again_when_the_lock_changes(asked, tmp_path):
    javascript.install()
    javascript.install()
    assert [command for command, *_ in asked] == ["ci"]
    (tmp_path / "package-lock.json").write_text('{"lockfileVersion": 3}')
    javascript.install()
    assert [command for command, *_ in asked] == ["ci", "ci"]


def test_without_a_registry_one_line_follows_what_npm_says(asked, monkeypatch):
    monkeypatch.setattr(javascript, "npm", lambda *arguments: 1)
    with pytest.raises(SystemExit) as exit:
        javascript.install()
    assert exit.value.code == "npm could not install node_modules; see its message above, then run this again"
    assert not javascript.INSTALLED.exists(), "the next run must start over"


def test_tools_are_pinned_and_the_lock_names_no_registry():
    package = json.loads((ROOT / "package.json").read_text())
    lock = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    for name, version in package["devDependencies"].items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert lock[f"node_modules/{name}"]["version"] == version
    assert not [name for name, entry in lock.items() if "resolved" in entry]
    assert all(entry.get("integrity") for name, entry in lock.items() if name)


FOLDERS = ("pagedlab", "docs", "tests", "tools", "data", "notebooks", "benchmarks")
SCRIPTS = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.js"))


def test_every_script_is_linted_and_typed():
    """A script in a folder that nobody names would be neither."""
    folders = {path.parent.as_posix() for path in SCRIPTS}
    typed = json.loads((ROOT / "tsconfig.json").read_text())["include"]
    assert folders == {Path(pattern).parent.as_posix() for pattern in typed} | {"tests/js"}


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_lines_have_100_columns(script):
    """biome leaves templates and comments as they are."""
    lines = (ROOT / script).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 100]
