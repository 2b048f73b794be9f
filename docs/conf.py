"""Sphinx: the notebooks with their stored outputs, the pages of docs/, and the reference. `make site` builds it.

The source folder is the repository, so that links between notebooks, docs and code hold here as they do there.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from docutils import nodes
from ipython_pygments_lexers import IPython3Lexer
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parent.parent
# the checkout's pagedlab, installed or not
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "docs")]

import site_openings  # noqa: E402
from build_front import CARD, site_address  # noqa: E402
from build_lite import NOTEBOOKS as IN_THE_BROWSER  # noqa: E402
from colab_cell import is_for_colab  # noqa: E402
from normalise_notebooks import colab_address, repository  # noqa: E402
from site_words import for_a_page  # noqa: E402

project = "pagedlab"
author = "the pagedlab contributors"
copyright = f"{author}, Apache-2.0"
release = re.search(r'__version__ = "(.+)"', (ROOT / "pagedlab" / "__init__.py").read_text())[1]  # type: ignore[index]

extensions = [
    "myst_nb",
    "notfound.extension",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
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
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # a page may skip a level of headings

autodoc_typehints = "description"  # a phone shows a signature without types in a few lines
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # a list, since a property among the attributes has an entry already
autosummary_generate = False  # tables only, no page a name
default_role = "literal"  # docstrings have `names` in single backticks

html_theme = "furo"
html_title = "pagedlab"
html_copy_source = False
html_favicon = "static/favicon.svg"
html_theme_options = {"source_repository": repository()}
html_math_renderer = "mathml"
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css", "openings.css"]
html_js_files = [("site.js", {"defer": "defer"}), ("openings.js", {"type": "module"})]
LIVE = ROOT / "build" / "live"  # where `make lite` builds
html_extra_path = [str(LIVE)] if LIVE.is_dir() else []
copybutton_selector = "div.cell_input pre, div.highlight-sh pre, div.highlight-python pre"
# the site may be published below a folder
notfound_urls_prefix = urlsplit(site_address()).path or None
ogp_site_url = site_address()
ogp_image = CARD  # build_front.py puts it there
ogp_image_alt = "Blocks of memory, coloured by chat"
ogp_social_cards = {"enable": False}  # a card would be a picture of the title
ogp_description_length = 200
NO_KEYS = "Here you play pictures, open hints and answer the questions at the end. To write code, run the notebook."
NO_SCRIPT = "<noscript>Without JavaScript, the drawings on this page do not play.</noscript>"
# what read_notebook adds is no description of a page
WAYS = re.compile(rf"Start page · [^\"]*?Install ({re.escape(NO_KEYS)} )?")
TEXT_IN_MATH = re.compile(r"\\text\{[^}]*\}")
# Each picture is a link to its file. The picture's description would be the name of the link.
LINKED_PICTURE = re.compile(r'(<a class="[^"]*image-reference"[^>]*)(>\s*<img [^>]*?alt=("[^"]*"))')
EMPTY_HEADER = re.compile(r"<th( [^>]*)?>(?:<p></p>)?</th>")


def visit_math(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Browsers draw MathML themselves: no script, from here or from elsewhere."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    # LaTeX needs the backslash of \text{head\_dim}; latex2mathml would show it.
    formula = TEXT_IN_MATH.sub(lambda found: found[0].replace(r"\_", "_"), node.astext())
    writer.body.append(convert(formula, display=display))
    raise nodes.SkipNode


def read_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fold the cells that are folded in JupyterLab, leave out the one for Colab, and say where the page can be run.

    Where a text is true in JupyterLab alone, the page has other words.
    """
    if Path(app.env.doc2path(docname)).suffix != ".ipynb":
        return
    stem = docname.rpartition("/")[2]
    notebook = json.loads(source[0])
    cells = [cell for cell in notebook["cells"] if not is_for_colab(nbformat.from_dict(cell))]
    for cell in cells:
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"].setdefault("tags", []).append("hide-input")
    for cell in cells:
        if cell["cell_type"] == "code":
            describe_picture(cell)
            cell["outputs"] = site_openings.with_places(cell["outputs"])
        else:
            cell["source"] = for_a_page(stem, "".join(cell["source"]))
        if cell["id"].startswith("navigation"):
            cell["source"] = without_search("", cell["source"])
    title, _, text = "".join(cells[0]["source"]).partition("\n")
    ways = f"{ways_to_run(stem)}\n\n{NO_KEYS}\n\n{NO_SCRIPT}"
    cells[0]["source"] = f"{title}\n\n{without_search('ways', ways)}\n{text}"
    source[0] = json.dumps(notebook | {"cells": cells})


def describe_picture(cell: dict[str, Any]) -> None:
    """Give a cell's picture the words that the notebook has for it: myst-nb reads them in another place."""
    for output in cell["outputs"]:
        if picture := output.get("metadata", {}).get("image/png"):
            cell["metadata"]["mystnb"] = {"image": {"alt": picture["alt"]}}


def without_search(kind: str, text: str) -> str:
    """Put a text in a box of a kind. It is the same on each page, so every search would find it."""
    return f":::{{container}} {kind} no-search\n{text}\n:::"


def write_openings(app: Sphinx, error: Exception | None) -> None:
    """Write what the pages of notebooks play."""
    if error or app.builder.format != "html":
        return
    paths = [Path(app.env.doc2path(docname)) for docname in app.env.found_docs]
    notebooks = sorted(path for path in paths if path.suffix == ".ipynb")
    site_openings.write(Path(app.outdir, "_static"), notebooks)


def ways_to_run(stem: str) -> str:
    """Links below a notebook's title: run it in the browser or in Colab, download it, or go to the front page."""
    links = ['<a href="../index.html">Start page</a>']
    if html_extra_path and stem in IN_THE_BROWSER:
        links.append(
            f'<a href="../lite/notebooks/index.html?path=notebooks/{stem}.ipynb">Run in the browser</a>'
        )
    if where := colab_address(stem):
        links.append(f'<a href="{where}">Open in Colab</a>')
    links.append(f"{{download}}`Download <{stem}.ipynb>`")
    links.append('To run it on your machine: <a href="../docs/install.html">Install</a>')
    return " · ".join(links)


def finish_page(_: Sphinx, page: str, template: str, context: dict[str, Any], *__: Any) -> None:
    """Lead back to the front page, and give assistive technology what theme and extensions leave out."""
    context["master_doc"] = "index"  # the theme's brand links to it: the page of build_front.py
    for part in ("furo_navigation_tree", "body"):
        if text := context.get(part):
            # Captions are headings without a level. A summary's label has other words than its text.
            levelled = text.replace('role="heading"', 'role="heading" aria-level="2"')
            relabelled = levelled.replace(' aria-label="Toggle hidden content"', "")
            named = LINKED_PICTURE.sub(
                r'\1 aria-label="open the picture" aria-description=\3\2', relabelled
            )
            # the corner of a table whose rows have names is no header
            context[part] = EMPTY_HEADER.sub(r"<td\1></td>", named)
    context["metatags"] = WAYS.sub("", context.get("metatags", ""))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_lexer("python", IPython3Lexer)  # cells may have magics
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", read_notebook)
    app.connect("build-finished", write_openings)
    app.connect(
        "html-page-context", finish_page, priority=900
    )  # after the theme, which makes the tree
    return {"parallel_read_safe": True, "parallel_write_safe": True}
