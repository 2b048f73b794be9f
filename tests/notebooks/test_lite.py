"""JupyterLite: what a browser cannot run becomes text with what was stored, and the rest runs in Chromium.

The last test builds the site, needs the network and takes minutes: `make test-lite` runs it (PAGEDLAB_TEST_LITE=1).
"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from build_lite import INSTALL, NOTE, NOTEBOOKS, STARTS, for_browser
from colab_cell import colab_cell
from support import browser
from support.pages import open_chromium
from support.paths import ROOT
from support.site import lite_folder, serving
from support.smaller import read_smaller

WHOLE = ("01_fragmentation", "02_block_pool")  # no cell of theirs needs PyTorch
PICTURE = {"image/png": "aGVsbG8="}


def test_a_cell_that_needs_torch_and_those_that_build_on_it_become_text_with_what_they_showed():
    drawn = new_output("display_data", PICTURE, metadata={"image/png": {"alt": "a [blue] block"}})
    cells = [
        new_markdown_cell("# Title"),
        colab_cell("https://github.com/you/pagedlab"),
        new_code_cell("import torch", outputs=[drawn]),
        new_code_cell("torch.ones(3)", outputs=[new_output("execute_result", {"text/plain": "[1, 1, 1]"})]),
        new_code_cell("print(1)"),
    ]
    shown = for_browser(new_notebook(cells=cells))
    nbformat.validate(shown)
    title, starts, install, first, second, last = shown.cells
    assert (title.source, starts.source, install.source) == ("# Title", STARTS, INSTALL)
    assert first.source == f"{NOTE}\n\n```python\nimport torch\n```\n\n![a blue block](attachment:0.png)"
    assert first.attachments == {"0.png": PICTURE}
    assert second.source == f"{NOTE}\n\n```python\ntorch.ones(3)\n```\n\n```text\n[1, 1, 1]\n```"
    assert (last.cell_type, last.source) == ("code", "print(1)")


def test_only_links_that_lead_somewhere_stay():
    shown = {
        "[02](02_block_pool.ipynb#slots)": "[02](02_block_pool.ipynb#slots)",
        "[Qwen](08_qwen.ipynb)": "Qwen",
        "[paper](https://arxiv.org/abs/2309.06180)": "[paper](https://arxiv.org/abs/2309.06180)",
        "![a picture](attachment:0.png)": "![a picture](attachment:0.png)",
    }
    title, _, _, *others = for_browser(new_notebook(cells=[*map(new_markdown_cell, shown)])).cells
    assert [cell.source for cell in (title, *others)] == [*shown.values()]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_keeps_what_runs_without_torch(name):
    shown = for_browser(read_smaller(ROOT / "notebooks" / f"{name}.ipynb"))
    nbformat.validate(shown)
    live = sum(cell.cell_type == "code" for cell in shown.cells)
    text = sum(NOTE in cell.source for cell in shown.cells)
    assert live > 10
    assert text == 0 or name not in WHOLE


@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_the_browser(name):
    with serving(lite_folder()) as url, open_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}notebooks/index.html?path=notebooks/{name}.ipynb", wait_until="domcontentloaded")
        page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
        browser.run_all(page, timeout_s=240)
        assert browser.cell_errors(page) == []
        assert browser.run_python(page, "import sys; print(sys.platform)") == "emscripten\n"
        if name in WHOLE[1:]:
            used = page.locator('[data-stat="used"]').first
            page.locator('[data-op="new"]').first.click()
            page.wait_for_function("node => Number(node.innerText) > 0", arg=used.element_handle())
