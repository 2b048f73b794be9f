"""What is stored in the notebooks, and so what people browse: which model and card it is from, and that it is current.

`make notebooks` with PAGEDLAB_MODEL naming a real Qwen, and `make notebooks-gpu` on a machine with a GPU, write it.
"""

import ast
import re
from pkgutil import resolve_name

import nbformat
import pytest
from pagedlab_lessons.show import show_source

from build_front import MAP_ROW, TAKES
from support.paths import NOTEBOOKS, ROOT, each_notebook
from time_notebooks import code_of

BY_NUMBER = {path.name[:2]: path for path in NOTEBOOKS}
LOADED = re.compile(r"^model: (\S+) on \S+ in \S+", re.MULTILINE)
CARD = {
    "07": r"^kernels run on NVIDIA ",
    "08": r"^NVIDIA .* texts equal generate's in bfloat16",
    "10": r"^this machine: NVIDIA ",
}
SHOWN = re.compile(r"^# (pagedlab/\S+)\.py: (\S+)$\n", re.MULTILINE)


def cells_of(path):
    return nbformat.read(path, 4).cells


def outputs(number):
    """What the cells of a notebook printed or returned, as text."""
    shown = [output for cell in cells_of(BY_NUMBER[number]) for output in cell.get("outputs", [])]
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in shown]


@pytest.mark.parametrize("number", ["00", "04", "05", "08", "09", "12", "13"])
def test_a_real_qwen_speaks(number):
    loaded = LOADED.findall("\n".join(outputs(number)))
    assert any(re.search(r"qwen2\.5", name, re.IGNORECASE) for name in loaded), f"loaded were {loaded}"


@pytest.mark.parametrize("number", CARD)
def test_the_card_is_named(number):
    """10 may have been executed on a CPU: its figures of a GPU are read from recorded results."""
    printed = "\n".join(outputs(number))
    assert "The benchmark failed" not in printed
    if number == "10" and "gpu" not in nbformat.read(BY_NUMBER["10"], 4).metadata["pagedlab"]:
        pytest.skip("10 was executed on a CPU: run `make notebooks-gpu` where a GPU is")
    assert re.search(CARD[number], printed, re.MULTILINE), "run `make notebooks-gpu` where a GPU is"


@pytest.mark.parametrize("number", BY_NUMBER)
def test_the_cells_are_those_that_ran(number):
    notebook = nbformat.read(BY_NUMBER[number], 4)
    ran = notebook.metadata["pagedlab"]
    # What 10 says of a GPU is read from recorded results, so it may have run on either.
    allowed = {"07": [["gpu"]], "08": [["cpu", "gpu"]], "10": [["gpu"], ["cpu"]]}.get(number, [["cpu"]])
    assert sorted(ran) in allowed
    assert ran == {kind: code_of(notebook, kind) for kind in ran}


HEART = ("blocks", "prefix", "scheduler", "batch", "kv_cache", "sampling", "engine")


def functions_of(module):
    """The functions of a file, and the methods of its classes, but for what `print` says of an object."""
    for node in ast.parse((ROOT / "pagedlab" / f"{module}.py").read_text(encoding="utf-8")).body:
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef) and each.name != "__repr__":
                yield f"pagedlab/{module}", each.name if each is node else f"{node.name}.{each.name}"


def test_every_function_of_the_engine_is_shown():
    """By itself, or with its class."""
    shown = {found for number in BY_NUMBER for text in outputs(number) for found in SHOWN.findall(text)}
    missing = {
        name
        for module in HEART
        for path, name in functions_of(module)
        if not shown & {(path, name), (path, name.split(".")[0])}
    }
    # The reference has the arguments that `LLM.__init__` checks and keeps.
    assert missing == {"LLM.__init__"}, "a notebook shows each where its idea is built"


@pytest.mark.parametrize("number", BY_NUMBER)
def test_the_source_that_is_shown_is_the_source_that_there_is(number):
    for text in outputs(number):
        head, *parts = SHOWN.split(text)
        if head or not all(parts):  # no source, or a diff, whose two headings have nothing between them
            continue
        for path, name, source in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            item = resolve_name(f"{path.replace('/', '.')}:{name}")
            _, _, present = show_source(item).text.partition("\n")
            assert source.rstrip("\n") == present, f"{path}.py: {name} was changed after notebook {number} was run"


@pytest.mark.parametrize("number", sorted(BY_NUMBER)[:15])  # 15 ends with the rest of our engine
def test_no_notebook_dumps_source(number):
    """25 lines of code a cell, 150 a notebook, and none after the section of the last exercise."""
    shown = [SHOWN.sub("", text) for text in outputs(number) if SHOWN.match(text)]
    lengths = [len(re.findall(r"^.*\S", re.sub(r'(?s)""".*?"""', "", code), re.MULTILINE)) for code in shown]
    assert max(lengths, default=0) <= 25
    assert sum(lengths) <= 150
    *_, last = re.split(r"\n## (?:Exercise|Puzzle)", words(BY_NUMBER[number]))
    assert "show_source(" not in last.partition("\n## ")[2]


@pytest.mark.parametrize("number", BY_NUMBER)
def test_a_cell_that_draws_a_figure_shows_it(number):
    for cell in cells_of(BY_NUMBER[number]):
        if cell.cell_type == "code" and re.search(r"^fig, .* = figure\(", cell.source, re.MULTILINE):
            shown = [output.get("data", {}) for output in cell.outputs]
            has_figure = any("image/png" in data or "<img" in "".join(data.get("text/html", "")) for data in shown)
            assert has_figure, f"{cell.id} shows no figure"


@each_notebook
def test_a_notebook_leads_to_its_neighbours_and_to_the_map(path):
    """The links are written by hand; a new notebook changes those of its neighbours."""
    here = NOTEBOOKS.index(path)
    links = [f"[map]({NOTEBOOKS[0].name})"] if here else ["The map is in this notebook"]
    if here:
        links.insert(0, f"[‹ {title(NOTEBOOKS[here - 1])}]({NOTEBOOKS[here - 1].name})")
    if path != NOTEBOOKS[-1]:
        links.append(f"[{title(NOTEBOOKS[here + 1])} ›]({NOTEBOOKS[here + 1].name})")
        [on] = [cell.source for cell in cells_of(path) if cell.source.startswith("**Next:**")]
        assert f"]({NOTEBOOKS[here + 1].name})" in on
    assert cells_of(path)[1].source == " | ".join(links)


def words(path):
    return "\n".join(cell.source for cell in cells_of(path))


def title(path):
    return words(path).splitlines()[0].removeprefix("# ")


def test_the_map_has_every_notebook_and_its_minutes():
    page = words(NOTEBOOKS[0])
    rows = MAP_ROW.findall(page)
    assert [stem for _, _, stem, _ in rows] == [path.stem for path in NOTEBOOKS]
    for number, _, stem, question in rows:
        for minutes in TAKES.findall(words(BY_NUMBER[number])):
            assert f"({stem}.ipynb) | {question} | {minutes} |" in page
