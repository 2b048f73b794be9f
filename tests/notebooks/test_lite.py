"""JupyterLite: what a browser cannot run becomes text, and what stays runs in Chromium with no other server to ask.

The second part builds the whole site and takes minutes: `make test-lite` runs it (PAGEDLAB_TEST_LITE=1).
"""

import ast
import builtins
import json
import os
import re
import subprocess
import symtable
import sys
from contextlib import contextmanager

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from build_lite import NOTEBOOKS, CannotFetch, closure, locked_files, sha256
from colab_cell import is_for_colab
from lite_notebooks import CELLS, NEEDS_TORCH, NOTE, STARTS, convert, for_browser
from notebook_sources import parsed
from support import browser
from support.pages import open_chromium
from support.paths import ROOT
from support.site import lite_folder, only_from, serving


def cell_of(source, needs_torch=False, **options):
    tags = [NEEDS_TORCH] if needs_torch else []
    return new_code_cell(source, metadata={"tags": tags}, **options)


def converted(*cells):
    """The sources of the cells for the browser, those that became text as "text"."""
    notebook = new_notebook(cells=list(cells))
    result = for_browser(notebook, set(), imports="import own")
    nbformat.validate(result)
    cells_after = [cell for cell in result.cells if cell.source != STARTS]
    return ["text" if NOTE in cell.source else cell.source for cell in cells_after]


TORCH = cell_of("import torch", needs_torch=True)


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ([cell_of("x = 1"), cell_of("x")], ["x = 1", "x"]),
        ([cell_of("import json"), TORCH, cell_of("x")], ["import json", "text", "import own", "x"]),
        ([TORCH, cell_of("import torch", needs_torch=True)], ["text", "import own", "text"]),
    ],
    ids=["others stay", "one becomes text", "imports come once"],
)
def test_a_cell_with_the_tag_becomes_text(cells, shown):
    assert converted(*cells) == shown


ABSENT = ("torch", "transformers", "triton", "safetensors", "tokenizers")
TRY_IMPORTS = f"""
import json, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # None: importing it raises ImportError
failed = []
for statement in json.load(sys.stdin):
    try:
        exec(statement, {{}})
    except ImportError:
        failed.append(statement)
print(json.dumps(failed))
"""


def imports(tree):
    """The import statements at the top level of a cell, one name each."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found += [ast.unparse(ast.Import([alias])) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [ast.unparse(ast.ImportFrom(node.module, [alias], node.level)) for alias in node.names]
    return found


def failing_without_torch(statements):
    """The import statements that fail where `ABSENT` cannot be imported; each is tried, in one new process."""
    asked = json.dumps(sorted(set(statements)))
    run = subprocess.run([sys.executable, "-c", TRY_IMPORTS], input=asked, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def names_of(tree):
    """The global names that a cell makes, those that it uses itself, and those that its functions use."""
    top = symtable.symtable(ast.unparse(tree), "cell", "exec")
    made = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    later = set()
    inner = list(top.get_children())
    while inner:
        scope = inner.pop()
        inner += scope.get_children()
        later |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    return made, used - made, later - made


def failing_cells(notebook, failing):
    """The ids of the code cells that import PyTorch, or use a name that no code cell makes.

    A function may use what a later cell makes, and what a cell that became text imports where it calls the function.
    """
    trees = {cell.id: parsed(cell) for cell in notebook.cells if cell.cell_type == "code"}
    text = "\n".join(cell.source for cell in notebook.cells if NOTE in cell.source)
    known = {*dir(builtins), "display"}
    everywhere = known.union(*(names_of(tree)[0] for tree in trees.values()))
    everywhere |= set(re.findall(r"import .*?(\w+)$", text, re.MULTILINE))
    found = []
    for name, tree in trees.items():
        made, used, later = names_of(tree)
        if failing & set(imports(tree)) or used - known or later - everywhere:
            found.append(name)
        known |= made
    return found


def test_each_cell_that_needs_torch_has_the_tag(tmp_path):
    names = [f"{name}.ipynb" for name in NOTEBOOKS]
    convert(ROOT / "notebooks", names, tmp_path)
    notebooks = {name: nbformat.read(tmp_path / name, as_version=4) for name in names}
    cells = [cell for notebook in notebooks.values() for cell in notebook.cells if cell.cell_type == "code"]
    failing = failing_without_torch(statement for cell in cells for statement in imports(parsed(cell)))
    lacking = {name: ids for name, book in notebooks.items() if (ids := failing_cells(book, failing))}
    assert not lacking, f'these cells lack the tag "{NEEDS_TORCH}", or a name in a file of tools/lite_cells'


def test_a_cell_that_lacks_the_tag_is_found():
    cells = [
        cell_of("from torch import ones\na = ones(2)", needs_torch=True),
        cell_of("print(a)", id="uses"),
        cell_of("def f():\n    return ones(b)", id="never-made"),
        cell_of("import torch", id="torch"),
        cell_of("def f():\n    return ones(a)"),
        cell_of("a = 1"),
        cell_of("print(a)"),
    ]
    notebook = for_browser(new_notebook(cells=cells), set())
    assert failing_cells(notebook, {"import torch", "from torch import ones"}) == ["uses", "never-made", "torch"]


def test_the_answer_to_a_guess_comes_along_folded():
    cell = cell_of("import torch", needs_torch=True)
    cell.outputs = [new_output("display_data", data={"text/html": "<details><summary>The answer</summary></details>"})]
    text, _ = for_browser(new_notebook(cells=[cell]), set()).cells
    assert "<details><summary>The answer" in text.source


def test_text_cells_show_code_and_stored_output():
    cell = cell_of("import torch\nprint(1)\ntorch", needs_torch=True)
    cell.outputs = [
        new_output("stream", text="1\n"),
        new_output("display_data", data={"image/png": "aGk=", "text/plain": "a picture"}),
        new_output("execute_result", data={"text/html": "<b>2</b>", "text/plain": "two"}),
        new_output("display_data", data={"image/png": "aGk="}, metadata={"image/png": {"alt": "a [small] drawing"}}),
    ]
    text, _ = for_browser(new_notebook(cells=[cell]), set()).cells
    assert text.cell_type == "markdown"
    for part in ("```python\nimport torch\nprint(1)\ntorch\n```", "```text\n1\n```", "```text\ntwo\n```"):
        assert part in text.source
    assert "![output](attachment:1.png)" in text.source
    assert "![a small drawing](attachment:3.png)" in text.source
    assert text.attachments == {f"{i}.png": {"image/png": "aGk="} for i in (1, 3)}


def test_links_to_what_does_not_come_along_become_plain_text():
    text = "[a](there.ipynb), [b](gone.ipynb#part), [c](https://example.org/x), [d](../data/README.md) [e](#here)"
    cell, _ = for_browser(new_notebook(cells=[new_markdown_cell(text)]), {"there.ipynb", "../data/README.md"}).cells
    assert cell.source == "[a](there.ipynb), b, [c](https://example.org/x), [d](../data/README.md) [e](#here)"


def test_each_import_is_tried_where_torch_is_missing():
    tree = parsed(
        cell_of("import json\nfrom pagedlab import BlockPool, LLM\nfrom pagedlab.model import load_model\n%pip x")
    )
    works = [statement for statement in imports(tree) if statement not in failing_without_torch(imports(tree))]
    assert works == ["import json", "from pagedlab import BlockPool"]


def test_our_notebooks_keep_what_a_browser_can_run(tmp_path):
    names = [f"{name}.ipynb" for name in NOTEBOOKS]
    files = convert(ROOT / "notebooks", names, tmp_path)
    assert all((ROOT / "notebooks" / file).is_file() for file in files)
    lost = {}
    for name in names:
        before = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        after = nbformat.read(tmp_path / name, as_version=4)
        assert {cell.id for cell in before.cells if not is_for_colab(cell)} <= {cell.id for cell in after.cells}
        lost[name[:2]] = sum(NOTE in cell.source for cell in after.cells)
        first = next(cell for cell in after.cells if cell.cell_type == "code" or NOTE in cell.source)
        assert "explore(" in first.source, "its picture comes first, and can be moved"
        assert NOTE not in first.source
    assert (lost["01"], lost["02"], lost["03"]) == (0, 0, 0)  # 01 and 02: "no GPU, no PyTorch", they say
    assert lost["09"] == 3, "the flat arrays of a batch, which are torch's; all else is the scheduler's"
    assert 0 < lost["05"] < lost["06"]  # a model answers in 05, and 06 computes with tensors


def test_every_cell_for_the_browser_takes_the_place_of_one():
    files = sorted(CELLS.glob("*.py"))
    assert files
    for file in files:
        (path,) = (ROOT / "notebooks").glob(f"{file.stem[:2]}_*.ipynb")
        assert path.stem in NOTEBOOKS
        ids = {cell.id for cell in nbformat.read(path, as_version=4).cells}
        assert file.stem[3:] in ids | {"imports"}


def test_a_wheel_with_another_sha256_is_refused(tmp_path):
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
    with pytest.raises(CannotFetch, match=r"b\.whl"):
        locked_files(entries, tmp_path / "cache", f"{(tmp_path / 'server').as_uri()}/")
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["a.whl"]


def test_what_cannot_be_fetched_is_named_and_what_is_there_is_not_fetched(tmp_path):
    entries = {"a": {"sha256": sha256(b"a"), "file_name": "a.whl"}}
    nowhere = f"{(tmp_path / 'nowhere').as_uri()}/"
    with pytest.raises(CannotFetch, match=r"nowhere/a\.whl.*--wheels FOLDER"):
        locked_files(entries, tmp_path, nowhere)
    (tmp_path / "a.whl").write_bytes(b"a")
    locked_files(entries, tmp_path, nowhere)


@pytest.fixture(scope="module")
def lite():
    """The address of the built site, and a Chromium."""
    with serving(lite_folder()) as url, open_chromium() as chromium:
        yield url, chromium


@contextmanager
def opened(lite, name):
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
def test_notebook_runs_in_the_browser(lite, name):
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
