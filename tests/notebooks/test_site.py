"""The documentation site: built from the stored outputs without a warning, and sufficient to itself."""

import html
import json
import re
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr

import nbformat
import pytest

import pagedlab
from colab_cell import is_for_colab
from notebook_sources import imported_names
from site_openings import openings_of
from support.accessibility import violations
from support.pages import in_browser, open_chromium
from support.paths import NOTEBOOKS, ROOT, each_notebook
from support.site import serving
from support.warm import processes

sys.path.append(str(ROOT / "docs"))
import site_words

for needed in ("myst_nb", "furo", "latex2mathml"):
    pytest.importorskip(needed, reason="the site needs tools/setup_env.py --site")
build = pytest.importorskip("sphinx.cmd.build", reason="the site needs tools/setup_env.py --site")

pytestmark = pytest.mark.timeout(900)  # the first test builds the site, which takes long on a busy machine

# What a browser loads of itself: not links, which wait for a click.
LOADED = re.compile(r"""(?:\bsrc=|<link[^>]*\bhref=|url\(|@import\s)\s*["']?\s*(?:https?:)?//[^\s"')]+""")


def run_sphinx(arguments, complaints):
    """Build the site; what Sphinx complains about goes to a file."""
    with complaints.open("w", encoding="utf-8") as file, redirect_stderr(file):
        sys.exit(build.main(arguments))


@pytest.fixture(scope="session")  # the test in a browser runs after all others
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    nothing = tmp_path_factory.mktemp("nothing")
    arguments = ["-q", "-W", "--keep-going", "-c", ROOT / "docs"]
    arguments += ["-D", f"html_extra_path={nothing}"]  # without JupyterLite, which may have been built here
    arguments += ["-d", folder / "trees", ROOT, folder / "html"]
    complaints = folder / "complaints"
    process = processes().Process(target=run_sphinx, args=([str(argument) for argument in arguments], complaints))
    process.start()
    process.join()
    assert (process.exitcode, complaints.read_text(encoding="utf-8")) == (0, "")
    subprocess.run([sys.executable, ROOT / "tools" / "build_front.py", folder / "html"], check=True)
    return folder / "html"


def text_of(site, name):
    return (site / name).read_text(encoding="utf-8")


@contextmanager
def opened(site, name, width=1280, height=844):
    """A page of the site in a window of this size. Its address is `page.url`."""
    with serving(site) as url, open_chromium() as chromium:
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.goto(url + name)
        yield page


@each_notebook
def test_a_notebook_is_a_page_with_all_its_outputs(site, path):
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    page = text_of(site, f"notebooks/{path.stem}.html")
    code = [cell for cell in cells if cell.cell_type == "code" and not is_for_colab(cell)]
    assert page.count('class="cell_input') == len(code)
    folded = [cell for cell in code if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert page.count('<details class="admonition hide above-input">') == len(folded)
    assert "google.colab" not in page
    title, _, after_title = page.partition("</h1>")
    assert 'class="sidebar-brand" href="../index.html"' in title, "the brand leads to the front page"
    assert '<a href="../index.html">Start page</a>' in after_title[:400], "so does the first link below the title"
    assert "_downloads" in page, "the notebook itself can be downloaded"
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    alts = {html.unescape(alt) for alt in re.findall(r'alt="([^"]*)"', page)}
    for output in outputs:
        if output.output_type == "stream":
            assert output.text.strip() in text
        for said in (options["alt"] for options in output.get("metadata", {}).values() if options.get("alt")):
            assert said in alts, "what the picture shows, in words"
    assert len(re.findall(r'<img [^>]*src="\.\./_images/', page)) >= pictures
    for picture in re.findall(r'<img [^>]*src="\.\./_images/[^>]*>', page):
        assert re.search(r'alt="(?!\.\./_images)[^"]', picture), "each picture has words, which are not its file's name"


@each_notebook
def test_a_notebook_s_openings_are_beside_its_page(site, path):
    page = site / "notebooks" / f"{path.stem}.html"
    places = re.findall(r'data-opening="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(places) == len(openings_of(path))
    for place in places:
        assert (page.parent / place).is_file()
    for name in ("openings.js", "openings.css", "explore.js", "frames.js", "stage.js"):
        assert (site / "_static" / name).is_file()


def test_nothing_is_loaded_from_another_server(site):
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".js")]
    found = {match for file in files for match in LOADED.findall(file.read_text(encoding="utf-8", errors="replace"))}
    assert len(files) > len(NOTEBOOKS)
    assert not found


def test_every_page_has_a_head_and_there_is_a_page_for_what_is_not_there(site):
    assert '<a href="index.html">start page</a>' in text_of(site, "404.html")
    for file in (site / "docs" / "index.html", site / "notebooks" / "00_start_here.html", site / "404.html"):
        assert "favicon.svg" in file.read_text(encoding="utf-8")
    page = text_of(site, "notebooks/03_copy_on_write.html")
    assert '<meta property="og:title" content="03 · Copy-on-write"' in page
    assert "<noscript>Without JavaScript, the drawings on this page do not play.</noscript>" in page
    for file in site.rglob("*.html"):
        page = file.read_text(encoding="utf-8")
        assert page.count('name="viewport"') == 1, file
        assert page.count('name="description"') == 1, file


def test_a_published_site_leads_to_colab_and_shows_a_card(monkeypatch, tmp_path):
    import build_front
    import normalise_notebooks

    for module in (build_front, normalise_notebooks):
        monkeypatch.setattr(module, "repository", lambda: "https://github.com/you/pagedlab")
    build_front.build(tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<meta property="og:image" content="https://you.github.io/pagedlab/card.png">' in page
    assert (tmp_path / "card.png").is_file()
    assert page.count("https://colab.research.google.com/github/you/pagedlab/blob/main/notebooks/") == len(NOTEBOOKS)


def test_formulas_need_no_script(site):
    page = text_of(site, "notebooks/01_fragmentation.html")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in page
    assert "<mtext>head_dim</mtext>" in page, "LaTeX's backslash is not shown"


@each_notebook
def test_words_for_a_page_are_for_words_of_the_notebook(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for words in site_words.WORDS.get(path.stem, {}):
        assert len(site_words.pattern_of(words).findall(text)) == 1, words


@each_notebook
def test_a_page_asks_for_nothing_that_only_jupyterlab_has(site, path):
    page = text_of(site, f"notebooks/{path.stem}.html")
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.partition("<article")[2])).split())
    asked = site_words.ONLY_IN_JUPYTERLAB.findall(text)
    assert [sentence for sentence in asked if "JupyterLab" not in sentence] == []


def test_what_is_on_every_page_is_not_found_by_a_search(site):
    index = text_of(site, "searchindex.js")
    terms = json.loads(index.removeprefix("Search.setIndex(").rstrip(")"))["terms"]
    assert "block" in terms
    assert len(terms["tap"]) < len(NOTEBOOKS), "point at its parts (or tap them), on every page"
    fragments = text_of(site, "notebooks/02_block_pool.html")
    assert re.search(r'<p class="no-search">[^\n]*03 · Copy-on-write', fragments), "so are the links to other notebooks"


def test_the_reference_has_short_signatures_and_contents(site):
    page = text_of(site, "docs/api.html")
    signatures = re.findall(r'<dt class="sig.*?</dt>', page, re.DOTALL)
    assert len(signatures) > 80
    texts = [html.unescape(re.sub(r"<[^>]+>", "", signature)) for signature in signatures]
    with_types = [text for text in texts if "(" in text and re.search(r"\w: ", text)]
    assert with_types == [], "types are in the lists of parameters"
    for title in re.findall(r"<h2>([^<]+)<", page):
        anchor = re.sub(r"[^a-z]+", "-", title.lower())
        assert f'href="#{anchor}">{title}</a>' in page.partition("<h2>")[0]


def test_install_says_how_to_get_the_files_and_has_its_command_in_a_block(site):
    page = text_of(site, "docs/install.html")
    files, _, rest = page.partition("Set up and start<")
    assert "Get the files<" in files
    block = re.search(r'<div class="highlight-sh.*?<pre>(.*?)</pre>', rest, re.DOTALL)
    assert re.sub(r"<[^>]+>", "", block[1]).strip() == "make lab"


def test_the_reference_has_everything_that_is_public_or_imported_by_notebooks(site):
    page = text_of(site, "docs/api.html")
    named = set(re.findall(r'id="pagedlab\.[\w.]+\.(\w+)"', page))
    assert {*pagedlab.__all__, "match", "register", "generate", "stream"} <= named
    names = imported_names(NOTEBOOKS)
    assert "explore" in names["pagedlab_lessons.widgets.explore"]
    missing = [name for found in names.values() for name in found if not re.search(rf"\b{name}\b", page)]
    assert missing == []


def test_the_front_page_leads_to_every_notebook(site):
    page = text_of(site, "docs/index.html")
    for path in NOTEBOOKS:
        assert f'href="../notebooks/{path.stem}.html"' in page
    front = text_of(site, "index.html")
    for path in NOTEBOOKS:
        assert f'href="notebooks/{path.stem}.html"' in front
    assert 'href="docs/index.html"' in front


# Most of a page's nodes are the coloured words of its code: they are looked at on one page alone.
CODE = "notebooks/07_the_paged_kernel.html"
PLAIN_CODE = "() => document.querySelectorAll('.highlight pre').forEach((pre) => { pre.textContent = pre.innerText; })"
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
def test_on_a_phone_no_page_scrolls_sideways_only_what_scrolls_is_a_tab_stop_and_all_is_accessible(site):
    pages = [file.relative_to(site).as_posix() for file in sorted(site.rglob("*.html"))]
    assert {"index.html", "404.html", "docs/index.html", "search.html", CODE} < set(pages)
    found = {}
    with serving(site) as url, open_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 360, "height": 800}, reduced_motion="reduce")
        for name in pages:
            page.goto(url + name)
            page.wait_for_timeout(200)  # openings that are near the first screen
            faults = page.evaluate(PHONE_FAULTS)
            if name != CODE:
                page.evaluate(PLAIN_CODE)
                page.evaluate(FEW_ENTRIES)
            faults["not accessible"] = violations(page)
            if any(faults.values()):
                found[name] = faults
    assert not found


@in_browser
@pytest.mark.parametrize("spacing", [0, 0.1, 0.3])
def test_letters_of_any_width_leave_narrow_tables_whole_and_what_scrolls_says_so(site, spacing):
    """A machine has other fonts than the next one. Room between letters stands for wider ones."""
    with opened(site, "docs/measured.html", width=360) as page:
        page.add_style_tag(content=f"td, th {{ letter-spacing: {spacing}em; }}")
        page.wait_for_timeout(200)
        assert page.evaluate(PHONE_FAULTS) == {"wider": 0, "stops": [], "tables": [], "silent": []}
        assert page.locator(".swipe-hint:visible").count() > 0, "tables of many columns scroll"


@in_browser
@pytest.mark.parametrize("width", [390, 1100, 1440])
def test_what_has_the_keyboard_is_on_the_screen_and_marked(site, width):
    """In a narrow window, the theme keeps the list of pages and that of sections in drawers beside it."""
    with opened(site, "docs/install.html", width=width) as page:
        page.add_style_tag(content="* { transition: none !important; }")
        seen = []
        page.keyboard.press("Tab")
        while not page.evaluate("document.activeElement === document.body"):
            seen.append(page.evaluate(FOCUSED))
            page.keyboard.press("Tab")
    names = {name for name, *_ in seen}
    assert {"Skip to content", "Glossary"} < names
    assert [name for name, is_on_screen, _ in seen if not is_on_screen] == []
    assert [name for name, _, is_marked in seen if not is_marked] == []


@in_browser
def test_a_wide_picture_says_on_a_phone_that_it_can_be_swiped(site):
    with opened(site, "notebooks/14_measuring_a_server.html", width=390) as page:
        page.locator(".px-root").wait_for()
        picture = page.locator("a.image-reference").first
        said = picture.evaluate("box => box.previousElementSibling.innerText")
        assert said.startswith("Swipe sideways")
        wide = page.locator("a.image-reference, .px-picture").evaluate_all(
            "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth).length"
        )
        assert page.locator(".swipe-hint").count() == wide > 0, "one a picture, none of pictures that became widgets"
        page.set_viewport_size({"width": 1440, "height": 900})
        page.locator(".swipe-hint").first.wait_for(state="hidden")


# Whether a part of the element with this selector is between the window's left and right edge.
IS_ON_SCREEN = """(selector) => {
    const { left, right } = document.querySelector(selector).getBoundingClientRect();
    return left < innerWidth && right > 0;
}"""


@in_browser
def test_icons_of_a_phones_header_are_buttons_with_room_for_a_finger(site):
    with opened(site, "notebooks/03_copy_on_write.html", width=390) as page:
        right = 0
        for name in ("all pages", "Toggle Light / Dark / Auto color theme", "on this page"):
            box = page.get_by_role("button", name=name).bounding_box()
            assert min(box["width"], box["height"]) >= 24
            assert box["x"] >= right
            right = box["x"] + box["width"] + 8
        for name, drawer in (("all pages", ".sidebar-drawer"), ("on this page", ".toc-drawer")):
            for key, state in (("Enter", "true"), ("Space", "false")):
                page.get_by_role("button", name=name).press(key)
                assert page.get_by_role("button", name=name).get_attribute("aria-expanded") == state
                page.wait_for_function(f"drawer => ({IS_ON_SCREEN})(drawer) === {state}", arg=drawer)


@in_browser
def test_the_contents_of_a_notebook_leave_their_room_to_its_drawings(site):
    with opened(site, "notebooks/09_continuous_batching.html", width=1440) as page:
        page.locator(".px-picture").first.wait_for()
        assert page.locator(".px-picture").first.bounding_box()["width"] > 1000
        assert not page.evaluate(f"({IS_ON_SCREEN})('.toc-drawer')")
        page.locator(".toc-content-icon").click()
        page.wait_for_function(f"() => ({IS_ON_SCREEN})('.toc-drawer')")


def test_a_link_around_a_picture_has_a_short_name_and_keeps_the_description(site):
    page = text_of(site, "notebooks/01_fragmentation.html")
    links = re.findall(r'<a class="[^"]*image-reference"[^>]*>', page)
    assert links
    for link in links:
        assert 'aria-label="open the picture"' in link
        assert re.search(r'aria-description="[^"]', link)


def test_a_widget_that_is_a_picture_here_says_so(site):
    pages = {number: next((site / "notebooks").glob(f"{number}_*.html")).read_text() for number in ("02", "04", "06")}
    counts = {number: page.count('<p class="still">') for number, page in pages.items()}
    assert counts == {"02": 2, "04": 0, "06": 0}


@in_browser
def test_buttons_to_copy_have_room_for_a_finger_and_nothing_covers_the_text(site):
    with serving(site) as url, open_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 360, "height": 740})
        for path in ("docs/install.html", "notebooks/00_start_here.html"):
            page.goto(url + path)
            box = page.locator("button.copybtn:visible").first.bounding_box()
            assert min(box["width"], box["height"]) >= 24
            page.evaluate("scrollTo(0, 1500)")
            page.evaluate("scrollTo(0, 900)")  # the theme would show its link now
            assert not page.locator(".back-to-top").is_visible()


@in_browser
def test_a_drawing_has_a_headline_that_wraps_and_letters_of_11_pixels_on_a_phone(site):
    with opened(site, "notebooks/01_fragmentation.html", width=360) as page:
        page.locator("[data-opening]").first.scroll_into_view_if_needed()
        headline = page.locator(".px-headline").first
        headline.wait_for()
        assert "users fit" in headline.inner_text()
        box = headline.bounding_box()
        assert box["x"] + box["width"] <= 360
        letters = page.locator(".px-picture").first.evaluate("""(picture) => {
          const svg = picture.querySelector("svg");
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          const sizes = [...svg.querySelectorAll("text")].map((text) => Number(text.getAttribute("font-size")));
          return scale * Math.min(...sizes);
        }""")
        assert letters >= 10.9


# Heights of the letters of all drawings, in pixels of the page.
LETTERS = """() => [...document.querySelectorAll(".px-picture text")]
    .filter((text) => text.textContent.trim())
    .map((text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""


def see_all_drawings(page):
    for place in page.locator("[data-opening]").all():
        place.scroll_into_view_if_needed()
        place.locator(".pl-root").wait_for()


@in_browser
@pytest.mark.parametrize("name", ["02_block_pool", "09_continuous_batching"])
def test_drawings_have_letters_of_11_pixels_on_a_tablet(site, name):
    with opened(site, f"notebooks/{name}.html", width=768) as page:
        see_all_drawings(page)
        for width in (768, 1000, 1180):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(f"() => Math.min(...({LETTERS})()) >= 10.9", timeout=5000)
            assert page.locator(".px-narrow").count() > 0
            assert page.evaluate("document.documentElement.scrollWidth") == width
        page.set_viewport_size({"width": 1440, "height": 900})
        page.locator(".px-narrow").first.wait_for(state="detached")


@in_browser
def test_stored_pictures_are_not_made_smaller_on_a_tablet(site):
    with opened(site, "notebooks/09_continuous_batching.html", width=1000) as page:
        images = page.locator(".cell_output img")
        images.evaluate_all(  # before a picture is loaded, it has no size
            "images => Promise.all(images.map((image) => { image.loading = 'eager'; return image.decode(); }))"
        )
        sizes = images.evaluate_all(
            "images => images.map((image) => [image.clientWidth, parseInt(image.style.width || image.width)])"
        )
        assert max(width for width, _ in sizes) > 1000
        assert [shown for shown, width in sizes if shown < width] == []


# How each text of a result is shown, without code: its words, whether it scrolls, and what is said above it.
RESULTS = """() => [...document.querySelectorAll(".cell_output pre:is(.words, .columns)")].map((pre) => [
    pre.textContent, pre.scrollWidth > pre.clientWidth,
    (pre.closest(".output.stream") ?? pre).previousElementSibling?.innerText ?? ""])"""


@in_browser
def test_on_a_phone_sentences_of_results_wrap_and_tables_scroll_and_say_so(site):
    for number in ("01_fragmentation", "02_block_pool", "05_prefix_caching", "09_continuous_batching"):
        with opened(site, f"notebooks/{number}.html", width=390) as page:
            page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
            page.wait_for_timeout(300)
            results = page.evaluate(RESULTS)
            scrolling = [(text, said) for text, scrolls, said in results if scrolls]
            assert all(said.startswith("Swipe sideways: the table") for _, said in scrolling)
            assert [text for text, _ in scrolling if not re.search(r"\S {2,}\S.* {2,}\S", text)] == []
            tops = page.locator(".cell_output pre.columns").evaluate_all(
                "tables => tables.map((table) => table.clientHeight / table.textContent.trimEnd().split('\\n').length)"
            )
            if number == "01_fragmentation":
                assert any("GiB for that many" in text for text, _ in scrolling), "its columns stay"
                assert max(tops) < 30, "no row has two lines"
            if number == "02_block_pool":
                assert any("conserved" in text for text, *_ in results)
                assert scrolling == []


@in_browser
def test_code_among_results_wraps_on_a_phone(site):
    with opened(site, "notebooks/05_prefix_caching.html", width=390) as page:
        code = page.locator(".cell_output .highlight-python pre")
        assert code.count() > 0
        assert code.evaluate_all("all => all.filter((pre) => pre.scrollWidth > pre.clientWidth).length") == 0


@in_browser
def test_a_finger_has_room_on_what_opens_and_closes(site):
    with serving(site) as url, open_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        page.goto(f"{url}notebooks/02_block_pool.html")
        heights = page.locator("article summary:visible").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().height)"
        )
        assert len(heights) > 20
        assert min(heights) >= 40


@in_browser
def test_a_search_can_be_made_without_the_sidebar_and_its_excerpts_begin_with_the_notebook(site):
    with opened(site, "search.html", width=390) as page:
        page.get_by_label("Words to search for").fill("copy-on-write")
        page.get_by_role("button", name="Search", exact=True).click()
        excerpts = page.locator("#search-results p.context")
        excerpts.nth(2).wait_for()
        assert page.get_by_label("Words to search for").input_value() == "copy-on-write"
        results = page.locator("#search-results li")
        assert results.first.inner_text().startswith("03 · Copy-on-write")
        assert results.locator("a").count() > 0
        for text in excerpts.all_inner_texts():
            assert "All code on this page" not in text
            assert "Hide the code" not in text
        page.goto(f"{page.url.partition('?')[0]}?q=zzyzx")
        page.get_by_text("No page has these words. Try KV cache or block table.").wait_for()
