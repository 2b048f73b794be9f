"""Make executed notebooks comparable: no timings, no counters, no widget state, nothing that changes run by run.

python tools/normalise_notebooks.py [--check] notebook.ipynb ...

Outputs stay, since they are what people browse. `--check` changes nothing and fails if a file is not normal.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat
from nbstripout import strip_output

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def normalised(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy with outputs kept and everything else that differs between two runs taken away."""
    clean = strip_output(copy.deepcopy(notebook), keep_output=True, keep_count=False, keep_id=True)
    clean.metadata = nbformat.from_dict(METADATA)
    for cell in clean.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type != "code":
            continue
        cell.outputs = merged(cell.outputs)
        for output in cell.outputs:
            data = output.get("data", {})
            # Without the state behind it a view is dead weight; the picture beside it is what people see.
            data.pop(WIDGET_VIEW, None)
            for text in (output, data):
                for key in ("text", "text/plain", "text/html"):
                    if key in text:
                        text[key] = ADDRESS.sub("", text[key])
    return clean


def merged(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join neighbouring pieces of one stream: how a kernel cuts its prints is chance."""
    result: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = result[-1] if result else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            result.append(output)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which files are not normal")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    bad = []
    for path in arguments.files:
        before = path.read_text()
        after = nbformat.writes(normalised(nbformat.reads(before, as_version=4))) + "\n"
        if after != before:
            bad.append(path)
            if not arguments.check:
                path.write_text(after)
    if bad and arguments.check:
        print("not normal, run `make notebooks`:", *bad)
    return 1 if bad and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
