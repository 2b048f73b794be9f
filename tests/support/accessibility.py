"""axe-core on a page: the rules that it breaks. Imported, not collected.

`make lint` and `make test-js` install axe-core with npm, at the version that package-lock.json names.
"""

from functools import cache

import pytest

from support.paths import ROOT

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


@cache
def axe():
    """The checker's source. Skips the test where it is not installed."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make test-js installs it")
    return AXE.read_text(encoding="utf-8")


def violations(page):
    """Each rule that the page breaks: its impact, its id, and the first node that breaks it."""
    page.evaluate(axe())
    broken = page.evaluate("async () => (await axe.run({ resultTypes: ['violations'] })).violations")
    return [{"impact": rule["impact"], "id": rule["id"], "node": rule["nodes"][0]["html"]} for rule in broken]
