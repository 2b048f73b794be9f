"""JupyterLab's stop button in 08 and 09: the cell ends, the books are whole, and the next run writes what it should.

With -s it says how long each press took. PAGEDLAB_MODEL names the model; PAGEDLAB_PRESSES=20 presses that often.
"""

import os
import random
import time

import nbformat
import pytest

from support import browser
from support.paths import ROOT

pytestmark = pytest.mark.browser

PRESSES = int(os.environ.get("PAGEDLAB_PRESSES", "2"))
# Words in the cells of the notebook that are needed; then a cell that takes long, what is asked of the same engine
# after it was stopped, and what asks the same of a fresh one.
CELLS = {
    "08_qwen": (
        ["questions =", "load_model(dtype"],
        """from pagedlab_lessons.progress import moving
llm = LLM(model, num_blocks=256, prefix_caching=False)
with moving(llm):
    llm.generate(chats, SamplingParams(max_tokens=1900, ignore_eos=True))""",
        "llm.generate(chats, SamplingParams(max_tokens=8))",
        "LLM(model, num_blocks=256, prefix_caching=False, verbose=False).generate(chats, SamplingParams(max_tokens=8))",
    ),
    "09_continuous_batching": (
        ["StaticBatch", "def engine("],
        """from pagedlab_lessons.widgets import Timeline
llm = engine(num_blocks=400)
with Timeline(llm):
    llm.generate(prompts[:6], asks([1900] * 6))""",
        "llm.generate(prompts[:6], asks([9] * 6))",
        "engine(num_blocks=64).generate(prompts[:6], asks([9] * 6))",
    ),
}
CHECK = """
def tokens(completions):
    return [[output.token_ids for output in completion.outputs] for completion in completions]

assert not llm.num_unfinished and not llm.pool.num_used
assert tokens({again}) == tokens({fresh})
assert not llm.num_unfinished and not llm.pool.num_used
llm.pool.check([])
print("right")
"""
RUN = """async (index) => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    window.cell = window.jupyterapp.commands.execute('notebook:run-cell');
}"""
STATUS = "(status) => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === status"
OUTPUTS = """(index) => window.jupyterapp.shell.currentWidget.content.widgets[index].model.outputs.toJSON()
    .map((output) => output.ename || output.text).join(' ')"""


def shortened(name, folder):
    """Write the notebook's cells that the test needs and its own two; how many are the notebook's."""
    needed, long, again, fresh = CELLS[name]
    cells = [c.source for c in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells if c.cell_type == "code"]
    setup = [next(cell for cell in cells if word in cell) for word in needed]
    browser.write_notebook(folder / f"{name}.ipynb", [*setup, long, CHECK.format(again=again, fresh=fresh)])
    return len(setup)


@pytest.mark.parametrize("name", CELLS)
def test_the_stop_button(lab, name, seed):
    rng, first = random.Random(seed), shortened(name, lab.root)
    with lab.notebook(f"{name}.ipynb", shares_kernel=True) as page:

        def run(index):
            page.evaluate(RUN, index)
            page.evaluate("() => window.cell")
            return page.evaluate(OUTPUTS, index)

        for index in range(first):
            assert "Error" not in run(index)
        for _ in range(PRESSES):
            page.evaluate(RUN, first)
            page.wait_for_function(STATUS, arg="busy")
            page.wait_for_timeout(rng.uniform(200, 900))
            assert page.evaluate(STATUS, "busy"), "it ended before the button was pressed"
            pressed = time.perf_counter()
            page.locator('[data-jp-item-name="interrupt"]').first.click()
            page.wait_for_function(STATUS, arg="idle", timeout=30_000)
            page.locator(".jp-Cell").nth(first).get_by_text("KeyboardInterrupt").last.wait_for()
            print(f"{name}: {time.perf_counter() - pressed:.2f} s")
            assert "KeyboardInterrupt" in page.evaluate(OUTPUTS, first)
            assert run(first + 1).strip().endswith("right"), page.evaluate(OUTPUTS, first + 1)
        assert page.problems == []
