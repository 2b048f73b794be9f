"""A notebook's opening on a page of the site, in a real browser: it plays without a kernel."""

import json
import shutil

import pytest
from pagedlab_lessons.widgets import Stage, explore

from pagedlab.shipped import data_folder
from site_openings import file_of, openings_of, with_places, write
from support.pages import in_browser, open_chromium
from support.paths import NOTEBOOKS, ROOT
from support.site import serving

pytestmark = in_browser
PHONE = {"width": 390, "height": 844}

# Notebooks whose opening has a variant for a narrow page.
NARROW = ["01", "02", "03", "04", "05", "07", "08", "09", "10", "11", "12"]
CHARTS = ("06", "14")  # of matplotlib, side by side where there is room


def draw(step, text):
    return f'<svg viewBox="0 0 90 20"><text y="9" data-link="a" data-say="step {step}">{text} {step}</text></svg>'


@pytest.fixture(scope="module")
def chromium_and_url(tmp_path_factory):
    """A browser, and the address of a page with two openings, each after its picture."""
    site = tmp_path_factory.mktemp("site")
    stage = Stage(data_folder("recordings") / "three_answers.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDLAB_OPENINGS", "1")
        shown = [explore(draw, "Point.", step=(range(6), 4), text="step"), stage]
        outputs = [{"output_type": "display_data", "data": one._repr_mimebundle_()[0]} for one in shown]
    notebook = site / "demo.ipynb"
    notebook.write_text(json.dumps({"cells": [{"outputs": outputs}]}))
    write(site / "_static", [notebook])
    shutil.copy2(ROOT / "docs" / "static" / "openings.js", site / "_static")
    parts = []
    for output in with_places(outputs):
        content = output["data"]["text/html"]
        parts.append(f'<div class="output">{content}</div>')
    script = '<script type="module" src="../_static/openings.js"></script>'
    (site / "notebooks").mkdir()
    (site / "notebooks" / "demo.html").write_text("".join(parts) + script)
    with serving(site) as url, open_chromium() as chromium:
        yield chromium, f"{url}notebooks/demo.html"


@pytest.fixture
def page(chromium_and_url):
    chromium, url = chromium_and_url
    page = chromium.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    page.locator(".ps-root").wait_for()
    yield page
    assert problems == []


@pytest.fixture
def phone(chromium_and_url):
    """The page on a phone whose owner wants no motion."""
    chromium, url = chromium_and_url
    phone = chromium.new_page(viewport=PHONE, has_touch=True, is_mobile=True, reduced_motion="reduce")
    phone.goto(url)
    yield phone
    phone.close()


def test_openings_take_the_place_of_pictures_and_play(page):
    assert page.locator("img").count() == 0
    text, slider = page.locator(".px-picture text"), page.locator(".px-root input[type=range]")
    assert text.text_content() == "step 4"
    assert page.locator("input[type=text]").is_disabled()
    slider.fill("2")
    slider.press("ArrowRight")
    text.hover()
    assert page.locator(".px-say").inner_text() == "step 3"
    page.get_by_label("play").first.click()
    page.wait_for_function("document.querySelector('.px-picture text').textContent === 'step 5'")
    page.locator(".ps-root .pl-scrubber").fill("0")
    page.locator('.ps-root [data-op="play"]').click()
    page.wait_for_function("() => Number(document.querySelector('.ps-root').dataset.at) > 0")


@pytest.mark.parametrize(
    ("part", "said", "told", "beside"),
    [(".px-picture text", ".px-say", "step 4", ".px-say"), (".ps-held >> nth=0", ".pl-detail", "Block ", ".pl-prompt")],
)
def test_what_a_finger_tapped_stays_lit_until_a_tap_beside_it(phone, part, said, told, beside):
    """A browser sends the mouse's events after those of the finger."""
    phone.locator(part).scroll_into_view_if_needed()
    phone.locator(part).tap()
    phone.wait_for_timeout(300)
    assert phone.locator(said).inner_text().startswith(told)
    assert phone.locator(".pl-lit").count() > 0
    phone.locator(beside).tap()
    phone.wait_for_timeout(300)
    assert phone.locator(".pl-lit").count() == 0


# Letters that are shown, in pixels of the page.
LETTERS = """(root) => [...root.querySelectorAll('.px-picture text')].filter((text) => text.textContent.trim()).map(
    (text) => parseFloat(getComputedStyle(text).fontSize) * text.getCTM().a)"""
BEYOND = """(root) => [...root.querySelectorAll('*')].filter(
    (part) => part.getBoundingClientRect().right > root.getBoundingClientRect().right
).map((part) => part.outerHTML.slice(0, 99))"""
HEIGHT = "(root) => root.getBoundingClientRect().height"


PHONE_HEAD = """<meta name="viewport" content="width=device-width"><body style="margin: 16px">
    <script type="module" src="../_static/openings.js"></script>"""


@pytest.fixture(scope="module")
def phone_and_url(tmp_path_factory):
    """A phone, and the address of a page for each notebook in NARROW or CHARTS: its opening, as it is stored."""
    site = tmp_path_factory.mktemp("phone")
    notebooks = [path for path in NOTEBOOKS if path.name[:2] in [*NARROW, *CHARTS]]
    write(site / "_static", notebooks)
    shutil.copy2(ROOT / "docs" / "static" / "openings.js", site / "_static")
    (site / "notebooks").mkdir()
    for path in notebooks:
        place = f'<div data-opening="../_static/{file_of(openings_of(path)[0])}"></div>'
        (site / "notebooks" / f"{path.name[:2]}.html").write_text(PHONE_HEAD + place)
    with serving(site) as url, open_chromium() as chromium:
        yield chromium.new_page(is_mobile=True, has_touch=True), url


@pytest.mark.parametrize("number", NARROW)
def test_an_opening_fits_on_a_phone(phone_and_url, number):
    phone, url = phone_and_url
    phone.set_viewport_size({"width": 360, "height": 844})
    phone.goto(f"{url}notebooks/{number}.html")
    root = phone.locator(".px-root")
    root.wait_for()
    controls = root.locator("input:enabled")
    heights = set()
    for key in ("Home", *["ArrowRight"] * 5, "End", "Space"):
        if controls.count():  # 05 has only text boxes
            controls.first.press(key)
        assert root.evaluate(BEYOND) == []
        assert min(root.evaluate(LETTERS)) >= 11
        heights.add(root.evaluate(HEIGHT))
    assert len(heights) <= 2, "it keeps the room of its largest step: nothing below jumps while it plays"
    part = root.locator("[data-link]").last
    part.tap()
    assert root.locator(".px-say").inner_text() == part.get_attribute("data-say").strip()


def test_charts_scroll_on_a_phone_and_the_page_does_not(phone_and_url):
    phone, url = phone_and_url
    phone.set_viewport_size({"width": 360, "height": 844})
    phone.goto(f"{url}notebooks/14.html")
    chart = phone.locator(".px-picture > svg").first
    chart.wait_for()
    assert chart.bounding_box()["width"] == 860, "its letters can be read"
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
