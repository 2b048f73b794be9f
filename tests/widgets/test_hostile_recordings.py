"""A recording from anybody is played or fails, and draws no markup of its own. tests/js has the scripts' side."""

import json
from contextlib import suppress

from pagedlab_lessons.checks.n09 import ToyEngine
from pagedlab_lessons.widgets import Stage
from pagedlab_lessons.widgets.assets import script
from pagedlab_lessons.widgets.picture import picture_of_stage
from pagedlab_lessons.widgets.timeline import run_of

from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.recipes.trace import Recorder
from support.pages import in_browser, open_page
from support.paths import ROOT

ATTACK = "<img src=x onerror='window.attacked = true'>"
NAME_WITH_MARKUP = "r\"0'] <b>&</b>\\"


def recorded():
    """Two requests, of which one is swapped out and comes back."""
    engine = ToyEngine(SwappingScheduler, num_blocks=6)
    with Recorder(engine) as recorder:
        engine.add(6, 10)
        engine.add(6, 10)
        engine.run()
    return recorder.recording


RECORDING = json.loads(json.dumps(recorded()))


def renamed(name):
    """The recording with another name for its first text."""
    return json.loads(json.dumps(RECORDING).replace('"r0"', json.dumps(name)))


def play(stage):
    """Do with it all that Python does with a recording."""
    for step in range(len(stage.recorded["steps"])):
        replay = stage.replay(step)
        picture_of_stage(replay), replay.whole()
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
            drawn += [picture_of_stage(stage.replay(step)) for step in (0, 8, len(RECORDING["steps"]) - 1)]
    assert any("&lt;img" in drawing for drawing in drawn)
    assert not any("<img" in drawing for drawing in drawn)


def test_recordings_as_they_are_written_are_played():
    play(Stage(RECORDING))
    play(Stage(renamed(NAME_WITH_MARKUP)))
    play(Stage(ROOT / "data" / "recordings" / "three_answers.json"))


PLAY = """async (recorded) => {
    const values = { recorded, live: false };
    const model = { get: (name) => values[name], set() {}, save_changes() {}, on() {}, off() {} };
    widget.render({ model, el: document.body });
    await new Promise((done) => setTimeout(done, 3000));
}"""


@in_browser
def test_a_name_with_markup_and_quotes_is_played_as_any_other():
    """In a real browser, whose selectors have to find it. Markup as such is tested in tests/js."""
    source, _, exported = script("stage").rpartition("export default ")
    recording = renamed(NAME_WITH_MARKUP)
    with open_page() as page:
        page.add_script_tag(content=f"{source}\nwindow.widget = {exported}", type="module")
        page.wait_for_function("window.widget")
        page.evaluate(PLAY, recording)
        assert page.locator(".ps-root").get_attribute("data-at") == str(len(recording["steps"]) - 1)
        assert page.locator(".ps-head b").first.text_content() == NAME_WITH_MARKUP
        assert page.locator("b b").count() == 0
