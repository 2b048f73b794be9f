"""How many random operations a fuzz test does."""

import os

import pytest

# Random operations that each fuzz test does; None for as many as `make test` has time for. Nightly: a million.
OPERATIONS = int(os.environ["PAGEDLAB_OPERATIONS"]) if os.environ.get("PAGEDLAB_OPERATIONS") else None
LONG_RUN = pytest.mark.timeout(0 if OPERATIONS else 300)
