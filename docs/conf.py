"""Sphinx: the notebooks with their stored outputs, the pages of docs/, and the reference. `make site` builds it.

The source folder is the repository, so that links between notebooks, docs and code hold here as they do there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from docutils import nodes
from ipython_pygments_lexers import IPython3Lexer
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's pagedlab, installed or not

project = "pagedlab"
author = "the pagedlab contributors"
copyright = f"{author}, Apache-2.0"
release = re.search(r'__version__ = "(.+)"', (ROOT / "pagedlab" / "__init__.py").read_text())[1]  # type: ignore[index]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb", "data/*/README.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "dist", "tests", "**/.ipynb_checkpoints"]

nb_execution_mode = "off"  # what people see is what the notebooks hold
nb_ipywidgets_js = {}  # would come from another server; the stored pictures stand for the widgets
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # a page may skip a level of headings

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    ("What to run", "params_style"),
    ("Limits", "params_style"),
    ("Your own classes", "params_style"),
    ("For measurements", "params_style"),
]
default_role = "literal"  # docstrings have `names` in single backticks

html_theme = "furo"
html_title = "pagedlab"
html_copy_source = False
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_extra_path = []
LIVE = ROOT / "build" / "live"  # where `make lite` builds
if LIVE.is_dir():
    html_extra_path.append(str(LIVE))
    tags.add("lite")  # type: ignore[name-defined]  # noqa: F821 - Sphinx puts it here


def visit_math(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Browsers draw MathML themselves: no script, from here or from elsewhere."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    writer.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def say_pictures(app: Sphinx, page: nodes.document) -> None:
    """myst-nb names a stored picture by its hash, and leaves aside the words that the notebook has for it."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    said = defaultdict[str, list[str]](list)  # of pictures that are the same too
    for output in [
        output
        for cell in json.loads(path.read_text())["cells"]
        for output in cell.get("outputs", [])
    ]:
        for kind, options in output.get("metadata", {}).items():
            if "alt" in options:
                data = base64.b64decode("".join(output["data"][kind]))
                said[hashlib.sha256(data).hexdigest()].append(options["alt"])
    for picture in page.findall(nodes.image):
        if alts := said[Path(picture["uri"]).stem]:
            picture["alt"] = alts.pop(0)


def level_captions(_: Sphinx, page: str, template: str, context: dict[str, Any], *__: Any) -> None:
    """The theme's captions say that they are headings, and not of which level."""
    if tree := context.get("furo_navigation_tree"):
        context["furo_navigation_tree"] = tree.replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_lexer("python", IPython3Lexer)  # cells may have magics
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("doctree-read", say_pictures)
    app.connect(
        "html-page-context", level_captions, priority=900
    )  # after the theme, which makes the tree
    return {"parallel_read_safe": True, "parallel_write_safe": True}
