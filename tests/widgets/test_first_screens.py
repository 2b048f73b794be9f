"""Notebooks in JupyterLab: the first cell alone makes a picture that is whole, moves and lights up; and the quiz.

tests/test_notebooks.py runs all cells. Here cells that are not run are left out: to draw them takes most of the time.
"""

from contextlib import contextmanager

import nbformat
import pytest
from pagedlab_lessons.widgets.quiz import quiz_of

from support import browser
from support.paths import ROOT

pytestmark = pytest.mark.browser

# Run the cells with these ids, or the first code cell.
RUN = """async (ids) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const first = notebook.widgets.find((cell) => cell.model.type === 'code').model.id;
    for (const id of ids ?? [first]) {
        notebook.activeCellIndex = notebook.widgets.findIndex((cell) => cell.model.id === id);
        notebook.deselectAll();
        await window.jupyterapp.commands.execute('notebook:run-cell');
    }
}"""

# How each picture is moved: a control, the keys that it gets (none: a click); and what it says before and after.
STEP_BACK = '[data-name="step"]', ["Home"]
MOVES = {
    "01_fragmentation": ('[data-name="blocks_on_demand"]', ["Space"], "No memory for user 12", "12 of 12 users fit"),
    "02_block_pool": ('[data-name="text"]', ["End", "x"], "pieces", "orderx"),
    "03_copy_on_write": ('[data-name="forget_to_copy"]', ["Space"], "from the other story", "took a copy"),
    "04_sampling_and_beams": (*STEP_BACK, "Step 6 of 12:", "Step 1 of 12:"),
    "05_prefix_caching": ('[data-name="second"]', ["End", *" Or not."], "kind", "Or"),
    "06_online_softmax": ('[data-name="late_score"]', ["End"], "score", "1,000"),
    "07_the_paged_kernel": ('[data-name="rung"]', ["End"], "Step 1 of 13:", "Step 1 of 2:"),
    "08_qwen": (*STEP_BACK, "Step 9:", "Step 1:"),
    "09_continuous_batching": (*STEP_BACK, "After 40 steps", "After 0 steps"),
    "10_serving_qwen": ('[data-name="steps"]', ["End"], "windows of 1 step:", "windows of 16 steps:"),
    "11_two_devices": (*STEP_BACK, "Pool of rank 1", "Pool of rank 1"),
    "12_speculative_decoding": ('[data-name="moment"]', ["End"], "Check 9 of 16", "Check 16 of 16"),
}
ALONE = {
    "01_fragmentation",
    "07_the_paged_kernel",
    "10_serving_qwen",
    "12_speculative_decoding",
}  # the last part lights up by itself


def shortened(lab, name, ids):
    """A copy of a notebook up to its first code cell, and the cells with these ids: its path in the lab."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
    first = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    notebook.cells = [cell for i, cell in enumerate(notebook.cells) if i <= first or cell.id in ids]
    path = f"short-{name}.ipynb"
    nbformat.write(notebook, lab.root / path)
    return path


@contextmanager
def first_cell_run(lab, path, root, text):
    """Open a notebook and run its first code cell alone; the page and the picture, once it says this."""
    with lab.notebook(path, width=1440, height=900) as page:
        page.evaluate(RUN)
        picture = page.locator(root).first
        picture.get_by_text(text).locator("visible=true").first.wait_for(timeout=120_000)
        box = picture.bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] < 900, f"not on one screen: {box}"
        yield page, picture
        assert browser.cell_errors(page) == []
        assert page.problems == []


def click_timeline(page):
    timeline = page.locator('.px-root:has([data-say^="step 2, tokens"]):has([data-say^="block 13"])').first
    timeline.locator('[data-say^="step 2, tokens"]').click()
    timeline.locator('[data-say^="r0, step 2, decode"]').wait_for()


TIMELINE = ["09-04", "09-03", "09-22", "09-30", "09-31"]  # the cells of 09 that make a timeline


def answer_quiz(page, name):
    """By keyboard: a wrong answer, then the right one; and no key reaches the notebook."""
    cells = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
    before, question = page.evaluate(cells), quiz_of(name)[0]
    for right, said in ((False, "Wrong. "), (True, "Right. ")):
        place = next(i for i, answer in enumerate(question.answers) if answer.right == right)
        page.locator(".pq-box").first.locator(".pq-answer").nth(place).focus()
        for key in ("b", "d", "d", "Enter"):
            page.keyboard.press(key)
        page.locator(".pq-box").first.get_by_text((said + question.answers[place].why).replace("`", "")).wait_for()
    assert page.evaluate(cells) == before


@pytest.mark.parametrize("name", MOVES)
def test_the_first_cell_alone_makes_the_picture_and_a_timeline_further_down_works(lab, name):
    control, keys, before, after = MOVES[name]
    ids = ["quiz"] if name != "09_continuous_batching" else [*TIMELINE, "quiz"]
    path = shortened(lab, name, ids)
    with first_cell_run(lab, path, ".px-root", before) as (page, root):
        assert page.locator(".jp-CodeCell").first.locator(".jp-InputArea-editor").count() == 0, "its code is not folded"
        if name != "06_online_softmax":  # a plot has no parts
            part = root.locator("[data-link]").last
            part.hover()
            assert root.locator(".pl-lit[data-link]").count() > (name not in ALONE)
            assert root.locator(".px-say").inner_text() == part.get_attribute("data-say")
        for key in keys:
            root.locator(control).press(key)
        if not keys:
            root.locator(control).click()
        root.get_by_text(after).locator("visible=true").first.wait_for(timeout=15_000)
        page.evaluate(RUN, ids)
        if TIMELINE[0] in ids:
            click_timeline(page)
        answer_quiz(page, name[:2])


def test_13_a_server_streams_to_three(lab):
    with first_cell_run(lab, shortened(lab, "13_serve_it", []), ".ps-root", "aborted"):
        pass
