"""The cell that sets up Google Colab: it fetches the series and leaves Colab's PyTorch as it is."""

from __future__ import annotations

import nbformat
from cells import has_tag

COLAB = "colab"  # id and tag of the cell that sets up Google Colab, after the title and the navigation
COLAB_SOURCE = """\
import os
import sys

repository = "{repository}"  # "Source" in pyproject.toml, which `make notebooks` writes here
if "google.colab" in sys.modules and not os.path.exists("../data"):
    if not repository:
        raise SystemExit("Write the address of your copy, https://github.com/you/pagedlab, between the quotes above.")
    !git clone --quiet --depth 1 {{repository}} pagedlab
    %cd -q pagedlab/notebooks
    %pip install --quiet "transformers>=5.17,<6" anywidget xxhash
    %pip install --quiet --no-deps ..\
"""


def is_for_colab(cell: nbformat.NotebookNode) -> bool:
    """Whether this is the code cell that sets up Google Colab."""
    return cell.cell_type == "code" and has_tag(cell, COLAB)


def colab_cell(repository: str) -> nbformat.NotebookNode:
    """The folded cell. `repository` is the address that the series is published at, or nothing."""
    source = COLAB_SOURCE.format(repository=repository)
    metadata = {"jupyter": {"source_hidden": True}, "tags": [COLAB]}
    return nbformat.v4.new_code_cell(source, id=COLAB, metadata=metadata)
