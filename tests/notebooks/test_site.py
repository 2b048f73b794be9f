"""The documentation site: built from the stored outputs without a warning, and sufficient to itself."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import pagedlab

for needed in ("sphinx", "myst_nb", "furo", "latex2mathml"):
    pytest.importorskip(needed, reason="the site needs pip install 'pagedlab[site]'")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
# What a browser loads of itself: not links, which wait for a click.
LOADED = re.compile(r"""(?:\bsrc=|<link[^>]*\bhref=|url\(|@import\s)\s*["']?\s*(?:https?:)?//[^\s"')]+""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", ROOT / "docs"]
    command += ["-D", "html_extra_path="]  # without JupyterLite, which may have been built here
    run = subprocess.run(
        [*command, "-d", folder / "trees", ROOT, folder / "html"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    subprocess.run([sys.executable, ROOT / "tools" / "build_front.py", folder / "html"], check=True)
    return folder / "html"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_all_its_outputs(site: Path, path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
    code = [cell for cell in cells if cell.cell_type == "code" and "colab" not in cell.metadata.get("tags", [])]
    assert page.count('class="cell_input') == len(code)
    folded = [cell for cell in code if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert page.count('<details class="admonition hide above-input">') == len(folded)
    assert "google.colab" not in page
    assert '<a href="../index.html">pagedlab</a>' in page
    assert "_downloads" in page, "the notebook itself can be downloaded"
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    alts = {html.unescape(alt) for alt in re.findall(r'alt="([^"]*)"', page)}
    for output in outputs:
        if output.output_type == "stream":
            assert output.text.strip() in text
        for said in (options["alt"] for options in output.get("metadata", {}).values() if "alt" in options):
            assert said in alts, "what the picture shows, for who cannot see it"
    assert len(re.findall(r'<img [^>]*src="\.\./_images/', page)) >= pictures


def test_nothing_is_loaded_from_another_server(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".js")]
    found = {match for file in files for match in LOADED.findall(file.read_text(encoding="utf-8", errors="replace"))}
    assert len(files) > len(NOTEBOOKS)
    assert not found


def test_every_page_has_an_icon_and_there_is_a_page_for_what_is_not_there(site: Path) -> None:
    for file in (site / "docs" / "index.html", site / "notebooks" / "00_start_here.html", site / "404.html"):
        assert "favicon.svg" in file.read_text(encoding="utf-8")
    page = (site / "notebooks" / "03_copy_on_write.html").read_text(encoding="utf-8")
    assert '<meta property="og:title" content="03 · Copy-on-write"' in page


def test_formulas_need_no_script(site: Path) -> None:
    page = (site / "notebooks" / "01_fragmentation.html").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in page


def test_the_reference_names_everything_public(site: Path) -> None:
    page = (site / "docs" / "api.html").read_text(encoding="utf-8")
    named = set(re.findall(r'id="pagedlab\.[\w.]+\.(\w+)"', page))
    assert set(pagedlab.__all__) <= named
    assert {"PrefixCache", "match", "insert", "paged_decode", "paged_attention", "generate", "stream"} <= named


def test_the_front_page_leads_to_every_notebook(site: Path) -> None:
    page = (site / "docs" / "index.html").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f'href="../notebooks/{path.stem}.html"' in page
    front = (site / "index.html").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f'href="notebooks/{path.stem}.html"' in front
    assert 'href="docs/index.html"' in front
