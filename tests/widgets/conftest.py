"""One JupyterLab for all browser tests of a run: starting it takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import browser
import pytest


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Lab]:
    """A lab over an empty folder, with the repository's notebooks under notebooks/; skips where no browser is."""
    why = browser.missing()
    if why and not os.environ.get("PAGEDLAB_REQUIRE_BROWSER"):
        pytest.skip(why)
    assert not why, why
    root = tmp_path_factory.mktemp("lab")
    (root / "notebooks").symlink_to(browser.REPO / "notebooks")
    with browser.jupyter_lab(root) as lab:
        yield lab
