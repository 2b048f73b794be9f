"""A server that many tests ask, and a client of it."""

import pytest

from pagedlab import LLM
from support.served import client_of, serving


@pytest.fixture(scope="package")
def llm(tiny):
    return LLM(tiny, num_blocks=256, max_batch_tokens=64)


@pytest.fixture(scope="package")
def server(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture(scope="package")
def client(server):
    return client_of(server)
