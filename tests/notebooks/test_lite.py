"""JupyterLite: what a browser cannot run becomes text, and what stays runs in Chromium with no other server to ask.

The second part builds the whole site and takes minutes: `make test-lite` runs it (PAGEDLAB_TEST_LITE=1).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import browser
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from served import lite_folder, only_from, serving

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from build_lite import NOTEBOOKS, CannotFetch, closure, locked_files, sha256  # noqa: E402
from lite_notebooks import CELLS, NOTE, OWN, convert, for_browser, imports, without_torch  # noqa: E402


def code(*sources: str) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def converted(notebook: nbformat.NotebookNode) -> list[str]:
    """The sources of its cells, those that became text as "text"."""
    result = for_browser(notebook, lambda statement: "torch" not in statement, {"there.ipynb", "../data/README.md"})
    nbformat.validate(result)
    return ["text" if NOTE in cell.source else cell.source for cell in result.cells]


def test_a_cell_without_torch_stays_as_it_is() -> None:
    assert converted(code("import json\nx = json.dumps(1)", "x")) == ["import json\nx = json.dumps(1)", "x"]


def test_a_cell_that_imports_torch_and_those_that_use_its_names_become_text() -> None:
    cells = ["from torch import ones\na = ones(2)", "def f():\n    return a", "b = 2", "f()", "b"]
    assert converted(code(*cells)) == ["text", "text", "b = 2", "text", "b"]


def test_a_name_is_there_again_once_a_cell_without_torch_makes_it() -> None:
    assert converted(code("import torch\nx = torch.ones(1)", "x = 1", "x")) == ["text", "x = 1", "x"]


def test_names_inside_functions_are_nobody_elses() -> None:
    assert converted(code("import torch\ndef f(x):\n    i = torch\n    return i", "i = x = 1", "i + x"))[1:] == [
        "i = x = 1",
        "i + x",
    ]


def test_imports_that_later_cells_need_are_kept() -> None:
    cells = ["import torch\nimport json, random\nx = torch", "json.dumps(1)"]
    assert converted(code(*cells)) == ["text", f"{OWN}\nimport json", "json.dumps(1)"]


def test_functions_and_classes_that_later_cells_need_are_kept_if_they_rest_on_nothing_missing() -> None:
    kept = "@staticmethod\ndef f():\n    return 1  # why"
    source = f"import torch\nsize = 2\n{kept}\nclass C:\n    n = size\ndef g(): return C"
    assert converted(code(source, "f()", "g()", "C()", "size")) == [
        "text",
        f"{OWN}\n{kept}",
        "f()",
        "text",
        "text",
        "text",
    ]


def test_the_answer_to_a_guess_comes_along_folded() -> None:
    cell = new_code_cell("import torch")
    cell.outputs = [new_output("display_data", data={"text/html": "<details><summary>The answer</summary></details>"})]
    (text,) = for_browser(new_notebook(cells=[cell]), lambda statement: False, set()).cells
    assert "<details><summary>The answer" in text.source


def test_text_cells_show_code_and_stored_output() -> None:
    cell = new_code_cell("import torch\nprint(1)\ntorch")
    cell.outputs = [
        new_output("stream", text="1\n"),
        new_output("display_data", data={"image/png": "aGk=", "text/plain": "a picture"}),
        new_output("execute_result", data={"text/html": "<b>2</b>", "text/plain": "two"}),
        new_output("display_data", data={"image/png": "aGk="}, metadata={"image/png": {"alt": "a [small] drawing"}}),
    ]
    (text,) = for_browser(new_notebook(cells=[cell]), lambda statement: False, set()).cells
    assert text.cell_type == "markdown"
    for part in ("```python\nimport torch\nprint(1)\ntorch\n```", "```text\n1\n```", "```text\ntwo\n```"):
        assert part in text.source
    assert "![output](attachment:1.png)" in text.source
    assert "![a small drawing](attachment:3.png)" in text.source
    assert text.attachments == {f"{i}.png": {"image/png": "aGk="} for i in (1, 3)}


def test_links_to_what_does_not_come_along_become_plain_text() -> None:
    text = "[a](there.ipynb), [b](gone.ipynb#part), [c](https://example.org/x), [d](../data/README.md) [e](#here)"
    (cell,) = for_browser(
        new_notebook(cells=[new_markdown_cell(text)]), bool, {"there.ipynb", "../data/README.md"}
    ).cells
    assert cell.source == "[a](there.ipynb), b, [c](https://example.org/x), [d](../data/README.md) [e](#here)"


def test_each_import_is_tried_where_torch_is_missing() -> None:
    statements = imports(
        "import json\nfrom pagedlab import BlockPool, LLM\nfrom pagedlab.model import load_model\n%pip x"
    )
    works = without_torch(statements)
    assert [statement for statement in statements if works(statement)] == [
        "import json",
        "from pagedlab import BlockPool",
    ]


def test_our_notebooks_keep_what_a_browser_can_run(tmp_path: Path) -> None:
    names = [f"{name}.ipynb" for name in NOTEBOOKS]
    files = convert(ROOT / "notebooks", names, tmp_path)
    assert all((ROOT / "notebooks" / file).is_file() for file in files)
    lost = {}
    for name in names:
        before = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        after = nbformat.read(tmp_path / name, as_version=4)
        assert {cell.id for cell in before.cells} <= {cell.id for cell in after.cells}
        lost[name[:2]] = sum(NOTE in cell.source for cell in after.cells)
        first = next(cell for cell in after.cells if cell.cell_type == "code" or NOTE in cell.source)
        assert "explore(" in first.source, "its picture comes first, and can be moved"
        assert NOTE not in first.source
    assert (lost["01"], lost["02"], lost["03"]) == (0, 0, 0)  # 01 and 02: "no GPU, no PyTorch", they say
    assert lost["09"] == 3, "the flat arrays of a batch, which are torch's; all else is the scheduler's"
    assert 0 < lost["05"] < lost["06"]  # a model answers in 05, and 06 computes with tensors


def test_every_cell_for_the_browser_takes_the_place_of_one() -> None:
    files = sorted(CELLS.glob("*.py"))
    assert files
    for file in files:
        (path,) = (ROOT / "notebooks").glob(f"{file.stem[:2]}_*.ipynb")
        assert path.stem in NOTEBOOKS
        assert file.stem[3:] in {cell.id for cell in nbformat.read(path, as_version=4).cells}


def test_a_wheel_with_another_sha256_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = {
        "a": {"depends": ["B_c"], "sha256": sha256(b"a"), "file_name": "a.whl"},
        "b-c": {"depends": [], "sha256": sha256(b"b"), "file_name": "b.whl"},
        "other": {"depends": [], "sha256": sha256(b"o"), "file_name": "o.whl"},
    }
    entries = closure(lock, ("a",))
    assert set(entries) == {"a", "b-c"}
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "a.whl").write_bytes(b"a")
    (tmp_path / "server" / "b.whl").write_bytes(b"something else")
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("build_lite.PYODIDE_SERVER", f"{(tmp_path / 'server').as_uri()}/")
    monkeypatch.setattr("build_lite.pip", lambda *arguments: _empty_wheel(Path(arguments[3])))
    with pytest.raises(CannotFetch, match=r"b\.whl"):
        locked_files(entries, tmp_path / "cache")
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["a.whl"]


def _empty_wheel(folder: Path) -> None:
    (folder / "mirror.whl").write_bytes(b"PK\5\6" + bytes(18))  # a zip archive of no files


@pytest.fixture(scope="module")
def lite() -> Iterator[tuple[str, Any]]:
    """The address of the built site, and a Chromium."""
    folder = lite_folder()
    from playwright.sync_api import sync_playwright

    with serving(folder) as url, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        yield url, chromium
        chromium.close()


@contextmanager
def opened(lite: tuple[str, Any], name: str) -> Iterator[Any]:
    """A page with the notebook run from top to bottom, in which no other server was asked for anything."""
    url, chromium = lite
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    refused = only_from(url, context)
    page = context.new_page()
    page.goto(f"{url}notebooks/index.html?path=notebooks/{name}.ipynb", wait_until="domcontentloaded")
    page.wait_for_function("() => window.jupyterapp && document.querySelector('.jp-Notebook .jp-Cell')", timeout=60_000)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=180_000,
    )
    browser.run_all(page, timeout_s=240)
    yield page
    assert refused == []
    context.close()


@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_in_the_browser(lite: tuple[str, Any], name: str) -> None:
    with opened(lite, name) as page:
        assert browser.cell_errors(page) == []
        assert (
            browser.run_python(page, "import sys; print('torch' in sys.modules, sys.platform)") == "False emscripten\n"
        )
        picture = page.locator(".jp-CodeCell").first.locator(".jp-OutputArea :is(svg, img, canvas)").first
        picture.scroll_into_view_if_needed()
        assert picture.bounding_box()["height"] > 100
        if folder := os.environ.get("PAGEDLAB_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/lite_{name}.png")
        widgets = page.locator('[data-op="new"]')
        if name in ("02_block_pool", "03_copy_on_write"):
            assert widgets.count() >= 2
            used = page.locator('[data-stat="used"]').first
            before = used.inner_text()
            widgets.first.click()
            page.wait_for_function("([old, node]) => node.innerText !== old", arg=[before, used.element_handle()])
            assert int(used.inner_text()) > int(before)
