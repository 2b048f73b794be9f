"""docs/chat.svg: a real conversation, made by tools/make_terminal.py, which fetches nothing from the web."""

import re
from html import unescape

from pagedlab import LLM
from support.paths import ROOT

NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def needs_nothing_from_the_web(svg):
    return "http" not in svg.replace(NAMESPACE, "") and "@font-face" not in svg and "@import" not in svg


def test_the_same_weights_give_the_same_picture(tiny):
    from make_terminal import LINES, picture

    first, second = (picture(LLM(tiny, num_blocks=64, verbose=False)) for _ in range(2))
    assert first == second
    assert needs_nothing_from_the_web(first)
    words = re.sub(r"<[^>]+>", " ", first).replace("&#160;", " ")
    assert "pagedlab chat: tiny-qwen2 on a CPU" in words
    assert all(line in words for line in LINES)


def test_the_stored_picture_shows_this_conversation():
    from make_terminal import LINES

    svg = (ROOT / "docs" / "chat.svg").read_text(encoding="utf-8")
    assert needs_nothing_from_the_web(svg)
    words = re.sub(r"<[^>]+>", " ", svg).replace("&#160;", " ")
    assert all(line in words for line in LINES), "make terminal"
    assert re.search(r"pagedlab chat: .+ on a CPU", words)
    assert "reused from the prefix cache" in words
    marks = {mark for mark, _ in re.findall(r">\s?([=+&])(\d+)\s?<", unescape(svg))}
    assert marks == {"=", "+", "&"}
