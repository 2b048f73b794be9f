"""A page in headless Chromium, without JupyterLab."""

import atexit
import os
from contextlib import contextmanager
from functools import cache

import pytest

from support import browser

in_browser = pytest.mark.browser  # of a test that needs one


@cache
def shared_chromium():
    """The one Chromium of a run, until the process ends: it takes longer to start than many tests last.

    Skips the test where there is none. PAGEDLAB_REQUIRE_BROWSER=1 makes that a failure.
    """
    why = browser.missing()
    if why and not os.environ.get("PAGEDLAB_REQUIRE_BROWSER"):
        pytest.skip(why)
    assert not why, why
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    return playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)


@contextmanager
def open_chromium():
    """The shared Chromium; what is opened in it is closed at the end."""
    chromium = shared_chromium()
    others = chromium.contexts
    yield chromium
    for context in chromium.contexts:
        if context not in others:
            context.close()


@contextmanager
def open_page(**options):
    """A page whose scripts must not fail. The set `page.asked` has all addresses that it asked for."""
    with open_chromium() as chromium:
        page = chromium.new_page(**options)
        page.asked = set()
        problems: list[str] = []
        page.on("request", lambda request: page.asked.add(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        yield page
    assert not problems, problems
