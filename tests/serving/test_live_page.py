"""The live page: its data, its files, and a reader who asks there."""

from contextlib import contextmanager
from functools import partial

import httpx
from pagedlab_lessons.live_page import LivePage

from pagedlab import LLM
from support import served
from support.accessibility import violations
from support.pages import in_browser, open_page
from support.served import LONG, STORY, ask, client_of

serving = partial(served.serving, live_page=LivePage)


@contextmanager
def at_the_page(llm, **options):
    """A live server, and its page in a browser once it shows the pool."""
    with serving(llm, **options) as server, open_page() as page:
        page.goto(server.url)
        page.locator(".pl-block").first.wait_for()
        yield server, page


def blocks(server, key="none", **params):
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{server.url}/blocks", headers=headers, params=params).json()


def test_a_server_with_keys_has_no_live_page(tiny):
    """It would show the words of all."""
    with serving(LLM(tiny, num_blocks=64), api_keys=["a"]) as server:
        assert httpx.get(server.url).status_code == 404
        assert "no live page" in blocks(server, "a")["error"]["message"]


def test_without_keys_blocks_show_words_and_later_only_what_is_new(tiny):
    with serving(LLM(tiny, num_blocks=256)) as server:
        running = ask(client_of(server), **LONG, stream=True)
        next(iter(running))
        (step,) = blocks(server)["steps"]
        (text,) = step["texts"].values()
        assert sum(step["counts"].values()) == step["used"] == len(text["blocks"][1]) > 0
        assert STORY in "".join(text["words"][1])
        more = {"steps": []}
        while len(more["steps"]) < 5:  # what a reader gets may have been written before the first look
            next(iter(running))
            more = blocks(server, since=1)
        assert more["first"] == 1
        (changed,) = more["steps"][0]["texts"].values()
        assert ("prompt" in text, "prompt" in changed) == (True, False)
        assert blocks(server, since=10**6)["first"] == 0
        running.close()


@in_browser
def test_live_page_in_a_browser(tiny):
    with at_the_page(LLM(tiny, num_blocks=256)) as (server, page):
        running = ask(client_of(server), **LONG, stream=True)
        next(iter(running))
        page.locator(".pl-used").nth(3).wait_for()
        page.locator('.pl-block[data-block="0"]').hover()
        assert STORY in page.locator(".pl-detail").inner_text()
        assert STORY in page.locator(".ps-words").inner_text()
        running.close()
        page.locator(".ps-text.ps-abort").wait_for(timeout=15_000)  # a live page is seconds behind, not half a minute
        assert page.locator(".pl-used").count() == 0
        page.locator(".pl-scrubber").fill("2")  # and back to when it was not
        page.locator(".pl-used").first.wait_for()
        page.mouse.move(0, 0)  # while a block is pointed at, words of others are pale
        assert not violations(page)
    assert all(url.startswith(server.url) for url in page.asked)
