"""The small module runs alone, in an empty folder."""

import os
import shutil
import sys
import traceback

from support.paths import ROOT
from support.warm import processes

ALONE = f"""
import pagedlab
from pagedlab import LLM, SamplingParams
from pagedlab.model import load_model
assert not pagedlab.__file__.startswith({str(ROOT)!r})
model = load_model({str(ROOT / "data" / "tiny-qwen2")!r}, verbose=False)
texts = set()
for backend in ("concat", "safe", "online", "torch"):
    llm = LLM(model, num_blocks=32, attention_backend=backend, verbose=False)
    done, samples = llm.generate(["The old mill"] * 2, [SamplingParams(max_tokens=4), SamplingParams(4, 1.0, n=2)])
    assert llm.pool.num_used == 0
    assert len(samples.outputs) == 2
    texts.add(done.outputs[0].text)
assert len(texts) == 1, texts
"""


def run(folder, code):
    """Run code with the package in that folder; its error goes to a file there."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        exec(code, {})
    except BaseException:
        (folder / "error").write_text(traceback.format_exc())
        raise


def test_the_small_module_runs_alone(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "recipes")
    shutil.copytree(ROOT / "pagedlab", tmp_path / "pagedlab", ignore=ignored)
    process = processes().Process(target=run, args=(tmp_path, ALONE))
    process.start()
    process.join()
    error = tmp_path / "error"
    assert process.exitcode == 0, error.read_text() if error.exists() else process.exitcode
