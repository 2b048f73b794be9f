"""The documentation site: built from the stored outputs without a warning, and sufficient to itself."""

import html
import re
import sys
from pathlib import Path

import nbformat
import pytest

import pagedlab
from colab_cell import is_for_colab
from site_openings import openings_of
from support import warm
from support.accessibility import violations
from support.pages import in_browser, open_chromium
from support.paths import NOTEBOOKS, ROOT, each_notebook
from support.site import serving

sys.path.append(str(ROOT / "docs"))
import site_words

for needed in ("sphinx", "myst_nb", "furo", "latex2mathml"):
    pytest.importorskip(needed, reason="the site needs tools/setup_env.py --site")

pytestmark = pytest.mark.timeout(900)  # the first test builds the site, which takes long on a busy machine

# What a browser loads of itself: not links, which wait for a click.
LOADED = re.compile(r"""(?:\bsrc=|<link[^>]*\bhref=|url\(|@import\s)\s*["']?\s*(?:https?:)?//[^\s"')]+""")


BUILD = """
import runpy, sys
from sphinx.cmd.build import main
sys.modules["rfc3987_syntax"] = None  # as in conftest.py
failed = main({})
sys.argv[1:] = [{!r}]
runpy.run_path("tools/build_front.py", run_name="__main__")
sys.exit(failed)
"""


@pytest.fixture(scope="session")  # the test in a browser runs after all others
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    nothing = tmp_path_factory.mktemp("nothing")
    arguments = ["-q", "-W", "--keep-going", "-c", "docs"]
    arguments += ["-D", f"html_extra_path={nothing}"]  # without JupyterLite, which may have been built here
    arguments += ["-d", f"{folder}/trees", ".", f"{folder}/html"]
    warm.run(BUILD.format(arguments, f"{folder}/html"), ROOT)
    return folder / "html"


def text_of(site, name):
    return (site / name).read_text(encoding="utf-8")


def words_of(page):
    return html.unescape(re.sub(r"<[^>]+>", "", page))


@pytest.fixture(scope="module")
def show(site):
    """Shows a page of the site, all in one narrow window: what they share is loaded once."""
    with serving(site) as url, open_chromium() as chromium:
        page = chromium.new_page(has_touch=True)

        def show(name, motion="reduce"):
            page.set_viewport_size({"width": 360, "height": 844})
            page.emulate_media(reduced_motion=motion)
            page.goto(url + name)
            return page

        yield show


@each_notebook
def test_a_notebook_is_a_page_with_all_its_outputs_and_openings(site, path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    page = text_of(site, f"notebooks/{path.stem}.html")
    shown = [cell for cell in cells if not is_for_colab(cell)]
    assert page.count('class="cell_input') == len(shown)
    folded = [cell for cell in shown if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert page.count('<details class="admonition hide above-input">') == len(folded)
    assert "google.colab" not in page
    assert "_downloads" in page, "the notebook itself can be downloaded"
    text = words_of(page)
    assert [each for each in outputs if each.output_type == "stream" and each.text.strip() not in text] == []
    pictures = re.findall(r'<img [^>]*src="\.\./_images/[^>]*>', page)
    assert len(pictures) >= sum("image/png" in output.get("data", {}) for output in outputs)
    alts = {html.unescape(alt) for alt in re.findall(r'alt="([^"]*)"', page)}
    said = {options["alt"] for output in outputs for options in output.get("metadata", {}).values() if "alt" in options}
    assert said <= alts, "what a picture shows, in words"
    assert not any(re.search(r'alt="(\.\./_images|")', picture) for picture in pictures)
    for link in re.findall(r'<a class="[^"]*image-reference"[^>]*>', page):
        assert 'aria-label="open the picture"' in link
        assert re.search(r'aria-description="[^"]', link)
    places = re.findall(r'data-opening="([^"]+)"', page)
    assert len(places) == len(openings_of(path))
    assert all((site / "notebooks" / place).is_file() for place in places)


def test_nothing_is_loaded_from_another_server(site):
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".js")]
    found = {match for file in files for match in LOADED.findall(file.read_text(encoding="utf-8", errors="replace"))}
    assert len(files) > len(NOTEBOOKS)
    assert not found


def test_every_page_has_a_head_and_there_is_a_page_for_what_is_not_there(site):
    assert "<h1>Page not found</h1>" in text_of(site, "404.html")
    for file in site.rglob("*.html"):
        page = file.read_text(encoding="utf-8")
        assert "favicon" in page, file
        assert 'name="viewport"' in page, file
    page = text_of(site, "notebooks/01_fragmentation.html")
    assert '<meta property="og:title" content="01 · ' in page
    assert page.count('name="description"') == 1
    assert "<noscript>Without JavaScript, the drawings on this page do not play.</noscript>" in page
    assert "<mtext>head_dim</mtext>" in page, "a formula needs no script"


def test_a_published_site_leads_to_colab_and_shows_a_card(monkeypatch, tmp_path):
    import build_front
    import normalise_notebooks

    for module in (build_front, normalise_notebooks):
        monkeypatch.setattr(module, "repository", lambda: "https://github.com/you/pagedlab")
    build_front.build(tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<meta property="og:image" content="https://you.github.io/pagedlab/_static/card.png">' in page
    assert (tmp_path / "_static" / "card.png").is_file()
    assert page.count("https://colab.research.google.com/github/you/pagedlab/blob/main/notebooks/") == len(NOTEBOOKS)


@each_notebook
def test_words_for_a_page_are_for_words_of_the_notebook(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for words in site_words.WORDS.get(path.stem, {}):
        assert len(site_words.pattern_of(words).findall(text)) == 1, words


@each_notebook
def test_a_page_asks_for_nothing_that_only_jupyterlab_has(site, path):
    page = text_of(site, f"notebooks/{path.stem}.html")
    text = " ".join(words_of(page.partition("<article")[2]).split())
    asked = site_words.ONLY_IN_JUPYTERLAB.findall(text)
    assert [sentence for sentence in asked if "JupyterLab" not in sentence] == []


def test_the_reference_has_everything_that_is_public(site):
    page = text_of(site, "docs/api.html")
    named = set(re.findall(r'id="pagedlab\.[\w.]+\.(\w+)"', page))
    assert {*pagedlab.__all__, "match", "register", "generate", "stream"} <= named


def test_the_front_page_leads_to_every_notebook(site):
    page = text_of(site, "docs/index.html")
    front = text_of(site, "index.html")
    for path in NOTEBOOKS:
        assert f'href="../notebooks/{path.stem}.html"' in page
        assert f'href="notebooks/{path.stem}.html"' in front
    assert 'href="docs/index.html"' in front


# Notebooks whose opening has a variant for a narrow page.
NARROW = ["01", "02", "03", "04", "05", "07", "08", "09", "10", "11", "12"]
# A page of each kind. axe takes longer than all else.
KINDS = re.compile(r"(\w+|docs/(index|api|install|measured)|notebooks/(00|07|09)\w+)\.html")
# Most of a page's nodes are the coloured words of its code: of each colour one stays, on the screen.
FEW_WORDS = """() => {
    const seen = new Set();
    for (const word of document.querySelectorAll(".highlight pre span")) {
        const isShown = word.checkVisibility() && word.getBoundingClientRect().right < innerWidth;
        if (seen.has(word.className) || !isShown) word.replaceWith(word.textContent);
        else seen.add(word.className);
    }
}"""
# The reference has hundreds of entries, which are alike.
FEW_ENTRIES = "() => [...document.querySelectorAll('dl.py')].slice(40).forEach((entry) => entry.remove())"


# Of the element with the keyboard: its name, whether it is on the screen, and whether it has an outline.
FOCUSED = """() => {
    const node = document.activeElement;
    const { left, right } = node.getBoundingClientRect();
    const isOnScreen = left >= 0 && Math.floor(right) <= innerWidth;
    const name = (node.getAttribute("aria-label") || node.placeholder || node.textContent).trim().slice(0, 40);
    return [name, isOnScreen, getComputedStyle(node).outlineStyle !== "none"];
}"""

# Of a page: how much wider it is than the screen, Tab stops outside widgets that do not scroll, tables of up to three
# columns that scroll, and what scrolls sideways without a word above it.
PHONE_FAULTS = """() => {
    const scrolls = (box) => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    const stops = [...document.querySelectorAll("[tabindex='0']")].filter((box) => !box.matches("button, g *, g"));
    const tables = [...document.querySelectorAll(".table-wrapper")];
    return {
        wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        stops: stops.filter((box) => !scrolls(box)).map((box) => box.outerHTML.slice(0, 90)),
        tables: tables.filter((box) => scrolls(box) && box.querySelector("tr").children.length <= 3)
            .map((box) => box.innerText.slice(0, 90)),
        silent: [...document.querySelectorAll(".table-wrapper, pre.columns, a.image-reference, .px-picture")]
            .filter((box) => box.scrollWidth > box.clientWidth && !box.closest("details:not([open])"))
            .filter((box) => {
                const place = box.closest("[data-opening], .output.stream") ?? box;
                return !place.previousElementSibling?.matches(".swipe-hint:not([hidden])");
            })
            .map((box) => box.outerHTML.slice(0, 90)),
    };
}"""


@in_browser
def test_on_a_phone_no_page_scrolls_sideways_only_what_scrolls_is_a_tab_stop_and_all_is_accessible(site, show):
    pages = {file.relative_to(site).as_posix() for file in site.rglob("*.html")}
    kinds = set(filter(KINDS.fullmatch, pages))
    assert len(kinds) == 12
    found = {}
    for name in sorted(pages):
        if Path(name).name[:2] in NARROW and name not in kinds:  # the next test looks at it
            continue
        page = show(name)
        page.wait_for_timeout(200)  # openings that are near the first screen
        faults = page.evaluate(PHONE_FAULTS)
        if name in kinds:
            page.evaluate(FEW_WORDS)
            page.evaluate(FEW_ENTRIES)
            faults["not accessible"] = violations(page)
        if any(faults.values()):
            found[name] = faults
    assert not found


@in_browser
def test_what_has_the_keyboard_is_on_the_screen_and_marked(show):
    """In a narrow window, the theme keeps the list of pages and that of sections in drawers beside it."""
    page = show("docs/install.html")
    page.add_style_tag(content="* { transition: none !important; }")
    seen = []
    page.keyboard.press("Tab")
    while not page.evaluate("document.activeElement === document.body"):
        seen.append(page.evaluate(FOCUSED))
        page.keyboard.press("Tab")
    assert {"Skip to content", "Glossary"} < {name for name, *_ in seen}
    assert [name for name, *is_fine in seen if not all(is_fine)] == []


# Heights of the letters of all drawings, in pixels of the page.
LETTERS = """() => [...document.querySelectorAll(".px-picture text")]
    .filter((text) => text.textContent.trim())
    .map((text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""


# Parts of the picture that stick out of their widget.
BEYOND = """(root) => [...root.querySelectorAll('*')].filter(
    (part) => part.getBoundingClientRect().right > root.getBoundingClientRect().right
).map((part) => part.outerHTML.slice(0, 99))"""


@in_browser
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.name[:2] in NARROW], ids=lambda path: path.stem)
def test_an_opening_plays_and_fits_on_each_screen(show, path):
    page = show(f"notebooks/{path.stem}.html", motion="no-preference")
    for place in page.locator("[data-opening]").all():
        place.scroll_into_view_if_needed()
        place.locator(".pl-root").wait_for()
    # Waited for: a busy machine needs a moment for the hints to swipe.
    page.wait_for_function(f"Object.values(({PHONE_FAULTS})()).every((found) => !(found.length ?? found))")
    root = page.locator(".px-root").first
    assert root.locator("xpath=..").locator("img").count() == 0, "it takes the place of its picture"
    controls = root.locator("input:enabled")
    heights = set()
    for key in ("Home", *["ArrowRight"] * 3, "End", "Space"):
        if controls.count():  # 05 has only text boxes
            controls.first.press(key)
        assert root.evaluate(BEYOND) == []
        heights.add(root.bounding_box()["height"])
    assert len(heights) <= 2, "it keeps the room of its largest step: nothing below jumps while it plays"
    part, said = root.locator("[data-link]").last, root.locator(".px-say")
    for tapped, count in ((part, 1), (said, 0)):  # it stays lit until a tap beside it
        tapped.tap()
        page.wait_for_timeout(300)  # a browser sends the mouse's events after those of the finger
        assert min(root.locator(".pl-lit").count(), 1) == count
        assert (said.inner_text() == part.get_attribute("data-say").strip()) == bool(count)
    for width in (360, 768, 1000, 1180):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"() => Math.min(...({LETTERS})()) >= 10.9", timeout=5000)
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator(".px-narrow").first.wait_for(state="detached")


@in_browser
def test_a_search_can_be_made_without_the_sidebar_and_its_excerpts_begin_with_the_notebook(show):
    page = show("search.html")
    page.get_by_label("Words to search for").fill("copy-on-write")
    page.get_by_role("button", name="Search", exact=True).click()
    excerpts = page.locator("#search-results p.context")
    excerpts.nth(2).wait_for()
    assert page.locator("#search-results li").first.inner_text().startswith("03 · Copy-on-write")
    assert not re.search("All code on this page|Hide the code", "".join(excerpts.all_inner_texts()))
