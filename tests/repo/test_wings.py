"""The small module runs alone, in an empty folder."""

import shutil

from support import warm
from support.paths import ROOT

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


def test_the_small_module_runs_alone(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "recipes")
    shutil.copytree(ROOT / "pagedlab", tmp_path / "pagedlab", ignore=ignored)
    warm.run(ALONE, tmp_path)
