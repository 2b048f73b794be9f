"""A notebook copied alone into an empty folder runs: what it reads it finds through the package.

test_without_triton.py runs two of them that way; here all are read.
"""

import re

import nbformat

from support.paths import each_notebook

# A string that is, or an open() or Path() of, a path beside or above the notebook.
OUTSIDE = re.compile(r"""["']\.\.?/|(?:open|Path)\(["'](?!/|~)[\w.-]+/""")


@each_notebook
def test_no_cell_reads_a_file_beside_the_notebook(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    cells = [cell for cell in cells if "colab" not in cell.metadata.get("tags", [])]
    found = [cell.source for cell in cells if OUTSIDE.search(cell.source)]
    assert not found, f"ask pagedlab.shipped (results, data_folder, benchmark) for it:\n{found}"
