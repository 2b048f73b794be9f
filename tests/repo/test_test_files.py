"""docs/quality.md says which test files test a feature."""

import re

from support.paths import ROOT

TESTS = ROOT / "tests"


def listed():
    """The files and folders in the second column of the table in docs/quality.md."""
    text = (TESTS.parent / "docs" / "quality.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Where a feature is tested")
    table = section.partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    return [TESTS.parent / path for row in rows for path in re.findall(r"`(.*?)`", row)]


def test_the_map_names_every_test_file_and_no_other_place():
    places = listed()
    assert len(places) > 20
    for place in places:
        assert place.exists(), f"docs/quality.md: there is no {place.relative_to(TESTS.parent)}"
    for file in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("*.test.js")]):
        is_named = any(place in places for place in (file, *file.parents))
        assert is_named, f"name {file.relative_to(TESTS.parent)} in docs/quality.md, 'Where a feature is tested'"
