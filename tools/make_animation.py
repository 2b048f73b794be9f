"""Make the README's animation: the site's first page in a real browser, step by step.

python tools/make_animation.py [docs/stage.webp]
"""

from __future__ import annotations

import functools
import http.server
import io
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "widgets"))
import browser
from build_front import build

WIDTH, HEIGHT, SCALE = 1040, 460, 1.0  # the picture in page pixels, and pixels to one of them
STEP, END = 140, 3000  # milliseconds


def film(address: str) -> list[Image.Image]:
    """The stage after each step of its recording."""
    frames = []
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        page = chrome.new_page(
            viewport={"width": WIDTH + 40, "height": 900}, device_scale_factor=SCALE, reduced_motion="reduce"
        )
        page.goto(address)
        slider, root = page.locator(".pl-scrubber"), page.locator(".ps-root")
        slider.wait_for()
        page.evaluate("() => document.querySelector('.ps-rate').style.visibility = 'hidden'")
        box = {**(root.bounding_box() or {}), "height": HEIGHT}
        for step in range(int(slider.get_attribute("max") or 0) + 1):
            slider.fill(str(step))
            slider.blur()
            frames.append(Image.open(io.BytesIO(page.screenshot(clip=box))).convert("RGB"))  # type: ignore[arg-type]
        chrome.close()
    return frames


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else browser.REPO / "docs" / "stage.webp"
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        frames = film(f"http://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()
    durations = [STEP] * (len(frames) - 1) + [END]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=55, method=6)
    print(f"{path.name}: {len(frames)} frames, {sum(durations) / 1000:.1f} s, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
