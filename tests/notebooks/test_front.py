"""The site's first page: it plays at once, asks nothing of another server, and its siblings tell what memory holds."""

import json
import re

import pytest

import build_front
from pagedlab.recipes.trace import Replay
from support.pages import in_browser, open_chromium, open_page
from support.paths import ROOT
from support.site import serving


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("front")
    build_front.build(folder)
    return folder


def test_the_page_is_small_and_names_no_other_server(page_folder):
    files = [file for file in page_folder.rglob("*") if file.is_file()]
    pictures = [file for file in files if file.suffix in (".webp", ".png")]
    assert sum(file.stat().st_size for file in files if file not in pictures) < 300_000
    for file in files:
        if file in pictures:
            continue
        text = file.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "OWNER" not in text


def test_the_readme_begins_with_the_address(monkeypatch):
    """Once "Source" is set in pyproject.toml this fails, and says what to write, until README has the link."""
    first_lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:5]
    assert first_lines[0] == "# pagedlab"
    if address := build_front.site_address():
        assert f"**[Try it in your browser]({address})**: nothing to install." in first_lines
    monkeypatch.setattr(build_front, "repository", lambda: "https://github.com/Somebody/pagedlab")
    assert build_front.site_address() == "https://somebody.github.io/pagedlab/"


@pytest.fixture(scope="module")
def address(page_folder):
    with serving(page_folder) as url:
        yield url


@in_browser
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (360, "dark")])
def test_the_page_plays_and_can_be_stepped(address, width, theme):
    height = 760 if width == 1440 else 400  # the squares are below a low window
    with open_page(viewport={"width": width, "height": height}, color_scheme=theme) as page:
        page.goto(address)
        squares = page.locator("#stage .pl-blocks")
        squares.wait_for()
        if width == 360:
            page.wait_for_timeout(1000)
            assert page.locator(".ps-root").get_attribute("data-at") == "1", "it waits until it is on the screen"
            squares.scroll_into_view_if_needed()
        page.wait_for_function("() => Number(document.querySelector('.ps-root')?.dataset.at) > 3")
        assert page.locator(".ps-held").first.inner_text().strip()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        page.locator(".pl-scrubber").fill("0")
        page.locator('[data-op="on"]').press("Enter")
        page.wait_for_function("() => document.querySelector('.ps-root').dataset.at === '1'")
        said = "Chat 1 and chat 2 start. Chat 3 must wait: it needs 3 blocks, and 2 are free."
        assert page.inner_text("#stage .pl-spoken") == f"Step 1 of 24. {said}", "a screen reader reads it out"
        assert page.text_content("#heard") == "", "a film that stands still says nothing of its own"
        assert page.locator("#stage .pl-id").first.is_visible(), "squares have their numbers, on a phone too"
        assert page.locator("#map article").count() == len(build_front.THUMBNAILS)
    assert all(url.startswith((address, "data:")) for url in page.asked)


@in_browser
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 600), (390, 664), (360, 560)])
def test_the_first_screen_says_what_this_is(address, width, height):
    """Without a scroll: a free course, of how many notebooks, and what one builds. So is the way to its begin."""
    with open_page(viewport={"width": width, "height": height}) as page:
        page.goto(address)
        for element in (page.locator("#course"), page.locator("#start")):
            box = element.bounding_box()
            assert box["y"] + box["height"] <= height
        said = page.locator("#course").inner_text()
    assert f"a free course of {len(build_front.THUMBNAILS)} notebooks you build PagedAttention" in said


@in_browser
def test_without_javascript_the_picture_moves_and_no_control_is_dead(address):
    with open_page(java_script_enabled=False) as page:
        page.goto(address)
        assert page.locator("#stage img").is_visible()
        assert page.locator("button:visible, input:visible, progress:visible").count() == 0
        assert page.locator("#start").is_visible()


@in_browser
def test_the_text_of_the_stories_follows_the_switch(tmp_path):
    """The page asks for Python, which this folder lacks. The text does not need it."""
    python = tmp_path / "lite" / "static" / "pyodide"
    python.mkdir(parents=True)
    (python / "pyodide.mjs").touch()
    build_front.build(tmp_path)
    with serving(tmp_path) as url, open_chromium() as chromium:
        page = chromium.new_page()
        page.goto(url)
        page.wait_for_selector("[data-teller=s0]")
        copies, forgets = "so it gets a copy of this block", "s0 reads a word that it never wrote"
        for forget in (False, True, False):
            page.set_checked("#forget", forget)
            text = " ".join(page.inner_text("#fork-section").split())
            assert ((copies in text), (forgets in text)) == (not forget, forget)
            assert "Here a block holds 4 tokens. So the 10 tokens take 3 blocks" in text
            assert "is called a fork: s1 is a fork of s0." in text
            then = "Then press write in s1: now each story has its own block, and nothing is copied."
            assert (then in text) == (not forget)


# Stands in for Pyodide: each call of fork.py gets the next of the answers that fork.py gave to the test.
STAND_IN = """
const answers = %s;
const answer = () => answers.shift();
const globals = { story: { update() {} }, start: answer, receive: answer };
export const loadPyodide = async () => ({
  loadPackage() {}, runPythonAsync() {}, toPy: (value) => value, globals: { get: (name) => globals[name] },
});
"""


@in_browser
def test_what_a_write_did_is_said_by_its_button_and_no_text_speaks_of_stories_that_are_gone(tmp_path, fork):
    answers = [
        fork.start(False),
        *(ask(fork, op, name) for op, name in (("write", "s0"), ("reset", None))),
        fork.start(False),
    ]
    python = tmp_path / "lite" / "static" / "pyodide"
    python.mkdir(parents=True)
    (python / "pyodide.mjs").write_text(STAND_IN % json.dumps(answers), encoding="utf-8")
    wheels = {name: {"file_name": f"{name}.whl"} for name in ("traitlets", "pagedlab")}
    (python / "pyodide-lock.json").write_text(json.dumps({"packages": wheels}), encoding="utf-8")
    build_front.build(tmp_path)
    with serving(tmp_path) as url, open_page(viewport={"width": 390, "height": 844}, has_touch=True) as page:
        page.goto(url)
        said = page.locator("#grid .pl-prompt")
        button = page.locator("[data-teller=s0]")
        button.wait_for()
        assert said.inner_text() == "s1 is a fork of s0: both read blocks 0, 1 and 2. Nothing is copied yet."
        button.evaluate("button => button.scrollIntoView()")
        top = page.locator("#grid .pl-blocks").evaluate("blocks => blocks.offsetTop")
        button.tap()
        page.wait_for_selector("#fork:visible")
        assert said.inner_text() == COPIED
        below = said.bounding_box()
        assert below["y"] + below["height"] < 844, "it is on the screen with the button"
        assert page.locator("#grid .pl-blocks").evaluate("blocks => blocks.offsetTop") == top, "no block moves"
        controls = "#grid :is([data-op], input, select):visible"
        assert page.locator(controls).all_inner_texts() == ["Fork", "Undo"]
        page.tap("#grid .pl-more summary")
        side, more = (page.locator(f"#grid .pl-{part}").bounding_box() for part in ("side", "more"))
        assert more["y"] - side["y"] - side["height"] < 30, "no gap"
        page.tap("#grid [data-op=reset]")
        page.wait_for_selector("#gone:visible")
        assert page.locator("#copies:visible, #forgets:visible").count() == 0
        assert page.inner_text("#gone") == "s0 or s1 is gone. Press Start over to have both back."
        assert said.inner_text() == "The memory is empty: no story uses a block."
        page.tap("#fork")
        page.wait_for_selector("#copies:visible")
        assert page.locator("#gone:visible").count() == 0
        assert page.locator("#grid [data-op=reset]").is_visible(), "More stays open"


@pytest.fixture(scope="module")
def original():
    return json.loads((ROOT / "data" / "recordings" / "three_answers.json").read_text(encoding="utf-8"))


def test_the_recording_ends_full_and_has_plain_names(original):
    shown = build_front.for_visitors(original)["recorded"]
    replay = Replay(shown)
    last = replay.seek(len(shown["steps"]) - 1)
    assert sum(count > 0 for count in last.counts) == original["num_blocks"]
    assert list(last.sequences) == ["chat 1", "chat 2", "chat 3"]
    for name, sequence in last.sequences.items():
        before = Replay(original).seek(len(shown["steps"]) - 1).sequences[f"r{int(name[-1]) - 1}"]
        assert sequence.blocks == before.blocks
        assert len(sequence.words) == len(before.words), "each piece keeps its slot"
        assert "system" not in "".join(sequence.words)
        assert "assistant" not in "".join(sequence.words)


def test_every_answer_of_the_film_ends_with_a_sentence(original):
    film = build_front.for_visitors(original)["recorded"]
    last = Replay(film).seek(len(film["steps"]) - 1)
    for sequence in last.sequences.values():
        assert "".join(sequence.words).endswith(".")
        assert sequence.state == "stop"


def test_captions_say_what_the_recording_has(original):
    """They are written by hand, so a new recording needs new ones."""
    shown = build_front.for_visitors(original)
    replay, captions = Replay(shown["recorded"]), shown["captions"]
    last = len(shown["recorded"]["steps"]) - 1
    captioned = {"0", str(last)}
    before = {}
    for step in range(last):
        now = {name: (chat.state, set(chat.blocks)) for name, chat in replay.seek(step).sequences.items()}
        for name in [name for name in now if now[name] != before.get(name)]:
            captioned.add(str(step))
            assert name in captions[str(step)].lower()
            if name in before:
                taken = now[name][1] - before[name][1]
                assert all(str(block) in captions[str(step)] for block in taken)
        before = now
    assert captions.keys() == captioned
    assert captions[str(last)].startswith("All 3 answers are complete. 8 blocks were enough")


@in_browser
@pytest.mark.parametrize(("width", "height"), [(360, 740), (390, 844)])
def test_the_films_squares_and_words_are_on_a_phones_first_screen(address, width, height):
    with open_page(viewport={"width": width, "height": height}) as page:
        page.goto(address)
        page.locator("#stage .pl-block").first.wait_for()
        page.wait_for_function("() => Number(document.querySelector('.ps-root').dataset.at) > 0")
        squares, words = (page.locator(f"#stage {part}").first.bounding_box() for part in (".pl-blocks", ".ps-words"))
        assert squares["y"] + squares["height"] < height
        assert words["y"] + words["height"] < height
        assert page.locator("#start").bounding_box()["y"] < squares["y"]


@in_browser
@pytest.mark.parametrize("width", [390, 1440])
def test_no_step_of_the_film_moves_what_is_below(address, width):
    with open_page(viewport={"width": width, "height": 844}) as page:
        page.goto(address)
        page.locator("#stage .pl-block").first.wait_for()
        assert page.locator(".ps-root").get_attribute("data-at") != "0", "nothing would be seen"
        heights = set()
        for step in range(25):
            page.locator(".pl-scrubber").fill(str(step))
            page.wait_for_function("(step) => document.querySelector('.ps-root').dataset.at === String(step)", arg=step)
            heights.add(page.locator("#stage").evaluate("stage => stage.offsetHeight"))
        assert len(heights) == 1


def test_a_links_label_begins_with_its_text(page_folder):
    page = (page_folder / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'<a [^>]*aria-label="([^"]*)">([^<]*)</a>', page)
    assert all(label.startswith(text) for label, text in links)
    titles = re.findall(r'<h3><a [^>]*href="notebooks/([^"]*)\.html">(\d\d) · [^<]+</a></h3>', page)
    assert [stem[:2] for stem, _ in titles] == [number for _, number in titles]
    assert len(titles) == 15


def told(fork):
    return {name: "".join(word for word, _, _ in words) for name, words in json.loads(fork.snapshot())["texts"]}


@pytest.fixture
def fork(monkeypatch):
    """What runs in the visitor's browser, run here."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "front")
    import fork

    fork.story.update(json.loads((ROOT / "data" / "recordings" / "one_story.json").read_text(encoding="utf-8")))
    return fork


def ask(fork, op, sequence=None, n=None):
    return fork.receive(json.dumps({"op": op, "sequence": sequence, "n": n}))


def happened(fork, *operation):
    return json.loads(ask(fork, *operation))["state"]["happened"]


COPIED = (
    "s0 was about to write into block 2. s1 still reads it, so s0 got a copy: block 3. "
    "Blocks 0 and 1 are full: nobody writes there, so they stay shared."
)
BROKEN = " The box with the red edge names the broken rule. Undo goes back one step."


def test_each_write_says_what_it_did_and_why(fork):
    fork.start(False)
    assert happened(fork, "write", "s0") == COPIED
    assert happened(fork, "write", "s1") == "s1 writes into block 2. Nobody else reads it now, so nothing is copied."
    assert happened(fork, "write", "s0") == "s0 writes into block 3. Nobody else reads it, so nothing is copied."
    assert happened(fork, "write", "s0") == "Block 3 is full, so s0 takes block 4, which was free."
    assert happened(fork, "undo").startswith("s0 writes into block 3.")
    assert happened(fork, "append", "s1", 3) == (
        "s1 writes into block 2. Nobody else reads it now, so nothing is copied. Then s1 takes block 4, which was free."
    )
    freed = "s0 gives back its blocks. Block 3 is free again. A block that another story reads stays in use."
    assert happened(fork, "free", "s0") == freed
    assert happened(fork, "append", "s1", 99) == "", "the page shows the error"
    assert happened(fork, "new", None, 5) == "s2 takes blocks 3 and 5, which were free."
    assert happened(fork, "reset") == "The memory is empty: no story uses a block."


def test_the_other_one_to_write_first_gets_the_copy(fork):
    fork.start(False)
    assert happened(fork, "write", "s1").startswith("s1 was about to write into block 2. s0 still reads it, so s1 got")
    fork.start(False)
    ask(fork, "fork", "s1")
    assert "s1 and s2 still read it, so s0 got a copy: block 3." in happened(fork, "write", "s0")


def test_a_write_that_forgets_to_copy_names_the_words_that_are_lost(fork):
    fork.start(True)
    first = happened(fork, "write", "s0")
    assert first == "s0 wrote “wise” into block 2 and copied nothing, but s1 reads it too." + BROKEN
    lost = "s1 wrote “big” over s0's “wise”, in block 2." + BROKEN
    assert happened(fork, "write", "s1") == lost
    assert happened(fork, "undo") == first
    assert happened(fork, "redo") == lost
    fork.start(True)
    ask(fork, "append", "s0", 2)
    assert happened(fork, "append", "s1", 2) == "s1 wrote “big rabbit” over s0's “wise owl”, in block 2." + BROKEN


@pytest.mark.parametrize("forget", [False, True])
def test_siblings_tell_their_own_story_unless_copies_are_forgotten(forget, fork):
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
