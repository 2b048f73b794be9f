"""13's streams on a machine so busy that a server's loop sends several tokens at once."""

import time

import nbformat
from openai import OpenAI

from pagedlab import LLM
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from pagedlab_serve.engine_thread import Ticket
from support.paths import ROOT

NOTEBOOK = ROOT / "notebooks" / "13_serve_it.ipynb"


def test_stop_strings_do_not_depend_on_which_tokens_come_together(tiny, monkeypatch):
    put = Ticket.put

    def late(ticket, news):
        time.sleep(0.2)  # the loop is held up, the engine's thread is not
        put(ticket, news)

    monkeypatch.setattr(Ticket, "put", late)
    (cell,) = (cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if "stop=stop" in cell.source)
    with BackgroundServer(create_app(LLM(tiny, num_blocks=64, verbose=False))) as server:
        names = {"client": OpenAI(base_url=f"{server.url}/v1", api_key="none"), "served": tiny.name}
        exec(cell, names)
        tokens, pieces = names["tokens"], names["pieces"]
        assert len(tokens) == 9
        assert len(pieces(None)) < 9, "the loop was held up: tokens come together"
        assert "".join(pieces(None)) == "".join(pieces(tokens[3] + "!!")) == "".join(tokens)
        assert "".join(pieces(tokens[3] + tokens[4])) == "".join(tokens[:3])
