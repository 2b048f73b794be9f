"""Click to paint: how long a reader waits for the block grid, in a real JupyterLab.

    python benchmarks/widget.py [--clicks 20] [--blocks 64 1024]

From a click in the page, to Python, the pool, and back, until the browser has painted the new state: the frame
after the one in which the page was changed. Prints one line of JSON a pool size, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser

# The operations that change most: append 20, fork, write (a copy), free; then the same again.
MEASURE = """async ([root, clicks]) => {
    const frame = () => new Promise(requestAnimationFrame);
    const times = [], changed = [];
    root.querySelector('[data-op="new"]').click();
    await new Promise(done => setTimeout(done, 1000));
    for (let i = 0; i < clicks; i++) {
        const serial = Number(root.dataset.serial);
        const start = performance.now();
        const change = new Promise(done => new MutationObserver((_, observer) => { observer.disconnect(); done(); })
            .observe(root, { attributes: true, attributeFilter: ['data-serial'] }));
        root.querySelector(`[data-op="${['append', 'fork', 'write', 'free'][i % 4]}"]`).click();
        await change;
        changed.push(performance.now() - start);
        await frame();
        await new Promise(done => setTimeout(done));  // after the frame's own work: it is painted
        times.push(performance.now() - start);
        await new Promise(done => setTimeout(done, 150));
        if (Number(root.dataset.serial) !== serial + 1) throw new Error('a click was lost');
    }
    return [times, changed];
}"""


def measure(lab: browser.Lab, num_blocks: int, clicks: int) -> dict[str, float]:
    """Median, slowest, and how much of the median passes before the page begins to paint."""
    name = f"click_{num_blocks}.ipynb"
    source = f"from pagedlab.widgets import BlockPoolWidget\nBlockPoolWidget(num_blocks={num_blocks})"
    browser.write_notebook(lab.root / name, [source])
    with lab.notebook(name) as page:
        browser.run_all(page)
        root = page.wait_for_selector(".pl-root")
        times, changed = page.evaluate(MEASURE, [root, clicks])
    return {
        "blocks": num_blocks,
        "clicks": clicks,
        "median_ms": round(statistics.median(times), 1),
        "slowest_ms": round(max(times), 1),
        "median_until_dom_changed_ms": round(statistics.median(changed), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clicks", type=int, default=20)
    parser.add_argument("--blocks", type=int, nargs="+", default=[64, 1024])
    arguments = parser.parse_args()
    why = browser.missing()
    if why:
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as folder, browser.jupyter_lab(Path(folder)) as lab:
        for num_blocks in arguments.blocks:
            print(json.dumps(measure(lab, num_blocks, arguments.clicks)))


if __name__ == "__main__":
    main()
