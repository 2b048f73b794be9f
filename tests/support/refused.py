"""What a refusal of pagedlab looks like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(said: str) -> Iterator[pytest.ExceptionInfo[ValueError]]:
    """Expect a ValueError whose message is one line and matches `said`."""
    with pytest.raises(ValueError, match=said) as caught:
        yield caught
    assert "\n" not in str(caught.value)
