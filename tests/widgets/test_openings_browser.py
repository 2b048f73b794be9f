"""A notebook's opening on a page of the site, in a real browser: it plays without a kernel."""

import json
import shutil

import pytest

from pagedlab.shipped import data_folder
from pagedlab.widgets import Stage, explore
from site_openings import with_places, write
from support.pages import in_browser, open_chromium
from support.paths import ROOT
from support.site import serving

pytestmark = in_browser


def draw(step, text):
    return f'<svg viewBox="0 0 90 20"><text y="9" data-link="a" data-say="step {step}">{text} {step}</text></svg>'


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with two openings, each in the place of its picture."""
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
        page = chromium.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{url}notebooks/demo.html")
        page.locator(".ps-root").wait_for()
        yield page
        assert problems == []


def test_pictures_give_way_to_their_openings(page):
    assert page.locator("img").count() == 0
    assert page.locator(".px-picture text").text_content() == "step 4"
    assert page.locator("input[type=text]").is_disabled()


def test_an_opening_is_moved_by_slider_play_and_keys(page):
    text = page.locator(".px-picture text")
    slider = page.locator(".px-root input[type=range]")
    slider.fill("2")
    assert text.text_content() == "step 2"
    slider.press("ArrowRight")
    assert text.text_content() == "step 3"
    text.hover()
    assert page.locator(".px-say").inner_text() == "step 3"
    page.get_by_label("play").first.click()
    page.wait_for_function("document.querySelector('.px-picture text').textContent === 'step 5'")
    assert page.locator("output").first.inner_text() == "5"


def test_a_stage_plays_its_recording(page):
    stage = page.locator(".ps-root")
    before = int(stage.get_attribute("data-at"))
    page.wait_for_function("before => Number(document.querySelector('.ps-root').dataset.at) !== before", arg=before)
    assert page.locator(".ps-text").count() > 0
