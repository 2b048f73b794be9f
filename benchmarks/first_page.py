"""How soon the site's first page shows words, and how soon it forks.

python benchmarks/first_page.py [--site build/site] [--rounds 5] [--json FILE]

Run `make site` first. Headless Chromium, every other host blocked, an empty cache each time. Seconds from the start of
the load to the first words; bytes loaded until then; seconds from the first click on "write" to a block that was
copied, and to words that the bug has overwritten. The result has the machine's load at each visit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from common import Result, command_line  # noqa: E402
from support import browser  # noqa: E402
from support.site import only_from, serving  # noqa: E402

FIRST_WORDS = """new MutationObserver((_, watch) => {
    if (!document.querySelector("#stage .ps-words")?.textContent.trim()) return;
    watch.disconnect();
    requestAnimationFrame(() => { window.spoke = performance.now() / 1000; });
}).observe(document, { childList: true, subtree: true })"""


def visit(chromium: Any, url: str) -> dict[str, tuple[float, str]]:
    """Load the page, fork, and see the bug: the figures of one visit, each with its unit."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    refused = only_from(url, context)
    answers: list[Any] = []
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("response", lambda answer: answers.append(answer))
    page.add_init_script(FIRST_WORDS)
    page.goto(url)
    page.wait_for_function("() => window.spoke")
    words = page.evaluate("window.spoke")
    size = sum(len(answer.body()) for answer in answers)
    began = monotonic()
    page.click("[data-teller=s0]")
    page.wait_for_function("() => document.querySelector('#grid [data-stat=copied]').innerText === '1'")
    copy = monotonic() - began
    page.check("#forget")
    page.wait_for_function("() => document.querySelector('#progress').textContent.includes('forgets')")
    for name in ("s0", "s1"):
        page.click(f"[data-teller={name}]")
    page.wait_for_selector(".wrong")
    bug = monotonic() - began
    context.close()
    assert not refused
    return {"first words": (words, "s"), "loaded": (size, "bytes"), "copy": (copy, "s"), "bug": (bug, "s")}


def main() -> None:
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="its folder")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    result = Result("the site's first page, see benchmarks/first_page.py", args.json)
    with serving(args.site) as url, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        for _ in range(args.rounds):
            load = os.getloadavg()[0]
            for name, (figure, unit) in visit(chromium, url).items():
                result.add(name, "page", figure, unit, load=load)
        chromium.close()


if __name__ == "__main__":
    main()
