"""The site's first page: it plays at once, asks nothing of another server, and its siblings tell what memory holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from served import serving

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "front"), str(ROOT / "tools")]

import build_front  # noqa: E402


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    subprocess.run([sys.executable, ROOT / "tools" / "build_front.py", folder], check=True)
    return folder


def test_the_page_is_small_and_names_no_other_server(page_folder: Path) -> None:
    files = [file for file in page_folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 600_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "OWNER" not in text


def test_the_readme_begins_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once "Source" is set in pyproject.toml this fails until README has the link; `first_line` says what to write."""
    first_lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:5]
    assert first_lines[0] == "# pagedlab"
    assert build_front.first_line() in first_lines
    monkeypatch.setattr(build_front, "repository", lambda: "https://github.com/Somebody/pagedlab")
    assert "(https://somebody.github.io/pagedlab/)" in build_front.first_line()


@pytest.fixture(scope="module")
def address(page_folder: Path) -> Iterator[str]:
    with serving(page_folder) as url:
        yield url


@pytest.mark.browser
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (360, "dark")])
def test_the_page_plays_and_can_be_stepped(address: str, width: int, theme: Any) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=browser.chromium(), args=browser.CHROMIUM_FLAGS)
        page = chrome.new_page(viewport={"width": width, "height": 760}, color_scheme=theme)
        asked, problems = set[str](), list[str]()
        page.on("request", lambda request: asked.add(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        page.wait_for_function("() => Number(document.querySelector('.ps-root')?.dataset.at) > 3")
        assert page.locator(".ps-held").first.inner_text().strip()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        page.locator(".pl-scrubber").fill("0")
        page.locator('[data-op="on"]').press("Enter")
        page.wait_for_function("() => document.querySelector('.ps-root').dataset.at === '1'")
        assert page.inner_text("#heard") == "r0 and r1 are admitted.", "who cannot see it is told"
        assert page.locator("#map article").count() == 14
        chrome.close()
    assert not problems
    assert all(url.startswith((address, "data:")) for url in asked)


def told(fork: Any) -> dict[str, str]:
    return {name: "".join(word for word, _, _ in words) for name, words in json.loads(fork.snapshot())["texts"]}


@pytest.mark.parametrize("forget", [False, True])
def test_siblings_tell_their_own_story_unless_copies_are_forgotten(forget: bool) -> None:
    """What runs in the visitor's browser, run here."""
    import fork

    fork.story.update(json.loads((ROOT / "data" / "recordings" / "one_story.json").read_text(encoding="utf-8")))
    fork.start(forget)
    prompt, stories = "".join(fork.story["prompt"]), fork.story["stories"]
    assert stories[0][0] != stories[1][0], "the first word that each writes tells them apart"
    assert told(fork) == {"s0": prompt, "s1": prompt}
    for _ in range(3):
        for name in ("s0", "s1"):
            last = fork.receive(json.dumps({"op": "write", "sequence": name, "n": None}))
    mine, theirs = ("".join([prompt, *stories[k][:3]]) for k in (0, 1))
    assert mine != theirs
    assert told(fork) == {"s0": theirs if forget else mine, "s1": theirs}
    wrong = {name: [right for _, _, right in words].count(False) for name, words in json.loads(last)["texts"]}
    assert (wrong["s0"] > 0) == forget
    assert not wrong["s1"]
    fork.receive(json.dumps({"op": "undo"}))
    assert told(fork)["s1"] == "".join([prompt, *stories[1][:2]])
