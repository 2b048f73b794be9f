"""Execute notebooks and say how long they and their longest cells take.

python tools/time_notebooks.py [--out FOLDER] notebooks/08_qwen.ipynb ...

Each runs in an empty folder, as a copied file would, with the model that PAGEDLAB_MODEL names. It can import the
modules beside it.

--out keeps what was executed, with what a page without a kernel plays (widgets/opening.py), which takes
longer than a reader's run; `--out notebooks` is what `make notebooks` commits, and a notebook that failed stays as
it was. Cells tagged "gpu" keep their outputs where there is no GPU, the others of such a notebook where there is one.
The notebook's metadata says what its code was when it ran; tests/notebooks/test_stored.py reads that.

nbclient executes and times. By hand is only what it does not know: whose outputs a GPU writes, and what the code was.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import os
import sys
import tempfile
import tokenize
from pathlib import Path

import nbformat
import torch
from cells import has_tag, moved
from colab_cell import is_for_colab
from dateutil.parser import isoparse
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError


def seconds_of(cell: nbformat.NotebookNode) -> float:
    """How long a cell ran, from the times that nbclient has written into its metadata."""
    times = cell.metadata.get("execution", {})
    began, ended = times.get("iopub.execute_input"), times.get("shell.execute_reply")
    if not began or not ended:
        return 0.0
    return (isoparse(ended) - isoparse(began)).total_seconds()


def is_of(cell: nbformat.NotebookNode, kind: str, mixed: bool) -> bool:
    """Whether a cell's output comes from that kind of machine: in a mixed notebook, those tagged "gpu" from a GPU's."""
    return not mixed or has_tag(cell, "gpu") == (kind == "gpu")


def code_of(notebook: nbformat.NotebookNode, kind: str) -> str:
    """A short name of what those code cells do whose outputs come from that kind of machine, "cpu" or "gpu".

    Comments and blank lines do not count, so one can be corrected without running the notebook again. The cell for
    Google Colab does not count either: it does nothing elsewhere.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and not is_for_colab(cell)]
    mixed = any(has_tag(cell, "gpu") for cell in code)
    sources = "\0".join(without_comments(cell.source) for cell in code if is_of(cell, kind, mixed))
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def without_comments(source: str) -> str:
    """The lines of a cell without comments and blank lines; as it is, if it is not plain Python."""
    lines = source.splitlines()
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):  # a magic
        return source
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def kept(notebook: nbformat.NotebookNode, stored: nbformat.NotebookNode) -> None:
    """Put the stored outputs back where they come from the other kind of machine, and note what ran here."""
    here = "gpu" if torch.cuda.is_available() else "cpu"
    ran = dict(stored.metadata.get("pagedlab", {}))
    mixed = any(has_tag(cell, "gpu") for cell in stored.cells)
    for cell, old in zip(notebook.cells, stored.cells, strict=True):
        if not is_of(cell, here, mixed):
            cell.update({key: old[key] for key in ("outputs", "execution_count") if key in old})
        elif cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not moved(output)]  # closed progress bars
    notebook.metadata["pagedlab"] = (ran if mixed else {}) | {here: code_of(notebook, here)}


def measure(path: Path, out: Path | None) -> tuple[list[float], str]:
    """Execute one notebook in an empty folder: the seconds of each cell, and the error, if one ended it."""
    notebook = nbformat.read(path, as_version=4)
    stored = copy.deepcopy(notebook)
    error = ""
    beside = os.pathsep.join([str(path.resolve().parent), os.environ.get("PYTHONPATH", "")])
    client = NotebookClient(notebook, timeout=1800, extra_arguments=["--log-level=ERROR"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            client.execute(cwd=folder, env={**os.environ, "PYTHONPATH": beside})
        except (CellExecutionError, DeadKernelError) as failed:
            error = f"{getattr(failed, 'ename', 'the kernel')}: {getattr(failed, 'evalue', 'died')}"
    seconds = [seconds_of(cell) for cell in notebook.cells]
    if out and not (error and out.resolve() == path.resolve().parent):
        out.mkdir(parents=True, exist_ok=True)
        kept(notebook, stored)
        nbformat.write(notebook, out / path.name)
    return seconds, error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the executed notebooks")
    parser.add_argument("notebooks", nargs="+", type=Path)
    arguments = parser.parse_args()
    model = os.environ.get("PAGEDLAB_MODEL", "")
    if model and Path(model).expanduser().exists():
        model = os.environ["PAGEDLAB_MODEL"] = str(Path(model).expanduser().resolve())
    print(f"PAGEDLAB_MODEL={model}, load {os.getloadavg()[0]:.1f} at the start")
    print(f"{'notebook':28}{'seconds':>9}{'longest cell':>22}", flush=True)
    if arguments.out:  # pages without a kernel play what the notebook stores
        os.environ["PAGEDLAB_OPENINGS"] = "1"
    bad = 0
    for path in arguments.notebooks:
        seconds, error = measure(path, arguments.out)
        longest = max(seconds)
        where = f"{longest:10.1f} s in cell {seconds.index(longest):3}"
        print(f"{path.stem:28}{sum(seconds):9.1f}{where}  {error}", flush=True)
        bad += bool(error)
    return bad


if __name__ == "__main__":
    sys.exit(main())
