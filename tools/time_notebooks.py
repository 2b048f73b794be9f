"""Execute notebooks and say how long they take: seconds in all and of processor time, longest cell, longest silence.

python tools/time_notebooks.py [--out FOLDER] [--over 3] notebooks/08_qwen.ipynb ...

Each runs in an empty folder, as a copied file would, with the model that PAGEDLAB_MODEL names. A silence is time in
which a cell prints, draws and moves nothing. --over N lists every cell of more than N seconds. The processor's time
tells what a busy machine made of it: with OMP_NUM_THREADS=1 it is about what a cell takes on a quiet one.

--out keeps what was executed; `--out notebooks` is what `make notebooks` commits, and a notebook that failed stays as
it was. Cells tagged "gpu" keep their outputs where there is no GPU, the others of such a notebook where there is one.
The notebook's metadata says what its code was when it ran; tests/notebooks/test_stored.py reads that.
Only nbclient and ipykernel are needed.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import os
import sys
import tempfile
import time
import tokenize
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError


class Timed(NotebookClient):
    """Remembers of each cell its seconds, those of the processor, and the longest time between two messages of it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds: dict[int, float] = {}
        self.processor: dict[int, float] = {}
        self.silence: dict[int, float] = {}

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        self.heard(cell_index)
        return super().process_message(msg, cell, cell_index)

    def heard(self, index: int) -> None:
        now = time.perf_counter()
        self.silence[index] = max(self.silence.get(index, 0.0), now - self.last)
        self.last = now

    async def async_execute_cell(self, cell: nbformat.NotebookNode, cell_index: int, **options: Any) -> Any:
        self.last = start = time.perf_counter()
        busy = self.worked()
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            self.heard(cell_index)
            self.seconds[cell_index] = time.perf_counter() - start
            self.processor[cell_index] = self.worked() - busy

    def worked(self) -> float:
        """Seconds of processor time of the kernel and of all that it started."""
        with suppress(psutil.Error):
            kernel = psutil.Process(self.km.provisioner.pid)
            times = kernel.cpu_times()
            children = sum(sum(child.cpu_times()[:4]) for child in kernel.children(recursive=True))
            return sum(times[:4]) + children
        return 0.0


def is_of(cell: nbformat.NotebookNode, kind: str, mixed: bool) -> bool:
    """Whether a cell's output comes from that kind of machine: in a mixed notebook, those tagged "gpu" from a GPU's."""
    return not mixed or ("gpu" in cell.metadata.get("tags", [])) == (kind == "gpu")


def code_of(notebook: nbformat.NotebookNode, kind: str) -> str:
    """A short name of what those code cells do whose outputs come from that kind of machine, "cpu" or "gpu".

    Comments and blank lines do not count: who corrects one need not run the notebook again.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    mixed = any("gpu" in cell.metadata.get("tags", []) for cell in code)
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
    mixed = any("gpu" in cell.metadata.get("tags", []) for cell in stored.cells)
    for cell, old in zip(notebook.cells, stored.cells, strict=True):
        if not is_of(cell, here, mixed):
            cell.update({key: old[key] for key in ("outputs", "execution_count") if key in old})
    notebook.metadata["pagedlab"] = (ran if mixed else {}) | {here: code_of(notebook, here)}


def measure(path: Path, out: Path | None) -> tuple[Timed, str]:
    """Execute one notebook in an empty folder; the error, if one ended it."""
    notebook, error = nbformat.read(path, as_version=4), ""
    stored = nbformat.from_dict(copy.deepcopy(notebook))
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--log-level=ERROR"]
        client = Timed(notebook, timeout=1800, resources={"metadata": {"path": folder}}, extra_arguments=quiet)
        try:
            client.execute()
        except (CellExecutionError, DeadKernelError) as failed:
            error = f"{getattr(failed, 'ename', 'the kernel')}: {getattr(failed, 'evalue', 'died')}"
    if out and not (error and out.resolve() == path.resolve().parent):
        out.mkdir(parents=True, exist_ok=True)
        kept(notebook, stored)
        nbformat.write(notebook, out / path.name)
    return client, error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the executed notebooks")
    parser.add_argument("--over", type=float, default=20.0, help="list cells that take longer, in seconds (20)")
    parser.add_argument("notebooks", nargs="+", type=Path)
    arguments = parser.parse_args()
    model = os.environ.get("PAGEDLAB_MODEL", "")
    if model and Path(model).expanduser().exists():
        model = os.environ["PAGEDLAB_MODEL"] = str(Path(model).expanduser().resolve())
    print(f"PAGEDLAB_MODEL={model}, load {os.getloadavg()[0]:.1f} at the start")
    print(f"{'notebook':28}{'seconds':>9}{'processor':>11}{'longest cell':>22}{'longest silence':>22}", flush=True)
    bad = 0
    for path in arguments.notebooks:
        client, error = measure(path, arguments.out)
        worst = ""
        for times in (client.seconds, client.silence):
            index, t = max(times.items(), key=lambda item: item[1])
            worst += f"{t:10.1f} s in cell {index:3}"
        print(
            f"{path.stem:28}{sum(client.seconds.values()):9.1f}{sum(client.processor.values()):11.1f}{worst}  {error}",
            flush=True,
        )
        for index, t in client.seconds.items():
            if t > arguments.over:
                busy, quiet = client.processor[index], client.silence[index]
                print(f"    cell {index}: {t:.1f} s, processor {busy:.1f}, silent for {quiet:.1f}", flush=True)
        bad += bool(error)
    return bad


if __name__ == "__main__":
    sys.exit(main())
