"""The repository keeps its promises: one list of dependencies, a light import, notebooks fit to be committed."""

import ast
import base64
import io
import json
import re
import subprocess
import sys

import nbformat
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pagedlab_lessons.drawing import label, svg
from pagedlab_lessons.widgets.page import stored
from PIL import Image

import normalise_notebooks
import pagedlab
from measure_code import tomllib
from support.paths import NOTEBOOKS, ROOT, each_notebook

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
GROUPS = PYPROJECT["dependency-groups"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


PURE = ["blocks", "prefix", "scheduler", "sampling_params", "shipped"]
PURE += ["recipes.eviction", "recipes.swap", "recipes.trace"]
LESSONS = [f"pagedlab_lessons.{name}" for name in ("memory", "traces", "checks", "widgets")]
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""


def test_modules_of_the_first_notebooks_do_not_import_torch():
    subprocess.run([sys.executable, "-c", IMPORT_ALL, *(f"pagedlab.{name}" for name in PURE), *LESSONS], check=True)


def test_an_old_python_can_read_the_set_up():
    """Its main program then says which is needed."""
    source = (ROOT / "tools" / "setup_env.py").read_bytes().decode("ascii")
    ast.parse(source, feature_version=(3, 6))


def test_constraints_satisfy_every_range_and_conda_installs_this_project():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    listed = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values(), *GROUPS.values()]
    for requirement in [Requirement(text) for texts in listed for text in texts if isinstance(text, str)]:
        if requirement.name == PROJECT["name"]:
            assert requirement.extras <= set(PROJECT["optional-dependencies"])  # one extra takes in another
        elif requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"}):
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    python, _, torch, pip = ENVIRONMENT["dependencies"]
    assert python == "python" + PROJECT["requires-python"]
    assert torch.replace("pytorch", "torch") in PROJECT["dependencies"]
    (install,) = pip["pip"]
    assert set(re.fullmatch(r"-e \.\[(.+)\]", install)[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_a_drawing_is_stored_as_github_shows_it():
    data = stored(svg(300, 20, [label(0, 12, "two <words>")]), 'said "so"\nand more')
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("display_data", data=data)])
    clean = normalise_notebooks.normalised(nbformat.v4.new_notebook(cells=[cell]))
    (output,) = clean.cells[0].outputs
    size = output.metadata["image/png"]
    assert (list(output.data), size["alt"]) == (["image/png"], 'said "so"')
    with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as picture:
        assert picture.size == (2 * size["width"], 2 * size["height"]), "sharp on a screen of twice the pixels"
        assert len(picture.getcolors()) > 10, "words are drawn, their edges soft"
    assert normalise_notebooks.normalised(clean) == clean


def test_notebooks_are_normalised(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["normalise_notebooks.py", "--check", *map(str, NOTEBOOKS)])
    assert not normalise_notebooks.main()


@each_notebook
def test_notebook_is_fit_to_read(path):
    """Short cells, no stored error, no widget state, outputs there, nothing of the machine it ran on."""
    text = path.read_text()
    notebook = json.loads(text)
    assert "widgets" not in notebook["metadata"]
    assert len(text) < 1_500_000
    assert any(cell.get("outputs") for cell in notebook["cells"])
    assert not re.search(r"/(home|root|work|Users|tmp)/", text)
    for i, cell in enumerate(notebook["cells"]):
        lines = "".join(cell["source"]).splitlines()
        if cell["cell_type"] == "code":
            is_folded = cell["metadata"].get("jupyter", {}).get("source_hidden")
            assert is_folded or len(lines) <= 25, f"cell {i} has {len(lines)} lines of code"
            assert not any(output["output_type"] == "error" for output in cell["outputs"]), f"cell {i} stores an error"
            assert "!" not in "".join(line[0] for line in lines if line), f"cell {i} runs a shell command"
        elif "<details" not in "".join(lines) and "|---" not in "".join(lines):
            assert len(lines) <= 15, f"cell {i} has {len(lines)} lines of text"


def test_the_changelog_names_the_version():
    assert pagedlab.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
