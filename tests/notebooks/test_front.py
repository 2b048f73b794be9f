"""The site's first page: it plays at once, asks nothing of another server, and Python waits to be asked for."""

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest

import build_front
from pagedlab.recipes.trace import Replay
from support.pages import in_browser, open_page
from support.paths import ROOT
from support.site import serving


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("front")
    (console := folder / "lite" / "repl").mkdir(parents=True)
    (console / "index.html").write_text("<p>the console</p>", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_front, "OUTPUT", folder / "lite")
        build_front.build(folder)
    return folder


def test_the_page_is_small(page_folder):
    files = [file for file in page_folder.rglob("*") if file.is_file() and file.suffix not in (".webp", ".png")]
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.fixture(scope="module")
def address(page_folder):
    with serving(page_folder) as url:
        yield url


@in_browser
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (360, "dark")])
def test_the_page_plays_and_can_be_stepped(address, width, theme):
    height = 760 if width == 1440 else 400  # the squares are below a low window
    with open_page(viewport={"width": width, "height": height}, color_scheme=theme) as page:

        def wait_for(condition):
            page.wait_for_function(f"() => Number(document.querySelector('.ps-root')?.dataset.at) {condition}")

        page.goto(address)
        squares = page.locator("#film .pl-blocks")
        squares.wait_for()
        if width == 360:
            page.wait_for_timeout(1000)
            assert page.locator(".ps-root").get_attribute("data-at") == "1", "it waits until it is on the screen"
            squares.scroll_into_view_if_needed()
        wait_for("> 3")
        assert page.locator(".ps-held").first.inner_text().strip()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        heights = set()
        for step in [*range(25), 0]:
            page.locator(".pl-scrubber").fill(str(step))
            wait_for(f"=== {step}")
            heights.add(page.locator("#film").evaluate("stage => stage.offsetHeight"))
        assert len(heights) == 1, "no step moves what is below"
        page.locator('[data-op="on"]').press("Enter")
        wait_for("=== 1")
        assert page.inner_text("#film .pl-spoken").startswith("Step 1 of 24. Chat 1 and chat 2 start.")
        assert page.text_content("#heard") == "", "a film that stands still says nothing of its own"
        assert page.locator("#film .pl-id").first.is_visible(), "squares have their numbers, on a phone too"
        assert page.locator("#map article").count() == len(build_front.THUMBNAILS)
    assert all(url.startswith((address, "data:")) for url in page.asked)


@in_browser
def test_without_javascript_the_picture_moves_and_no_control_is_dead(address):
    with open_page(java_script_enabled=False) as page:
        page.goto(address)
        assert page.locator("#film img").is_visible()
        assert page.locator("#start").is_visible()
        assert page.locator("button:visible, input:visible, progress:visible").count() == 0
    assert not any("/lite/" in asked for asked in page.asked), "Python is asked for by a script alone"


@in_browser
def test_python_is_asked_for_only_when_a_visitor_opens_it(address):
    with open_page() as page:
        page.goto(address)
        page.locator("#film .pl-blocks").wait_for()
        assert not any("/lite/" in asked for asked in page.asked)
        page.locator("#try summary").click()
        page.frame_locator("#try iframe").get_by_text("the console").wait_for()
        (asked,) = [unquote(asked) for asked in page.asked if "/lite/" in asked]
        assert asked.endswith(build_front.FORK)


def test_the_console_s_code_forks_a_story():
    """What it does once pagedlab is installed there."""
    names: dict[str, Any] = {}
    exec(build_front.FORK.removeprefix(build_front.INSTALL), names)
    widget = names["widget"]
    widget.do("append", "s1", 1)
    assert [widget.tables[name].block_ids for name in ("s0", "s1")] == [[0, 1, 2], [0, 1, 3]]


@pytest.fixture(scope="module")
def original():
    return json.loads((ROOT / "data" / "recordings" / "three_answers.json").read_text(encoding="utf-8"))


def test_the_film_ends_full_with_plain_names_and_whole_sentences(original):
    film = build_front.for_visitors(original)["recorded"]
    last, before = (Replay(each).seek(len(film["steps"]) - 1) for each in (film, original))
    assert all(last.counts)
    assert list(last.sequences) == ["chat 1", "chat 2", "chat 3"]
    for shown, recorded in zip(last.sequences.values(), before.sequences.values(), strict=True):
        assert (shown.blocks, len(shown.words)) == (recorded.blocks, len(recorded.words)), "each piece keeps its slot"
        assert re.fullmatch(r"(?s)(?!.*(system|assistant)).*\.", "".join(shown.words))
