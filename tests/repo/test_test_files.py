"""Test files share helpers through tests/support alone, and docs/quality.md says which of them test a feature."""

import ast
import re

from support.paths import ROOT

TESTS = ROOT / "tests"


def imported(file):
    """The modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_no_file_imports_a_test_file_or_conftest():
    for file in sorted(TESTS.rglob("*.py")):
        wrong = [name for name in imported(file) if name.rpartition(".")[2].startswith(("test_", "conftest"))]
        assert not wrong, f"move what {file.name} takes from {wrong} to tests/support"


def listed():
    """The files and folders in the second column of the table in docs/quality.md."""
    text = (TESTS.parent / "docs" / "quality.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Where a feature is tested")
    table = section.partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    return [TESTS.parent / path for row in rows for path in re.findall(r"`(.*?)`", row)]


def test_every_place_in_the_map_exists():
    places = listed()
    assert len(places) > 20
    for place in places:
        assert place.exists(), f"docs/quality.md: there is no {place.relative_to(TESTS.parent)}"


def test_the_map_names_every_test_file():
    places = listed()
    for file in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("*.test.js")]):
        is_named = any(place in places for place in (file, *file.parents))
        assert is_named, f"name {file.relative_to(TESTS.parent)} in docs/quality.md, 'Where a feature is tested'"
