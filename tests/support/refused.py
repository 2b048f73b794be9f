"""What a refusal of pagedlab looks like."""

from contextlib import contextmanager

import pytest


@contextmanager
def refused(said: str):
    """Expect a ValueError whose message is one line and matches `said`."""
    with pytest.raises(ValueError, match=said) as caught:
        yield caught
    assert "\n" not in str(caught.value)
