"""A recording from anybody is played or fails, and draws no markup of its own. tests/js has the scripts' side."""

import json
from contextlib import suppress

from pagedlab_lessons.timeline import run_of
from pagedlab_lessons.widgets import Stage
from pagedlab_lessons.widgets.assets import script
from pagedlab_lessons.widgets.picture import StagePicture
from pagedlab_lessons.widgets.replayed import answers_of, grid_of

from support.pages import in_browser, open_page
from support.paths import ROOT

ATTACK = "<img src=x onerror='window.attacked = true'>"
NAME_WITH_MARKUP = "r\"0'] <b>&</b>\\"
FIRST_TEXT = {
    "look": 0,
    "prompt": 2,
    "state": "running",
    "tokens": 5,
    "blocks": [0, [0, 1]],
    "words": [0, ["The", " cat", " sat", " on", " a"]],
}
RECORDING = {  # with every field that there is
    "format": 2,
    "model": "tiny",
    "block_size": 4,
    "num_blocks": 8,
    "drawn": 8,
    "steps": [
        {"step": 0, "used": 0, "cached": 1, "kept": {"7": 1}},
        {
            "step": 1,
            "used": 2,
            "counts": {"0": 1, "1": 1},
            "texts": {"r0": FIRST_TEXT},
            "hits": [0],
            "computed": {"r0": [2, 5]},
            "admitted": {"r0": 2},
            "resumed": ["r0"],
            "held": {"r0": [0, 1, 3]},
            "drafts": {"r0": {"position": 4, "tokens": 2, "accepted": 1, "words": [" a", " dog"]}},
            "likely": {"r0": {"of": 100, "tokens": [[7, " a", 0.5], [8, " the", 0.25]]}},
            "readings": {"keys": [[1.5, None], [2, -3]]},
        },
        {
            "step": 2,
            "used": 3,
            "cached": 0,
            "counts": {"0": 2, "2": 1},
            "copies": [[1, 2]],
            "evicted": [7],
            "kept": {"7": 0},
            "texts": {
                "r0": {"tokens": 6, "words": [5, [" mat"]]},
                "r0.1": {**FIRST_TEXT, "look": 1, "blocks": [0, [0, 2]]},
                "r1": {"look": 2, "prompt": 2, "state": "waiting", "length": 2, "ids": [0, [5, 6]]},
            },
            "preempted": {"r1": "recompute"},
        },
        {"step": 3, "texts": {"r0": {"state": "stop", "tokens": 0, "blocks": [0, []]}}},
    ],
}


def renamed(name):
    """The recording with another name for its first text."""
    return json.loads(json.dumps(RECORDING).replace('"r0"', json.dumps(name)))


def play(stage):
    """Do with it all that Python does with a recording."""
    for step in range(len(stage.recorded["steps"])):
        replay = stage.replay(step)
        grid_of(replay), answers_of(replay), replay.whole()
    run_of(stage.recorded).summary()
    stage._repr_mimebundle_()
    json.dumps(stage.recorded)


def paths(value, to=()):
    """The place of every value in a recording."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*to, key)
        yield from paths(item, (*to, key))


def test_markup_in_any_place_is_drawn_as_text_or_not_at_all():
    drawn = []
    for *around, last in paths(RECORDING):
        place = recording = json.loads(json.dumps(RECORDING))
        for key in around:
            place = place[key]
        place[last] = ATTACK
        with suppress(ValueError, TypeError, AttributeError):
            stage = Stage(recording)
            drawn += [StagePicture(stage.replay(step)).drawing() for step in range(len(RECORDING["steps"]))]
    assert any("&lt;img" in drawing for drawing in drawn)
    assert not any("<img" in drawing for drawing in drawn)


def test_recordings_as_they_are_written_are_played():
    play(Stage(RECORDING))
    play(Stage(renamed(NAME_WITH_MARKUP)))
    play(Stage(ROOT / "data" / "recordings" / "three_answers.json"))


PLAY = """async (recorded) => {
    const values = { recorded, step: -1, live: false };
    const model = { get: (name) => values[name], set() {}, save_changes() {}, on() {}, off() {} };
    widget.render({ model, el: document.body });
    await new Promise((done) => setTimeout(done, 1500));
}"""


@in_browser
def test_a_name_with_markup_and_quotes_is_played_as_any_other():
    """In a real browser, whose selectors have to find it. Markup as such is tested in tests/js."""
    source, _, exported = script("stage").rpartition("export default ")
    recording = renamed(NAME_WITH_MARKUP)
    recording["steps"] += [{"step": 4}] * 3
    with open_page() as page:
        page.add_script_tag(content=f"{source}\nwindow.widget = {exported}", type="module")
        page.wait_for_function("window.widget")
        page.evaluate(PLAY, recording)
        assert page.locator(".ps-root").get_attribute("data-at") == str(len(recording["steps"]) - 1)
        assert page.locator(".ps-head b").first.text_content() == NAME_WITH_MARKUP
        assert page.locator("b b").count() == 0
