"""How soon the site's first page speaks, and forks: python benchmarks/first_page.py [build/site] [--times 5]

`make site` first. Headless Chromium, every other host blocked, an empty cache each time. Seconds from the start of the
load to the first words; bytes loaded until then; seconds from the first click on Fork to a block that was copied, and
to words that the bug has overwritten. The machine's load stands beside them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "widgets"), str(ROOT / "tests" / "notebooks")]

import browser  # noqa: E402
from served import only_from, serving  # noqa: E402

FIRST_WORDS = """new MutationObserver((_, watch) => {
    if (!document.querySelector("#stage .ps-words")?.textContent.trim()) return;
    watch.disconnect();
    requestAnimationFrame(() => { window.spoke = performance.now() / 1000; });
}).observe(document, { childList: true, subtree: true })"""


def visit(chromium: Any, url: str) -> list[float]:
    """Seconds to the first words, bytes until then, seconds to a copy and to the bug."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    refused, answers = only_from(url, context), list[Any]()
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("response", lambda answer: answers.append(answer))
    page.add_init_script(FIRST_WORDS)
    page.goto(url)
    page.wait_for_function("() => window.spoke")
    found = [page.evaluate("window.spoke"), float(sum(len(answer.body()) for answer in answers))]
    began = monotonic()
    page.click("#fork")
    page.click("[data-teller=s0]")
    page.wait_for_function("() => document.querySelector('#grid [data-stat=copied]').innerText === '1'")
    found.append(monotonic() - began)
    page.check("#forget")
    page.wait_for_function("() => document.querySelector('#progress').textContent.includes('forgets')")
    for name in ("s0", "s1"):
        page.click(f"[data-teller={name}]")
    page.wait_for_selector(".wrong")
    found.append(monotonic() - began)
    context.close()
    assert not refused
    return found


def told(found: list[float]) -> str:
    words, size, copy, bug = found
    return f"words after {words:.2f} s ({size:,.0f} bytes), copy {copy:.1f} s, bug {bug:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with serving(arguments.site) as url, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        visits = []
        for _ in range(arguments.times):
            load = os.getloadavg()[0]
            visits.append(visit(chromium, url))
            print(f"load {load:5.1f}:", told(visits[-1]))
        chromium.close()
    print(f"median of {len(visits)}:", told([statistics.median(column) for column in zip(*visits, strict=True)]))


if __name__ == "__main__":
    main()
