"""The whole site as a visitor has it: Python in the page, and nothing that a checker of accessibility calls serious.

Python comes from JupyterLite's folder, so this waits for `make test-lite` (PAGEDLAB_TEST_LITE=1).
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from types import ModuleType
from typing import Any

import browser
import pytest
from served import ROOT, lite_folder, only_from, serving

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
        step: grid.querySelector(".pl-step").innerText,
        words: Object.fromEntries(all("#told p").map((text) => [text.querySelector("b").textContent.replace(": ", ""),
            all("span", text).map((word) => [word.textContent, word.className !== "wrong"])])),
    };
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of what `make site` builds."""
    lite_folder()
    folder = tmp_path_factory.mktemp("site")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-c", ROOT / "docs", "-d", folder / "trees", ROOT, folder / "html"]
    subprocess.run(sphinx, check=True)
    subprocess.run([sys.executable, ROOT / "tools" / "build_front.py", folder / "html"], check=True)
    with serving(folder / "html") as url:
        yield url


@pytest.fixture(scope="module")
def chromium(site: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def opened(chromium: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that asks nobody but its own server, and complains of nothing."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, **options)
    context.set_default_timeout(60_000)
    refused, problems = only_from(url, context), list[str]()
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    assert (refused, problems) == ([], [])
    context.close()


def python_of_the_page() -> ModuleType:
    """fork.py in this process, with the real widget and a story of its own."""
    spec = importlib.util.spec_from_file_location("fork_here", FRONT / "fork.py")
    assert spec is not None
    assert spec.loader is not None
    fork = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fork)
    fork.story.update(json.loads((ROOT / "data" / "recordings" / "one_story.json").read_text(encoding="utf-8")))
    return fork


def expected(fork: ModuleType) -> dict[str, Any]:
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


def click_at_random(page: Any, fork: ModuleType, draw: random.Random) -> str:
    """One click on the page, the same verb here, and what it was."""
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
    selected, amount = page.inner_text("#grid .pl-chip"), int(page.input_value("#grid .pl-amount"))
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


def compare_after_clicks(page: Any, clicks: int) -> None:
    """AssertionError where what the page shows is not what pool and tables say here after the same verbs."""
    seed = int(os.environ.get("PAGEDLAB_SEED", random.randrange(10**6)))
    print(f"PAGEDLAB_SEED={seed}")
    fork, draw, done = python_of_the_page(), random.Random(seed), list[str]()
    page.click("#fork")
    page.wait_for_selector("#told p")
    fork.start(False)
    for _ in range(clicks):
        done.append(click_at_random(page, fork, draw))
        assert page.evaluate(SHOWN) == expected(fork), done
    print(*done, sep="\n")


def test_the_page_shows_what_python_says_after_a_hundred_clicks(site: str, chromium: Any) -> None:
    with opened(chromium, site) as page:
        page.goto(site)
        compare_after_clicks(page, 100)


def test_the_comparison_sees_a_page_that_never_forgets(site: str, chromium: Any) -> None:
    """It can fail: the same clicks on a page whose switch does nothing."""
    broken = (
        (FRONT / "fork.py").read_text(encoding="utf-8").replace("NeverCopies if forget else BlockTable", "BlockTable")
    )
    with opened(chromium, site) as page:
        page.route("**/fork.py", lambda route: route.fulfill(body=broken, content_type="text/x-python"))
        page.goto(site)
        page.wait_for_selector("#fork")
        with pytest.raises(AssertionError, match="write"):
            compare_after_clicks(page, 300)


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_nothing_serious(site: str, chromium: Any, width: int, theme: str) -> None:
    """axe-core, on the page before and after the bug, and on two notebooks."""
    pytest.importorskip("axe_playwright_python")
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")

    def serious(page: Any) -> list[str]:
        page.evaluate(axe)
        found = page.evaluate("async () => (await axe.run({ resultTypes: ['violations'] })).violations")
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]

    with opened(chromium, site, color_scheme=theme, reduced_motion="reduce") as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(site)
        page.wait_for_selector(".ps-held")
        assert page.evaluate("document.getAnimations().length") == 0, "who asked for no motion gets none"
        assert page.inner_text(".ps-root [data-op=play]").endswith("Play"), "but can ask for it"
        assert serious(page) == []
        page.click("#fork")
        page.wait_for_selector("#told p")
        page.check("#forget")
        for name in ("s0", "s1"):
            page.click(f"[data-teller={name}]")
        page.wait_for_selector(".wrong")
        assert "never wrote" in page.inner_text("#progress"), "a screen reader is told, too"
        assert serious(page) == []
        for notebook in ("03_copy_on_write", "09_continuous_batching"):
            page.goto(f"{site}notebooks/{notebook}.html")
            assert serious(page) == []


def test_all_of_it_can_be_done_with_the_keyboard(site: str, chromium: Any) -> None:
    with opened(chromium, site, reduced_motion="reduce") as page:
        page.goto(site)
        page.wait_for_selector(".ps-held")

        def tab_to(css: str) -> None:
            for _ in range(40):
                page.keyboard.press("Tab")
                if page.evaluate("css => document.activeElement.matches(css)", css):
                    return
            raise AssertionError(f"forty times Tab, and {css} has not the keyboard")

        tab_to("[data-op=play]")
        page.keyboard.press("ArrowRight")  # to "one step back"
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.ps-root .pl-spoken').textContent.startsWith('Step 29 of')"
        )
        tab_to("#fork")
        page.keyboard.press("Enter")
        page.wait_for_selector("#told p")
        tab_to("#forget")
        page.keyboard.press("Space")
        page.wait_for_function("() => document.querySelector('#progress').textContent.includes('forgets')")
        for name in ("s0", "s1"):
            tab_to(f"[data-teller={name}]")
            page.keyboard.press("Enter")
            page.wait_for_function("name => document.activeElement.dataset.teller === name", arg=name)
        page.wait_for_selector(".wrong")
        tab_to("#map a")
