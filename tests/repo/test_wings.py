"""One can delete a wing, and the rest runs: the core writes on the tiny model without any of them."""

import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from support.paths import ROOT
from support.warm import processes

WINGS = ("accelerate", "distributed", "serving", "widgets", "checks", "lessons")
WINGS += ("speculative", "recipes", "eviction", "hub", "logits", "trace")
CORE = """
from pagedlab import LLM, SamplingParams
from pagedlab.model import load_model
model = load_model(MODEL, verbose=False)
texts = set()
for backend in ("concat", "safe", "online", "torch"):
    llm = LLM(model, num_blocks=32, attention_backend=backend, verbose=False)
    llm.warm_up()
    (done,) = llm.generate("The old mill", SamplingParams(max_tokens=4, ignore_eos=True))
    assert llm.pool.num_used == 0
    texts.add(done.outputs[0].text)
assert len(texts) == 1, texts
"""
ALSO = {  # what else must run without a wing
    "accelerate": "from pagedlab.widgets import BlockPoolWidget; BlockPoolWidget().do('new', n=20)",
    "distributed": "from pagedlab.speculative import PromptLookup; LLM(model, speculative=PromptLookup())",
    "widgets": "from pagedlab.serving.app import create_app; create_app(llm)",
    "serving": "from pagedlab.checks import check; from pagedlab.widgets import BlockPoolWidget; BlockPoolWidget()",
    "recipes": "assert len(llm.generate('a', SamplingParams(max_tokens=4, n=2, temperature=1.0))[0].outputs) == 2",
    "eviction": "from pagedlab.recipes.beam import BeamSearch",
    "lessons": "from pagedlab.serving.app import create_app",
    "speculative": "from pagedlab.widgets import BlockPoolWidget",
    "trace": "from pagedlab.serving.app import create_app; create_app(llm); from pagedlab.checks import check",
}


def run(folder, code):
    """Run code with the package in that folder; its error goes to a file there."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        exec(code, {})
    except BaseException:
        (folder / "error").write_text(traceback.format_exc())
        raise


@pytest.mark.parametrize("gone", [*[(wing,) for wing in WINGS], WINGS], ids=lambda gone: "+".join(gone)[:24])
def test_the_rest_runs_without(gone, tmp_path):
    shutil.copytree(ROOT / "pagedlab", tmp_path / "pagedlab", ignore=shutil.ignore_patterns("__pycache__"))
    for wing in gone:
        shutil.rmtree(tmp_path / "pagedlab" / wing)
    model = f"MODEL = {str(ROOT / 'data' / 'tiny-qwen2')!r}\n"
    code = model + CORE + (ALSO.get(gone[0], "") if len(gone) == 1 else "")
    code = f"import pagedlab\nassert not pagedlab.__file__.startswith({str(ROOT)!r})\n" + code
    process = processes().Process(target=run, args=(tmp_path, code))
    process.start()
    process.join()
    error = tmp_path / "error"
    assert process.exitcode == 0, error.read_text() if error.exists() else process.exitcode


def test_an_arrow_that_points_upward_fails_the_lint(tmp_path):
    shutil.copytree(ROOT / "pagedlab", tmp_path / "pagedlab", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": False}
    kept = subprocess.run(lint, **options)
    assert kept.returncode == 0, kept.stdout
    with (tmp_path / "pagedlab" / "batch.py").open("a") as file:
        file.write("\nfrom pagedlab.lessons.colors import NEUTRAL  # noqa\n")
    broken = subprocess.run(lint, **options)
    assert broken.returncode != 0
    assert "pagedlab.batch" in broken.stdout
    assert "3 broken" in broken.stdout
