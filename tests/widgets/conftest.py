"""One JupyterLab for all browser tests of a run: starting it takes longer than most of them."""

import pytest

from support.browser import jupyter_lab
from support.pages import open_chromium
from support.paths import ROOT


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A lab over an empty folder, with the repository's notebooks under notebooks/."""
    root = tmp_path_factory.mktemp("lab")
    (root / "notebooks").symlink_to(ROOT / "notebooks")
    with open_chromium() as chromium, jupyter_lab(root, chromium) as lab:
        yield lab
