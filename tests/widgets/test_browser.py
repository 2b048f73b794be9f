"""The widgets in a real JupyterLab, clicked, typed at and looked at. test_explore_browser.py has their keys, tests/js
what each button sends.

PAGEDLAB_REQUIRE_BROWSER=1 makes a missing browser a failure instead of a skip.
"""

import json

import nbformat
import pytest
from pagedlab_lessons.widgets import BlockPoolWidget

from support import browser

pytestmark = pytest.mark.browser

CELLS = {
    "w": "from pagedlab_lessons.widgets import BlockPoolWidget, Stage\nw = BlockPoolWidget()\nw",
    "big": "big = BlockPoolWidget(num_blocks=1024)\nbig",
    "live": """
from pagedlab_lessons.checks.n09 import ToyEngine
engine = ToyEngine(num_blocks=64, block_size=16)
live = Stage(engine)
live""",
}

PAGE_STATE = """(root) => ({
    counts: [...root.querySelectorAll('.pl-block')].map(node => Number(node.dataset.count)),
    tables: [...root.querySelectorAll('[data-sequence]')].map(row =>
        [row.dataset.sequence, [...row.querySelectorAll('.pl-cell')].map(cell => Number(cell.dataset.block))]),
    stats: Object.fromEntries([...root.querySelectorAll('[data-stat]')].map(node =>
        [node.dataset.stat, Number(node.textContent.replaceAll(',', ''))])),
})"""
PYTHON_STATE = """
import json
counts = [{w}.pool.refcount(b) for b in range({w}.pool.num_blocks)]
print(json.dumps(dict(
    counts=counts,
    tables=[[name, table.block_ids] for name, table in {w}.tables.items()],
    stats=dict(
        used={w}.pool.num_used, free={w}.pool.num_free, shared=sum(c > 1 for c in counts), copied={w}.copied,
        **{"with copies": sum(len(t.block_ids) for t in {w}.tables.values())},
    ),
)))"""


@pytest.fixture(scope="module")
def opened(lab):
    browser.write_notebook(lab.root / "widgets.ipynb", [*CELLS.values(), "# a place for a second view"])
    with lab.notebook("widgets.ipynb") as page:
        browser.run_all(page)
        assert browser.cell_errors(page) == []
        page.locator(".pl-root").nth(len(CELLS) - 1).wait_for()
        yield page


@pytest.fixture
def page(opened):
    opened.problems.clear()
    yield opened
    opened.mouse.move(0, 0)
    assert opened.problems == []


class Grid:
    """One widget on the page, by the name of its Python variable."""

    def __init__(self, page, name):
        self.page, self.name = page, name
        self.root = page.locator(".pl-root").nth(list(CELLS).index(name))
        self.root.scroll_into_view_if_needed()
        if name != "live":
            self.python("{w}.reset()")
            self.settled()

    def python(self, code):
        return browser.run_python(self.page, code.replace("{w}", self.name))

    def settled(self, serial=None):
        """Wait until the page shows the state of this number, or the latest one."""
        serial = serial or int(self.python("print({w}.state['serial'])"))
        self.page.wait_for_function(
            "([root, serial]) => Number(root.dataset.serial) >= serial",
            arg=[self.root.element_handle(), serial],
            timeout=15_000,
        )

    def click(self, *ops, n=None):
        if n is not None:
            self.root.locator(".pl-amount").fill(str(n))
        for op in ops:
            serial = int(self.root.get_attribute("data-serial"))
            self.root.locator(f'[data-op="{op}"]').click()
            self.settled(serial + 1)

    def check(self):
        """Page and pool agree; returns what they agree on."""
        shown = self.root.evaluate(PAGE_STATE)
        assert shown == json.loads(self.python(PYTHON_STATE))
        return shown


def test_a_notebook_reopened_without_running_shows_the_picture(lab):
    """As the committed notebooks have it: no kernel knows the view.

    The first test here: while `opened` has a page, another notebook would load JupyterLab once more.
    """
    data, _ = BlockPoolWidget(preset="beam search")._repr_mimebundle_()
    del data["application/vnd.jupyter.widget-view+json"]
    output = nbformat.v4.new_output("display_data", data)
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("w", outputs=[output])]), lab.root / "stored.ipynb"
    )
    with lab.notebook("stored.ipynb") as page:
        picture = page.locator(".jp-OutputArea-output img")
        picture.wait_for()
        assert picture.evaluate("img => [img.naturalWidth > 600, img.width < 900]") == [True, True]
        assert "8 used" in picture.get_attribute("alt")


# Clicks ----------------------------------------------------------------------------------------------------------


def test_a_new_row_comes_into_view_in_a_long_list(page):
    grid = Grid(page, "w")
    grid.python("[{w}.do('new', n=4) for _ in range(12)]")
    grid.click("new")
    seen = """root => {
        const [row, box] = ['.pl-selected', '.pl-tables'].map((css) => root.querySelector(css).getBoundingClientRect());
        return row.top >= box.top && row.bottom <= box.bottom + 1;
    }"""
    assert grid.root.evaluate(seen)


# What moves at the moment when the arrow is drawn: asked later, on a busy machine, it has already come to rest.
COUNT_MOVING = """root => {
    root.moving = null;
    root.watcher = new MutationObserver(() => {
        if (root.querySelector('.pl-arrows path')) root.moving ??= root.getAnimations({ subtree: true }).length;
    });
    root.watcher.observe(root, { childList: true, subtree: true });
}"""


def test_a_copy_is_seen_and_reduced_motion_is_honoured(page):
    grid = Grid(page, "w")
    for motion in ("reduce", "no-preference"):
        page.emulate_media(reduced_motion=motion)
        grid.python("{w}.reset()")
        grid.click("new", "fork", n=20)
        grid.root.evaluate(COUNT_MOVING)
        grid.click("write")
        moving = grid.root.evaluate("root => (root.watcher.disconnect(), root.moving)")
        assert (moving > 0) == (motion == "no-preference")
        assert grid.root.locator(".pl-source, .pl-destination").count() == 2


CLICK_AT_RANDOM = """async (root, seed) => {
    seed = 1 + (seed % 2147483646);
    const random = (n) => { seed = (seed * 48271) % 2147483647; return seed % n; };
    const ops = ['new', 'new', 'new', 'append', 'append', 'write', 'fork', 'fork', 'free', 'undo', 'redo'];
    const start = Number(root.dataset.serial);
    let sent = 0;
    const until = async (serial) => {
        const latest = Date.now() + 60_000;
        while (Number(root.dataset.serial) < serial && Date.now() < latest) {
            await new Promise((done) => setTimeout(done, 10));
        }
    };
    while (sent < 60) {
        const rows = root.querySelectorAll('[data-sequence] .pl-name');
        if (rows.length) rows[random(rows.length)].click();
        root.querySelector('.pl-amount').value = 1 + random(90);
        const button = root.querySelector(`[data-op="${ops[random(ops.length)]}"]`);
        if (button.getAttribute('aria-disabled') === 'true') continue;
        button.click();
        // three clicks in a row before the answer to the first is awaited
        if (++sent % 3 === 0) await until(start + sent);
    }
    await until(start + sent);
    return sent;
}"""


def test_page_and_pool_agree_after_60_random_clicks_at_1024_blocks(page, seed):
    grid = Grid(page, "big")
    sent = grid.root.evaluate(CLICK_AT_RANDOM, seed)
    assert sent == 60
    grid.settled()
    shown = grid.check()
    assert len(shown["counts"]) == 1024
    assert shown["tables"]


# Themes, views -----------------------------------------------------------------------------------------------------

GRID_TEXT = [".pl-prompt", ".pl-detail", ".pl-log li", ".pl-name small", ".pl-step"]
CONTRAST = """(root, selectors) => {
    const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data; };
    const light = (color) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * channel(rgb(color)[i]), 0);
    const ground = light(getComputedStyle(root).backgroundColor);
    return Object.fromEntries(selectors.map((css) => {
        const ink = light(getComputedStyle(root.querySelector(css)).color);
        return [css, (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)];
    }));
}"""


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_text_can_be_read_in_both_themes(page, theme):
    browser.set_theme(page, theme)
    grid = Grid(page, "w")
    grid.python("{w}.preset('parallel sampling'); {w}.seek(7)")
    grid.settled()
    low = {css: ratio for css, ratio in grid.root.evaluate(CONTRAST, GRID_TEXT).items() if ratio < 4.5}
    assert not low


def test_two_views_follow_one_widget_and_a_closed_one_is_gone(page):
    grid = Grid(page, "w")
    count = page.locator(".pl-root").count()
    last = "window.jupyterapp.shell.currentWidget.content.widgets.at(-1)"
    view = grid.python("print({w}.model_id)").strip()
    page.evaluate(
        f"""(model_id) => {last}.model.outputs.add({{ output_type: 'display_data', metadata: {{}}, data: {{
            'application/vnd.jupyter.widget-view+json': {{ version_major: 2, version_minor: 0, model_id }} }} }})""",
        view,
    )
    page.wait_for_function("n => document.querySelectorAll('.pl-root').length === n + 1", arg=count)
    grid.click("new", "fork", n=40)
    second = page.locator(".pl-root").last
    assert second.evaluate(PAGE_STATE) == grid.check()
    serial = int(grid.root.get_attribute("data-serial"))
    second.locator('[data-op="write"]').click()
    grid.settled(serial + 1)
    assert grid.check()["stats"]["copied"] == 1
    page.evaluate(f"() => {last}.model.outputs.clear()")
    page.wait_for_function("n => document.querySelectorAll('.pl-root').length === n", arg=count)
    grid.click("write")
    grid.check()


# The stage -------------------------------------------------------------------------------------------------------


def test_the_stage_follows_an_engine_loses_nothing_and_is_moved_by_hand(page):
    stage = Grid(page, "live")
    root = stage.root.element_handle()

    def wait_for(step):
        page.wait_for_function("([root, step]) => root.dataset.at === step", arg=[root, str(step)], timeout=15_000)

    stage.python("for i in range(3):\n    engine.add(6 + i, 40)\nengine.run()")
    stage.root.locator(".ps-rate").select_option("32")
    stage.python("live.end()")
    wait_for(40)
    for step in (40, 17, 0, 33, 34):
        stage.root.locator(".pl-scrubber").fill(str(step))
        wait_for(step)
        shown = stage.root.evaluate(PAGE_STATE)
        says = json.loads(
            stage.python(
                f"import json\nr = live.replay({step})\nheld = {{n: s for n, s in r.sequences.items() if s.blocks}}\n"
                "print(json.dumps([r.counts, [[n, s.blocks] for n, s in held.items()], r.now['used']]))"
            )
        )
        assert [shown["counts"], shown["tables"], shown["stats"]["used"]] == says
