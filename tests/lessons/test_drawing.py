"""Blocks, words in slots and rows of tokens, as every picture draws them; and the palette."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pagedlab_lessons
import pytest
from pagedlab_lessons.colors import HATCH_LINES, HATCHES, MEMORY_LOOKS, SEQUENCE_COLORS, Look, look_of
from pagedlab_lessons.drawing import (
    Block,
    Grid,
    Owner,
    Run,
    Strip,
    Table,
    Word,
    blocks_of,
    described,
    linked,
    pool,
    rows,
    slots,
    svg,
)
from pagedlab_lessons.drawing.flow import Beside, Drawn, Text, page

PACKAGE = Path(pagedlab_lessons.__file__).parent


def said(parts):
    """What its parts say when they are pointed at; the picture is XML."""
    picture = svg(600, 100, parts)
    return [part.get("data-say", "") for part in ElementTree.fromstring(picture).iter("g") if "data-say" in part.keys()]  # noqa: S314, SIM118


def two_tables():
    words = list("abcdef")
    return [Table("r0", [2, 0], 6, look_of(0), words), Table("r1", [2, 3], 5, look_of(1), words)]


def test_a_block_says_who_has_it_and_what_it_holds_and_a_pool_draws_every_one_once():
    blocks = blocks_of(two_tables(), 5, 4, cached={1})
    assert [described(block) for block in blocks] == [
        "block 0, r0: e f",
        "block 1: free; its contents stay cached",
        "block 2, shared: first r0, then r1: a b c d",
        "block 3, r1: e",
        "block 4: free",
    ]
    assert [block.count for block in blocks] == [1, 0, 2, 1, 0]
    assert [owner.filled for block in blocks for owner in block.owners] == [0.5, 1, 1, 0.25]
    parts = pool(blocks, Grid(0, 0, 5, 42, 42))
    assert said(parts) == [described(block) for block in blocks]
    shared = next(part for part in parts if 'aria-label="block 2,' in part)
    assert SEQUENCE_COLORS[0] in shared
    assert f"url(#look-1s-{SEQUENCE_COLORS[1][1:]})" in shared
    assert ">2</text>" in shared


def test_counts_may_differ_from_what_the_tables_say():
    lost, free = blocks_of([], 2, 4, counts=[2, 0])
    assert described(lost) == "block 0: 2 references, and no table lists it"
    assert (lost.is_used, free.is_used) == (True, False)
    assert blocks_of([Table("s0", [None, 1], 8, look_of(0))], 2, 4)[1].count == 1


def test_slots_are_seen_where_their_number_is_given():
    words = (Word("the"), Word("cat", "drafted", number=5, links=("t5",), say="position 5"))
    block = Block(7, (Owner("r0", look_of(0)),), words=words)
    assert said(slots([block], Grid(0, 0, 1, 300, 40), 4)) == ["position 5"], "a word that speaks, speaks for its block"
    assert said(slots([block], Grid(0, 0, 1, 300, 26))) == ["block 7, r0: the cat"]


def test_items_flow_down_and_columns_are_below_one_another_on_a_narrow_page():
    spaces = []

    def item(space):
        spaces.append(space)
        return Drawn([], space.y + 50)

    drawing = page("Seen", Text("word " * 60), Beside([[item], [item, item]]))
    left, right, below, *narrow = spaces
    assert (left.y, left.x + left.width) < (right.y + 1, right.x)
    assert below.y - right.y == 50
    assert [space.y - narrow[0].y for space in narrow] == [0, 50, 100]
    assert float(re.search(r'viewBox="-2 0 304 (\d+)"', drawing.narrow)[1]) == round(narrow[-1].y + 50)
    assert drawing.narrow.count("<text") > drawing.count("<text"), "the text has more lines"


def test_a_row_goes_on_in_the_next_line():
    drawn = rows([Run(6, 21, MEMORY_LOOKS["used"])], Strip(10, 0, unit=10, height=20, row=8, pitch=30))
    boxes = [re.search(r'x="(\S+)" y="(\S+)" width="(\S+)"', part).groups() for part in drawn]
    assert boxes == [("70", "0", "20"), ("10", "30", "80"), ("10", "60", "50")]


@pytest.mark.parametrize("is_pale", [False, True])
def test_a_drawing_has_the_patterns_that_it_uses_and_no_others(is_pale):
    looks = [Look(SEQUENCE_COLORS[0], hatch, is_pale) for hatch in HATCHES]
    drawn = svg(100, 10, rows([Run(i, i + 1, look) for i, look in enumerate(looks)], Strip(0, 0, 10, 10)))
    used = re.findall(r"url\(#([\w-]+)\)", drawn)
    assert len(used) == len(HATCHES) - 1
    assert used == re.findall(r'<pattern id="([\w-]+)"', drawn)
    assert set(HATCH_LINES) == set(HATCHES) - {""}


def test_a_part_that_can_be_pointed_at_has_a_role_and_a_name():
    assert linked(["b1"], "block <1>").startswith('<g role="img" aria-label="block &lt;1&gt;"')
    button = linked(["b1"], "two words", "<text>7</text>", "<text>old</text>", goes="step=2")
    assert button.startswith('<g role="button" data-set="step=2" aria-label="7 old. two words"'), (
        "speech control asks for the words that are seen"
    )
    assert 'aria-label="Two &lt;pools&gt;"' in svg(10, 10, ["<text>first</text>"], "Two <pools>")


def test_no_other_file_of_lessons_and_widgets_repeats_the_palette():
    repeated = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.*")
        if path.suffix in {".py", ".js", ".css"}
        and any(color.lower() in path.read_text().lower() for color in SEQUENCE_COLORS)
    }
    # looks.js is compared in test_javascript; a style sheet cannot import
    assert repeated == {"colors.py", "widgets/looks.js", "widgets/quiz.css"}


def test_the_style_sheet_of_the_grid_has_a_pattern_for_each_hatch():
    css = (PACKAGE / "widgets" / "block_grid.css").read_text()
    assert [int(number) for number in re.findall(r"^\.pl-p(\d) ", css, re.MULTILINE)] == list(range(1, len(HATCHES)))
