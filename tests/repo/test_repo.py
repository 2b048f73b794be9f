"""The repository keeps its promises: one list of dependencies, a light import, notebooks fit to be committed."""

import base64
import io
import json
import re
import shlex
import subprocess
import sys

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image
from rattler import MatchSpec

import normalise_notebooks
from support.paths import ROOT, each_notebook

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
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


def test_public_names_can_be_imported():
    import pagedlab

    for name in pagedlab.__all__:
        assert getattr(pagedlab, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pagedlab.nonsense


def test_environment_installs_this_project_on_the_same_python():
    *specs, pip = ENVIRONMENT["dependencies"]
    assert [MatchSpec(spec, strict=True).name.normalized for spec in specs] == ["python", "pip", "pytorch"]
    assert specs[0] == "python" + PROJECT["requires-python"]
    torch = next(requirement for requirement in PROJECT["dependencies"] if requirement.startswith("torch"))
    assert specs[2] == torch.replace("torch", "pytorch"), "conda-forge's, which is the CPU build without a GPU"
    (install,) = pip["pip"]
    extras = re.fullmatch(r"-e \.\[(.+)\]", install)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_constraints_satisfy_every_range():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    listed = PROJECT["dependencies"] + [r for extra in PROJECT["optional-dependencies"].values() for r in extra]
    listed += [r for group in GROUPS.values() for r in group if isinstance(r, str)]
    for requirement in map(Requirement, listed):
        if requirement.name == PROJECT["name"]:
            assert requirement.extras <= set(PROJECT["optional-dependencies"])  # one extra takes in another
        elif requirement.marker is None or requirement.marker.evaluate():
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_pre_commit_has_the_ruff_of_the_constraints():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (rev,) = [repo["rev"] for repo in hooks if repo["repo"].endswith("/ruff-pre-commit")]
    assert f"ruff=={rev.removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()


def test_a_drawing_is_stored_as_github_shows_it():
    from pagedlab_lessons.drawing import label, svg
    from pagedlab_lessons.widgets.opening import MEDIA_TYPE, opening
    from pagedlab_lessons.widgets.page import stored

    data = stored(svg(300, 20, [label(0, 12, "two <words>")]), 'said "so"\nand more') | {"text/plain": "two words"}
    data[MEDIA_TYPE] = opening("explore", {"parts": []})  # stays for the site
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("display_data", data=data)])
    clean = normalise_notebooks.normalised(nbformat.v4.new_notebook(cells=[cell]))
    (output,) = clean.cells[0].outputs
    assert output.data.keys() == {"image/png", "text/plain", MEDIA_TYPE}
    size = output.metadata["image/png"]
    assert size["alt"] == 'said "so"'
    with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as picture:
        assert picture.size == (2 * size["width"], 2 * size["height"]), "sharp on a screen of twice the pixels"
        assert size["width"] > 300
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


@each_notebook
def test_notebook_links_lead_somewhere(path):
    """Every relative link in a notebook's text names a file of the repository."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "markdown":
            text = re.sub(r"`[^`]*`", "", "".join(cell["source"]))  # names[0](x) in code is no link
            for target in re.findall(r"\]\(([^)#\s]+)", text):
                if not target.startswith("http"):
                    assert (path.parent / target).exists(), target


def test_ci_names_files_and_fuzz_tests_that_there_are():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    for job in jobs.values():
        for step in job["steps"]:
            for word in step.get("run", "").split():
                assert not word.startswith("tests/") or (ROOT / word).exists(), f"ci.yml: there is no {word}"
    words = shlex.split(jobs["fuzz"]["steps"][-1]["run"])
    files = [ROOT / word for word in words if word.startswith("tests/")]
    assert len(files) == 3
    for file, test in zip(files, words[-1].split(" or "), strict=True):
        assert "LONG_RUN" in file.read_text()
        assert test in file.read_text(), f"{file.name} has no test that matches {test!r}"


def test_the_changelog_names_the_version():
    import pagedlab

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.startswith("# Changelog\n")
    assert f"version {pagedlab.__version__}" in changelog or f"## [{pagedlab.__version__}]" in changelog
