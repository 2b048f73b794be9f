"""docs/teaching.md names sections that the notebooks have."""

import re

import nbformat
import pytest

from support.paths import NOTEBOOKS, ROOT

PAGE = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\b\d\d\b")  # of a notebook; minutes are written alike, and are no notebook's number or too large
NAMED = re.compile(r"(?<!\*)\*([^*\n]+)\*(?!\*)")  # *a section*
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def headings(path):
    cells = nbformat.read(path, 4).cells
    return [name for cell in cells if cell.cell_type == "markdown" for name in HEADING.findall(cell.source)]


SECTIONS = {path.name[:2]: headings(path) for path in NOTEBOOKS}
# Of each line that names notebooks, the sections that it names.
NAMES = [
    (name, [number for number in NUMBER.findall(line) if number in SECTIONS])
    for line in PAGE.splitlines()
    for name in NAMED.findall(line)
    if any(number in SECTIONS for number in NUMBER.findall(line))
]


@pytest.mark.parametrize(("name", "numbers"), NAMES)
def test_a_section_that_is_named_is_there(name, numbers):
    """By its whole name, or by what comes before its comma or colon."""
    sections = [section for number in numbers for section in SECTIONS[number]]
    assert name in {part for section in sections for part in (section, re.split("[,:]", section)[0])}
