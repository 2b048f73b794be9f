"""Explore, guess and the block grid in a real JupyterLab, by keyboard."""

import pytest

from support import browser

pytestmark = pytest.mark.browser

CELLS = [
    """
from pagedlab_lessons.widgets.explore import explore
def draw(size, text, dark):
    return f'<svg viewBox="0 0 90 20"><text y="9" data-link="w" data-say="a word">{size} {text}</text></svg>'
explore(draw, "Point.", size=(range(20), 5), text="a b c d", dark=False)""",
    "from pagedlab_lessons.widgets.guess import guess\nasked = guess('How much?', '%')",
    "print('beside ' * 2)\ntold = asked.reveal(42.5, 'for a reason')\ntold",
    "from pagedlab_lessons.widgets import BlockPoolWidget\nBlockPoolWidget(num_blocks=8)",
    "# behind the last widget",
]
INSIDE = [
    ".px-root input[type=range]",
    ".px-root input[type=text]",
    ".px-root [data-say]",
    ".pg-root input",
    ".pl-block",
    ".pl-toolbar .pl-amount",
]
KEEPS_SHIFT_ENTER = [".px-root input[type=text]", ".pl-toolbar .pl-amount"]  # the cell, run again, would lose it
COUNT = "(cell) => window.jupyterapp.shell.currentWidget.content.widgets[cell].model.executionCount"
STATE = """() => {
    const { content } = window.jupyterapp.shell.currentWidget;
    const { node } = content.activeCell;
    return [content.widgets.length, content.activeCellIndex, content.mode, node.contains(document.activeElement)];
}"""


@pytest.fixture(scope="module")
def page(lab):
    browser.write_notebook(lab.root / "explore.ipynb", CELLS)
    with lab.notebook("explore.ipynb") as page:
        browser.run_all(page)
        assert browser.cell_errors(page) == []
        page.locator(".pl-block").first.wait_for()
        yield page
        assert page.problems == []


def test_the_truth_comes_when_it_is_asked_for(page):
    browser.run_python(page, "asked.typed = ''; told.shown = False")
    question, answer = page.locator(".pg-root").nth(0), page.locator(".pg-root").nth(1)
    answer.get_by_text("show me").wait_for()
    assert "42.5" not in page.locator(".jp-Notebook").inner_text().replace(
        "told = asked.reveal(42.5, 'for a reason')", ""
    )
    printed = page.get_by_text("beside beside")
    assert not printed.is_visible(), "what the cell prints waits too"
    question.locator("input").fill("30")
    page.keyboard.press("Enter")
    answer.get_by_text("you said 30 %").wait_for()
    answer.get_by_text("it is 42.5 %").wait_for()
    answer.get_by_text("for a reason").wait_for()
    printed.wait_for()


def test_a_guess_typed_before_shift_enter_is_still_there(page):
    browser.run_python(page, "asked.typed = ''")
    question = page.locator(".pg-root").nth(0)
    cell = page.locator(".jp-Notebook .jp-Cell").nth(1)
    before = page.evaluate(COUNT, 1)
    question.locator("input").fill("36")
    page.keyboard.press("Shift+Enter")
    wait_until_run_again(page, 1, before)
    cell.get_by_text("Noted: 36 %").wait_for()
    assert cell.locator(".pg-root input").input_value() == "36"
    page.evaluate(
        """async () => {
            window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2;
            await window.jupyterapp.commands.execute('notebook:run-cell');
        }"""
    )
    page.get_by_text("you said 36 %").wait_for()


def wait_until_run_again(page, cell, before):
    """Wait for a higher number at the cell: none is there while it runs, and the old one until it begins."""
    page.wait_for_function(f"([cell, before]) => ({COUNT})(cell) > before", arg=[cell, before])


@pytest.mark.parametrize("inside", INSIDE)
def test_keys_do_what_they_do_everywhere_and_letters_do_nothing(page, inside):
    page.locator(inside).first.click()
    cells, cell, *_ = page.evaluate(STATE)
    for key in ("b", "d", "d"):
        page.keyboard.press(key)
    assert page.evaluate(STATE)[0] == cells
    # its own: while this cell's output is away, the page's first may be another cell's
    node = page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(inside).first
    before = page.evaluate(COUNT, cell)
    page.keyboard.press("Control+Enter")
    assert page.evaluate(STATE)[:3] == [cells, cell, "command"]
    wait_until_run_again(page, cell, before)
    node.click()
    page.keyboard.press("Escape")
    assert page.evaluate(STATE) == [cells, cell, "command", True]
    node.click()
    before = page.evaluate(COUNT, cell)
    page.keyboard.press("Shift+Enter")
    if inside in KEEPS_SHIFT_ENTER:
        browser.run_python(page, "")  # by now the cell would have run
        assert page.evaluate(STATE) == [cells, cell, "command", True]
        assert page.evaluate(COUNT, cell) == before
        return
    page.wait_for_function(f"() => ({STATE})()[1] === {min(cell + 1, cells - 1)}")
    wait_until_run_again(page, cell, before)


def test_shift_enter_in_the_number_field_makes_a_sequence(page):
    grid = page.locator(".pl-root:has(.pl-tables)").first
    rows = grid.locator("[data-sequence]")
    before = rows.count()
    grid.locator(".pl-toolbar .pl-amount").fill("3")
    page.keyboard.press("Shift+Enter")
    rows.nth(before).get_by_text("3 tokens").wait_for()
