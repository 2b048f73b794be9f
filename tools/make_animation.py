"""Make the README's animation and the site's card: the first page in a real browser, step by step.

python tools/make_animation.py

The animation is narrow, so that its words can be read on a phone. The card is what other sites show beside a link.
playwright and Pillow do the work; by hand is only the order of the steps.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from build_front import build
from support import browser
from support.site import serving

WIDTH = 560  # of the animation, in pixels of the page
# Without controls, and as high as its fullest step.
SHAPE = """
.ps-controls, .pl-detail, .pl-stats, .ps-more { display: none !important; }
.ps-root { min-height: 0 !important; height: 660px; }
"""
CARD_SIZE = {"width": 1200, "height": 630}
STEP, END = 140, 3000  # milliseconds


def film(chrome: Any, address: str) -> list[Image.Image]:
    """The stage after each step of its recording that has words."""
    page = chrome.new_page(viewport={"width": WIDTH + 32, "height": 1400}, reduced_motion="reduce")
    page.goto(address)
    slider = page.locator(".pl-scrubber")
    slider.wait_for()
    page.add_style_tag(content=SHAPE)
    stage = page.locator(".ps-root")
    frames = []
    for step in range(int(slider.get_attribute("max")) + 1):
        slider.fill(str(step), force=True)  # it is hidden
        if not page.locator(".ps-held").count():
            continue  # a picture that does not move shows the first frame, so it needs words
        frames.append(Image.open(io.BytesIO(stage.screenshot(animations="disabled"))).convert("RGB"))
    return frames


def card(chrome: Any, address: str, path: Path) -> None:
    """The first screen of the page, without motion."""
    page = chrome.new_page(viewport=CARD_SIZE, reduced_motion="reduce")
    page.goto(address)
    page.locator(".pl-scrubber").wait_for()
    Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB").quantize().save(path, optimize=True)


def main() -> None:
    film_path = browser.ROOT / "docs" / "stage.webp"
    card_path = browser.ROOT / "docs" / "static" / "card.png"
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as address, sync_playwright() as playwright:
        build(Path(folder))
        chrome = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        frames = film(chrome, address)
        card(chrome, address, card_path)
        chrome.close()
    durations = [STEP] * (len(frames) - 1) + [END]
    rest = frames[1:]
    frames[0].save(film_path, save_all=True, append_images=rest, duration=durations, loop=0, quality=55, method=6)


if __name__ == "__main__":
    main()
