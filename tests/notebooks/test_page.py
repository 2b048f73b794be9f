"""The whole site as a visitor has it: Python in the page, and nothing that a checker of accessibility calls serious.

Python comes from JupyterLite's folder, so this waits for `make test-lite` (PAGEDLAB_TEST_LITE=1).
"""

import importlib.util
import json
import random
import subprocess
import sys
from contextlib import contextmanager

import pytest

from support.accessibility import serious
from support.pages import open_chromium
from support.site import ROOT, lite_folder, only_from, serving

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
FRONT = ROOT / "docs" / "front"
# What the page shows: of each block its count and owners, of each table its blocks and tokens, counters, words.
SHOWN = """() => {
    const all = (css, from = document) => [...from.querySelectorAll(css)], grid = document.querySelector("#grid");
    return {
        counts: all(".pl-block", grid).map((block) => Number(block.dataset.count)),
        owners: all(".pl-block", grid).map((block) => block.dataset.owners.split(" ").filter(Boolean)),
        tables: Object.fromEntries(all("[data-sequence]", grid).map((row) => [row.dataset.sequence,
            [parseInt(row.querySelector("small").innerText),
                all(".pl-cell", row).map((cell) => Number(cell.dataset.block))]])),
        stats: all("[data-stat]", grid).map((stat) => Number(stat.innerText)),
        step: grid.querySelector(".pl-step").textContent,
        words: Object.fromEntries(all("#told p").map((text) => [text.querySelector("b").textContent.replace(": ", ""),
            all("span", text).map((word) => [word.textContent, word.className !== "wrong"])])),
    };
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of what `make site` builds."""
    lite_folder()
    folder = tmp_path_factory.mktemp("site")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-c", ROOT / "docs", "-d", folder / "trees", ROOT, folder / "html"]
    subprocess.run(sphinx, check=True)
    subprocess.run([sys.executable, ROOT / "tools" / "build_front.py", folder / "html"], check=True)
    with serving(folder / "html") as url:
        yield url


@pytest.fixture(scope="module")
def chromium(site):
    with open_chromium() as chromium:
        yield chromium


@contextmanager
def opened(chromium, url, **options):
    """A page that asks nobody but its own server, and complains of nothing."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, **options)
    context.set_default_timeout(60_000)
    refused, problems = only_from(url, context), []
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    assert (refused, problems) == ([], [])
    context.close()


def python_of_the_page():
    """fork.py in this process, with the real widget and a story of its own."""
    spec = importlib.util.spec_from_file_location("fork_here", FRONT / "fork.py")
    assert spec is not None
    assert spec.loader is not None
    fork = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fork)
    fork.story.update(json.loads((ROOT / "data" / "recordings" / "one_story.json").read_text(encoding="utf-8")))
    return fork


def expected(fork):
    """What the page must show, asked of pool and tables themselves."""
    session, tables = fork.widget.session, fork.widget.tables
    pool, blocks = session.pool, range(session.num_blocks)
    counts = [pool.refcount(block) for block in blocks]
    used, shared = sum(count > 0 for count in counts), sum(count > 1 for count in counts)
    return {
        "counts": counts,
        "owners": [[name for name, table in tables.items() if block in table.block_ids] for block in blocks],
        "tables": {name: [table.num_tokens, table.block_ids] for name, table in tables.items()},
        "stats": [used, pool.num_free, shared, session.copied],
        "step": f"Step {session.cursor} of {len(session.log)}",
        "words": {name: [[word, right] for word, _, right in table.texts()] for name, table in tables.items()},
    }


def click_at_random(page, fork, draw):
    """One click on the page, the same verb here, and what it was."""
    page.evaluate("() => { document.querySelector('#grid .pl-more').open = true; }")
    if draw.random() < 0.2:
        page.fill("#grid .pl-amount", str(draw.randint(1, 9)))
    names, ops = list(fork.widget.tables), page.locator('#grid [data-op][aria-disabled="false"]')
    what = [(2, f"[data-teller={name}]") for name in names] + [
        (1, f"[data-sequence={name}] .pl-name") for name in names
    ]
    what += [(1, "#forget"), (0.5, "#fork"), (0.5, "examples")]
    for op in ops.evaluate_all("nodes => nodes.map(node => node.dataset.op)"):
        what.append(({"reset": 0.3, "new": 1}.get(op, 2), f"[data-op={op}]"))
    (click,) = draw.choices([css for _, css in what], [weight for weight, _ in what])
    if click in ("#fork", "#forget"):
        page.evaluate("() => { document.querySelector('#grid .pl-root').dataset.old = 1; }")
        page.click(click)
        page.wait_for_selector("#grid .pl-root:not([data-old])")
        fork.start(page.is_checked("#forget"))
        return click
    selected, amount = page.locator("#grid .pl-chip").first.inner_text(), int(page.input_value("#grid .pl-amount"))
    if click == "examples":
        name = draw.choice(page.locator("#grid [data-ref=examples] option").all_inner_texts()[1:])
        page.select_option("#grid [data-ref=examples]", name)
        message = {"op": "preset", "name": name}
    else:
        page.click(f"{'' if 'teller' in click else '#grid '}{click}")
        if click.startswith("[data-sequence"):
            return click
        op = "write" if "teller" in click else click[9:-1]
        sequence = click[13:-1] if "teller" in click else None if op == "new" else selected
        message = {"op": op, "sequence": sequence, "n": amount if op in ("new", "append") else None}
    fork.receive(json.dumps(message))
    serial = str(fork.widget.state["serial"])
    page.wait_for_function("n => document.querySelector('#grid .pl-root').dataset.serial === n", arg=serial)
    return str(message)


def start(page):
    """Load Python with a first click, then start the story over."""
    page.click("[data-teller=s0]")
    page.click("#fork")
    page.wait_for_function("() => document.querySelector('#progress').textContent.includes('beginning')")


def compare_after_clicks(page, clicks, seed):
    """AssertionError where what the page shows is not what pool and tables say here after the same verbs."""
    fork, draw, done = python_of_the_page(), random.Random(seed), []
    start(page)
    fork.start(False)
    for _ in range(clicks):
        done.append(click_at_random(page, fork, draw))
        assert page.evaluate(SHOWN) == expected(fork), done
    print(*done, sep="\n")


def test_the_page_shows_what_python_says_after_a_hundred_clicks(site, chromium, seed):
    with opened(chromium, site) as page:
        page.goto(site)
        compare_after_clicks(page, 100, seed)


def test_the_comparison_sees_a_page_that_never_forgets(site, chromium, seed):
    """It can fail: the same clicks on a page whose switch does nothing."""
    broken = (
        (FRONT / "fork.py").read_text(encoding="utf-8").replace("NeverCopies if forget else BlockTable", "BlockTable")
    )
    with opened(chromium, site) as page:
        page.route("**/fork.py", lambda route: route.fulfill(body=broken, content_type="text/x-python"))
        page.goto(site)
        page.wait_for_selector("[data-teller=s0]")
        with pytest.raises(AssertionError, match="write"):
            compare_after_clicks(page, 300, seed)


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_nothing_serious(site, chromium, width, theme):
    """axe-core, before and after the bug. test_site.py looks at every page as it is loaded."""
    with opened(chromium, site, color_scheme=theme, reduced_motion="reduce") as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(site)
        page.wait_for_selector(".ps-held")
        assert page.evaluate("document.getAnimations().length") == 0, "who asked for no motion gets none"
        assert page.inner_text(".ps-root [data-op=play]").endswith("Again"), "but can ask for it"
        assert serious(page) == []
        start(page)
        assert "so it gets a copy of this block" in page.inner_text("#fork-section")
        page.check("#forget")
        page.wait_for_function("() => document.querySelector('#progress').textContent.includes('forgets')")
        for name in ("s0", "s1"):
            page.click(f"[data-teller={name}]")
        page.wait_for_selector(".wrong")
        assert "never wrote" in page.inner_text("#progress"), "a screen reader is told, too"
        text = page.inner_text("#fork-section")
        assert "so it gets a copy of this block" not in text, "the text tells what happens now"
        assert "s0 reads a word that it never wrote" in text
        assert serious(page) == []


def test_nothing_large_is_loaded_unasked_and_an_error_stays(site, chromium):
    with opened(chromium, site) as page:
        sizes = []
        page.on("response", lambda answer: sizes.append(len(answer.body())))
        page.goto(site)
        page.wait_for_selector("[data-teller=s0]")
        page.wait_for_timeout(10_000)
        assert sum(sizes) < 300_000
        page.route("**/pyodide.mjs", lambda route: route.abort())
        page.click("[data-teller=s0]")
        page.wait_for_function("() => document.querySelector('#progress').textContent.includes('did not work')")
        page.wait_for_timeout(6_000)
        assert "did not work" in page.inner_text("#progress")
        page.unroute("**/pyodide.mjs")
        page.click("[data-teller=s0]")
        page.wait_for_function("() => document.querySelector('#grid [data-stat=copied]').innerText === '1'")


def test_all_of_it_can_be_done_with_the_keyboard(site, chromium):
    with opened(chromium, site, reduced_motion="reduce") as page:
        page.goto(site)
        page.wait_for_selector(".ps-held")

        def tab_to(css, key="Tab"):
            for _ in range(40):
                page.keyboard.press(key)
                if page.evaluate("css => document.activeElement.matches(css)", css):
                    return
            raise AssertionError(f"forty times Tab, and {css} has not the keyboard")

        tab_to("[data-op=play]")
        page.keyboard.press("ArrowRight")  # to "one step back"
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.ps-root .pl-spoken').textContent.startsWith('Step 23 of')"
        )
        tab_to("#forget")
        page.keyboard.press("Space")
        page.wait_for_function("() => document.querySelector('#progress').textContent.includes('forgets')")
        for name in ("s1", "s0"):
            tab_to(f"[data-teller={name}]", "Shift+Tab")
            page.keyboard.press("Enter")
            page.wait_for_function("name => document.activeElement.dataset.teller === name", arg=name)
        page.wait_for_selector(".wrong")
        tab_to("#map a")
