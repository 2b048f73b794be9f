"""A cell of 08 or 09 that is interrupted: it ends, the books are whole, and the next run writes what it should.

JupyterLab's stop button sends the kernel the same signal. PAGEDLAB_MODEL names the model; PAGEDLAB_PRESSES=20
interrupts that often.
"""

import os

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from support import warm
from support.paths import ROOT

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
# A kernel ignores an interrupt before its cell begins, so the cell itself starts the clock.
PRESS = """import os, signal, threading
threading.Timer({}, os.kill, [os.getpid(), signal.SIGINT]).start()
"""
CHECK = """
def tokens(completions):
    return [[output.token_ids for output in completion.outputs] for completion in completions]

assert not llm.num_unfinished and not llm.pool.num_used
assert tokens({again}) == tokens({fresh})
assert not llm.num_unfinished and not llm.pool.num_used
llm.pool.check([])
"""


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_stopped(name, rng, monkeypatch):
    monkeypatch.setattr("jupyter_client.provisioning.local_provisioner.launch_kernel", warm.Kernel)
    needed, long, again, fresh = CELLS[name]
    cells = [c.source for c in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells if c.cell_type == "code"]
    setup = [next(cell for cell in cells if word in cell) for word in needed]
    check = CHECK.format(again=again, fresh=fresh)
    presses = [cell for _ in range(PRESSES) for cell in (PRESS.format(rng.uniform(0.1, 0.9)) + long, check)]
    notebook = new_notebook(cells=[new_code_cell(source) for source in [*setup, *presses]])
    NotebookClient(notebook, allow_errors=True).execute()
    errors = [[output.ename for output in cell.outputs if "ename" in output] for cell in notebook.cells]
    assert errors == [*len(setup) * [[]], *PRESSES * [["KeyboardInterrupt"], []]]
