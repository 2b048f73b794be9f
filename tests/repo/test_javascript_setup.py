"""The scripts' tools: pinned, from whatever registry npm is set to, and a plain line where there is none."""

import json
import re
import subprocess
from pathlib import Path

import pytest

import javascript
from support.paths import ROOT

UNREACHABLE = """npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:9/ws failed, reason: connect ECONNREFUSED
npm error     at ClientRequest.<anonymous> (index.js:130:14)
npm error A complete log of this run can be found in: debug-0.log
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What npm was asked; it makes an empty node_modules/."""
    calls = []

    def npm(*arguments, quiet=False):
        calls.append(arguments)
        (tmp_path / "node_modules").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(arguments, 0, "", "")

    (tmp_path / "package-lock.json").write_text("{}")
    monkeypatch.setattr(javascript, "ROOT", tmp_path)
    monkeypatch.setattr(javascript, "PACKAGES", tmp_path / "node_modules")
    monkeypatch.setattr(javascript, "STAMP", tmp_path / "node_modules" / "stamp")
    monkeypatch.setattr(javascript, "npm", npm)
    return calls


def test_packages_are_installed_once_and_again_when_the_lock_changes(asked, tmp_path):
    javascript.install()
    javascript.install()
    assert [command for command, *_ in asked] == ["ci"]
    (tmp_path / "package-lock.json").write_text('{"lockfileVersion": 3}')
    javascript.install()
    assert [command for command, *_ in asked] == ["ci", "ci"]


def test_without_a_registry_one_line_says_so(asked, monkeypatch):
    failed = subprocess.CompletedProcess((), 1, "", UNREACHABLE)
    monkeypatch.setattr(javascript, "npm", lambda *arguments, quiet: failed)
    with pytest.raises(SystemExit) as exit:
        javascript.install()
    expected = (
        "npm could not install node_modules: FetchError: request to http://127.0.0.1:9/ws failed, reason: connect "
    )
    assert exit.value.code == expected + "ECONNREFUSED; mend that, then run this again"
    assert not javascript.STAMP.exists(), "the next run must start over"


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
