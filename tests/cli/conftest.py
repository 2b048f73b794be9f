"""Every test of the commands runs as if the user had typed `pagedlab`."""

import pytest


@pytest.fixture(autouse=True)
def _started_as_pagedlab(monkeypatch):
    monkeypatch.setattr("sys.argv", ["pagedlab"])
