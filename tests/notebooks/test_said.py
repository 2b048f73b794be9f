"""What the stored pictures say: captions, controls, alt texts, hover sentences and links, in one golden file.

A change of a drawing shows here as a change of words. Look at the difference, then accept it:
PAGEDLAB_ACCEPT=1 pytest tests/notebooks/test_said.py
"""

import html
import json
import os
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from pagedlab_lessons.widgets.opening import MEDIA_TYPE

from support.explorers import unpacked
from support.paths import NOTEBOOKS

GOLDEN = Path(__file__).with_name("said.txt")
SAYS = re.compile(r'(?:aria-label|data-say)="([^"]*)"')
LINKS = re.compile(r'data-link="([^"]*)"')


def explorers():
    """Each stored explorer: where it is, and its values."""
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                stored = output.get("data", {}).get(MEDIA_TYPE)
                if stored is not None and stored["script"] == "explore":
                    yield f"{path.name[:2]} {cell['id']}", unpacked(stored)


def said_by(values):
    """The words of one explorer, in the order in which its drawings show them first."""
    yield f"caption: {values['caption']}"
    for control in values["controls"]:
        yield f"control: {control['name']}, {len(control['options'])} positions"
    yield f"drawings: {len(values['frames'])} for {len(values['order'])} positions"
    links = Counter(link for part in values["parts"] for links in LINKS.findall(part) for link in links.split())
    yield f"links: {len(links)}, with a partner: {sum(count > 1 for count in links.values())}"
    for text in dict.fromkeys(text for part in values["parts"] for text in SAYS.findall(part)):
        yield f"- {html.unescape(text)}"


def test_pictures_say_what_the_golden_file_says():
    lines = []
    for where, values in explorers():
        lines += [f"## {where}", *said_by(values), ""]
    said = "\n".join(lines)
    if os.environ.get("PAGEDLAB_ACCEPT") == "1":
        GOLDEN.write_text(said, encoding="utf-8")
    golden = GOLDEN.read_text(encoding="utf-8")
    assert len(lines) > 1000
    assert said.splitlines() == golden.splitlines()


def drawings_of(values):
    """The drawings of an explorer, wide and narrow, without charts."""
    for runs in values["frames"]:
        slices = zip(runs[::2], runs[1::2], strict=True)
        page = "".join(part for first, count in slices for part in values["parts"][first : first + count])
        if "xmlns" not in page:  # matplotlib's
            yield from ElementTree.fromstring(f"<p>{page}</p>").iter("svg")  # noqa: S314


def test_drawings_keep_their_words_inside():
    for where, values in explorers():
        for drawing in drawings_of(values):
            left, _, width, height = map(float, drawing.get("viewBox").split())
            for text in drawing.iter("text"):
                if text.get("font-size"):
                    x, letters = float(text.get("x")), 0.602 * float(text.get("font-size")) * len(text.text or "")
                    right = x + float(text.get("textLength", letters))
                    assert left - 1 <= x <= right <= left + width + 3, f"{where}: {text.text}"
                    assert float(text.get("y")) <= height + 1, f"{where}: {text.text}"
