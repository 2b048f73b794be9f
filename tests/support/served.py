"""A server of the tiny model, and questions to it through OpenAI's own client."""

from contextlib import contextmanager
from typing import Any

import openai

from pagedlab import LLM
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from support.engines import assert_idle

MODEL = "tiny-qwen2"
CHAT: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
STORY = "Once upon a time, there was a"
LONG = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def client_of(server: BackgroundServer, key: str = "none"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


def ask(client: openai.OpenAI, prompt=STORY, **options):
    """Continue this prompt."""
    return client.completions.create(**{"model": MODEL, "prompt": prompt, **options})


def chat(client: openai.OpenAI, messages=CHAT, **options):
    """Answer these messages."""
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


@contextmanager
def serving(llm: LLM, **options):
    """A live server, and afterwards every block free or cached."""
    with BackgroundServer(create_app(llm, **options)) as server:
        yield server
    assert_idle(llm)
