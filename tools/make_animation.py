"""Make the README's animation of the block grid from screenshots of the real widget in a real JupyterLab.

    python tools/make_animation.py [docs/block_grid.webp]

A ring marks where the pointer is; everything else is what a reader sees.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser

WIDTH, HEIGHT, SCALE = 1010, 556, 1.5  # the picture in page pixels, and pixels to one of them
RING = """() => {
    const ring = document.createElement('div');
    ring.style.cssText = `position: fixed; z-index: 9999; left: -99px; pointer-events: none;
        width: 26px; height: 26px; margin: -13px 0 0 -13px;
        border: 3px solid #D55E00; border-radius: 50%; background: #D55E0033`;
    document.body.append(ring);
    document.addEventListener('mousemove', (event) => {
        ring.style.left = event.clientX + 'px';
        ring.style.top = event.clientY + 'px';
    });
}"""


class Film:
    """Screenshots of one region and how long each is shown, in milliseconds."""

    def __init__(self, page: Any, box: dict[str, float]) -> None:
        self.page, self.box = page, box
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []

    def hold(self, milliseconds: int) -> None:
        shot = self.page.screenshot(clip=self.box)
        self.frames.append(Image.open(io.BytesIO(shot)).convert("RGB"))
        self.durations.append(milliseconds)

    def click(self, css: str, hold: int) -> None:
        """Point, click, and film the change until it is over."""
        target = self.page.locator(css)
        target.hover()
        self.hold(450)
        target.click()
        for _ in range(4):
            self.page.wait_for_timeout(90)
            self.hold(90)
        self.page.wait_for_timeout(900)
        self.hold(hold)

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self.frames[0].save(
            path, save_all=True, append_images=self.frames[1:], duration=self.durations, loop=0, lossless=True, method=4
        )


def play(film: Film) -> None:
    """A prompt, a fork, a look at who shares what, a copy on write, and beams."""
    page = film.page
    page.locator(".pl-amount").fill("40")
    film.hold(900)
    film.click('[data-op="new"]', 1000)
    film.click('[data-op="fork"]', 1200)
    page.locator('.pl-block[data-block="1"]').hover()
    film.hold(1900)
    film.click('[data-op="write"]', 2200)
    film.click('[data-op="append"]', 900)
    film.click('[data-op="free"]', 1300)
    page.locator("[data-ref=examples]").select_option("parallel sampling")
    page.mouse.move(0, 0)
    page.wait_for_timeout(900)
    film.hold(2600)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else browser.REPO / "docs" / "block_grid.webp"
    with tempfile.TemporaryDirectory() as folder, browser.jupyter_lab(Path(folder)) as lab:
        source = "from pagedlab.widgets import BlockPoolWidget\nBlockPoolWidget()"
        browser.write_notebook(lab.root / "film.ipynb", [source])
        with lab.notebook("film.ipynb", width=WIDTH + 170, height=900, device_scale_factor=SCALE) as page:
            browser.run_all(page)
            root = page.locator(".pl-root")
            root.wait_for()
            root.evaluate("(root, height) => { root.style.minHeight = height + 'px'; }", HEIGHT)
            page.evaluate(RING)
            box = root.bounding_box()
            film = Film(page, {**box, "height": HEIGHT})
            play(film)
        film.save(path)
    print(f"{path.name}: {len(film.frames)} frames, {sum(film.durations) / 1000:.1f} s, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
