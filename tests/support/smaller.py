"""Notebooks whose long cells compute less: the same lines, in less time. `make test-qwen` runs them as they are."""

from pathlib import Path

import nbformat

# By notebook, of cells that compute for seconds: what they compute, and what the same lines compute sooner.
SMALLER = {
    "01": {"first(1000)": "first(60)", "first(400)": "first(60)", '"sharegpt", 500': '"sharegpt", 60'},
    "02": {"first(400)": "first(60)"},
    "04": {"range(40)": "range(4)", "steps=120": "steps=80", "in tqdm(tales": "in tqdm(tales[:1]"},
    "05": {"shared_prompts(1000": "shared_prompts(60", "range(60)": "range(6)"},
    "06": {"1024, 4096, 16384]": "1024]", "16_384": "1_024"},
    "07": {"max_tokens=8,": "max_tokens=2,"},
    "09": {"first(60)": "first(9)"},
    "10": {"--requests 40 --shortest 8 --longest 256": "--requests 2 --shortest 2 --longest 5"},
    "12": {"seconds=4": "seconds=0.2", "max_tokens=60": "max_tokens=16"},
    "13": {"range(100)": "range(2)"},
    "14": {"2.0], 60": "2.0], 6", "range(3)": "range(1)", "[200, 2000]": "[200, 300]"},
}


def read_smaller(path: Path):
    """Raises an AssertionError if the notebook has lost a line that is replaced."""
    notebook = nbformat.read(path, 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for long, short in SMALLER.get(path.name[:2], {}).items():
        assert any(long in cell.source for cell in cells), f"{path.name} has no {long}"
        for cell in cells:
            cell.source = cell.source.replace(long, short)
    return notebook
