"""Other ranks start in half a second: each is a copy of a process that has imported torch already."""

import pytest

from pagedlab.recipes.ranks import group
from support.warm import processes


@pytest.fixture(scope="package", autouse=True)
def warm_ranks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "context", processes())
        yield
