"""OpenAI's HTTP API over the engine: `pagedlab serve`, or `BackgroundServer(create_app(llm))`.

- app.py: the routes: completions, chats, streams, errors, the live page; `create_app`
- openai_api.py: the fields of requests, and the form of errors
- engine_thread.py: the one thread that owns the engine
- prompts.py: the token ids of prompts
- logprobs.py: log-probabilities in OpenAI's form
- gate.py: the size of requests
- metrics.py: figures for Prometheus
- background.py: the server in a thread of this process
- cli/, hub.py: the command `pagedlab`

The commands need no web server. So FastAPI is imported when one of the two names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedlab_serve.app import create_app
    from pagedlab_serve.background import BackgroundServer

__all__ = ["BackgroundServer", "create_app"]

_MODULES = {"BackgroundServer": "background", "create_app": "app"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'pagedlab_serve' has no attribute {name!r}")
    return getattr(import_module(f"pagedlab_serve.{_MODULES[name]}"), name)
