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
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]  # the checkout's pagedlab, installed or not

from build_front import site_address  # noqa: E402
from build_lite import NOTEBOOKS as IN_THE_BROWSER  # noqa: E402
from normalise_notebooks import repository  # noqa: E402

project = "pagedlab"
author = "the pagedlab contributors"
copyright = f"{author}, Apache-2.0"
release = re.search(r'__version__ = "(.+)"', (ROOT / "pagedlab" / "__init__.py").read_text())[1]  # type: ignore[index]

extensions = [
    "myst_nb",
    "notfound.extension",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxext.opengraph",
]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb", "data/*/README.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "dist", "node_modules", "tests", "**/.ipynb_checkpoints"]

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
html_favicon = "static/favicon.svg"
html_theme_options = {"source_repository": repository()} if repository() else {}
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_extra_path = []
copybutton_selector = "div.cell_input pre, div.highlight-sh pre, div.highlight-python pre"
notfound_urls_prefix = None  # the site may be published below a folder
ogp_site_url = site_address()
ogp_image = "docs/stage.webp"
ogp_social_cards = {"enable": False}  # a card would be a picture of the title
ogp_description_length = 200
LIVE = ROOT / "build" / "live"  # where `make lite` builds
if LIVE.is_dir():
    html_extra_path.append(str(LIVE))
    tags.add("lite")  # type: ignore[name-defined]  # noqa: F821 - Sphinx puts it here


def visit_math(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Browsers draw MathML themselves: no script, from here or from elsewhere."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    writer.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def read_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fold the cells that are folded in JupyterLab, leave out the one for Colab, and say where the page can be run."""
    if Path(app.env.doc2path(docname)).suffix != ".ipynb":
        return
    notebook = json.loads(source[0])
    cells = [cell for cell in notebook["cells"] if "colab" not in cell["metadata"].get("tags", [])]
    for cell in cells:
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"].setdefault("tags", []).append("hide-input")
    first = "".join(cells[0]["source"])
    cells[0]["source"] = f"{first}\n\n{ways_to_run(docname.rpartition('/')[2])}"
    source[0] = json.dumps(notebook | {"cells": cells})


def ways_to_run(stem: str) -> str:
    """Links above a notebook's page: run it in the browser or in Colab, download it, or go to the front page."""
    links = ['<a href="../index.html">pagedlab</a>']
    if tags.has("lite") and stem in IN_THE_BROWSER:  # type: ignore[name-defined]  # noqa: F821
        links.append(
            f'<a href="../lite/notebooks/index.html?path=notebooks/{stem}.ipynb">Run in the browser</a>'
        )
    if source := repository():
        colab = source.replace("https://github.com", "https://colab.research.google.com/github")
        links.append(f'<a href="{colab}/blob/main/notebooks/{stem}.ipynb">Open in Colab</a>')
    links.append(f"{{download}}`Download <{stem}.ipynb>`")
    return " · ".join(links)


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
    app.connect("source-read", read_notebook)
    app.connect("doctree-read", say_pictures)
    app.connect(
        "html-page-context", level_captions, priority=900
    )  # after the theme, which makes the tree
    return {"parallel_read_safe": True, "parallel_write_safe": True}
