"""A recording from anybody is played, or refused in one line that names the field. tests/js has the scripts' side."""

import copy
import json

import pytest
from pagedlab_lessons.timeline import run_of
from pagedlab_lessons.widgets import Stage
from pagedlab_lessons.widgets.assets import script
from pagedlab_lessons.widgets.replayed import answers_of, grid_of

from support.pages import in_browser, open_page
from support.paths import ROOT

ATTACK = {"html": "<img src=x onerror='window.attacked = true'>"}
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


def paths(value, to=""):
    """The place of every field of a recording, and of every item in one: "steps/1/texts/r0/look"."""
    if to:
        yield to
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from paths(item, f"{to}/{key}" if to else str(key))


def key_in(place, key):
    return int(key) if isinstance(place, list) else key


def value_at(place, path):
    for key in path.split("/"):
        place = place[key_in(place, key)]
    return place


def changed(path, value):
    """The recording with another value in that place."""
    recording = json.loads(json.dumps(RECORDING))  # no two of its lists are one
    around, _, last = path.rpartition("/")
    place = value_at(recording, around) if around else recording
    place[key_in(place, last)] = value
    return recording


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


def test_recordings_as_they_are_written_are_played():
    play(Stage(RECORDING))
    play(Stage(renamed(NAME_WITH_MARKUP)))
    play(Stage(ROOT / "data" / "recordings" / "three_answers.json"))


DEEP = json.loads("[" * 50 + "]" * 50)


def test_format_1_has_fewer_fields():
    (old := changed("format", 1))["steps"] = RECORDING["steps"][:1]
    play(Stage(old))
    with pytest.raises(ValueError, match=r"recording.steps\[1\] may have the fields step, used, .*, got 'computed'"):
        Stage(changed("format", 1))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("block_size", 0, "recording.block_size must be a whole number of at least 1, got 0"),
        ("num_blocks", "8", "recording.num_blocks must be a whole number of at least 1, got '8'"),
        ("drawn", 9, "recording.drawn must be a whole number from 1 to 8, got 9"),
        ("steps", {}, "recording.steps must be a list, got {}"),
        ("steps", [], "recording.steps must have at least one step, got []"),
        ("steps/0", None, "recording.steps[0] must be an object, got None"),
        ("steps/0", {}, "recording.steps[0] must have the field step"),
        ("steps/1/step", True, "recording.steps[1].step must be a whole number of at least 0, got True"),
        ("steps/1/used", 9, "recording.steps[1].used must be a whole number from 0 to 8, got 9"),
        ("steps/1/spam", 9, "recording.steps[1] may have the fields step, used, cached, counts, "),
        ("steps/1/counts/8", 1, "recording.steps[1].counts must name blocks from 0 to 7, got '8'"),
        ("steps/1/counts/01", 1, "recording.steps[1].counts must name blocks from 0 to 7, got '01'"),
        ("steps/1/counts/0", -1, "counts[0] must be a whole number of at least 0, got -1"),
        ("steps/0/kept/7", 2, "recording.steps[0].kept[7] must be a whole number from 0 to 1, got 2"),
        ("steps/2/copies/0", [1], "recording.steps[2].copies[0] must be [source, destination], got [1]"),
        ("steps/1/hits/0", "0", "recording.steps[1].hits[0] must be a whole number from 0 to 7, got '0'"),
        ("steps/1/texts", [], "recording.steps[1].texts must be an object, got []"),
        (
            "steps/1/texts/r0/look",
            "red",
            "recording.steps[1].texts['r0'].look must be a whole number of at least 0, got 'red'",
        ),
        (
            "steps/1/texts/r0/state",
            "gone",
            ".texts['r0'].state must be one of 'waiting', 'running', 'swapped', 'stop', ",
        ),
        (
            "steps/1/texts/r0/name",
            "b",
            ".texts['r0'] may have the fields look, prompt, state, tokens, blocks, words, ids, ",
        ),
        ("steps/1/texts/r0/blocks", [0], ".blocks must be [items to keep, new items], got [0]"),
        ("steps/1/texts/r0/blocks/0", 1, ".blocks[0] must be a whole number from 0 to 0, got 1"),
        ("steps/1/texts/r0/blocks/1/1", 8, ".blocks[1][1] must be a whole number from 0 to 7, got 8"),
        ("steps/2/texts/r2", {}, "recording.steps[2].texts['r2'] must have the field look"),
        ("steps/1/computed/r0", [2], ".computed['r0'] must be [start, stop], got [2]"),
        ("steps/1/computed/r0/1", 1, ".computed['r0'][1] must be a whole number of at least 2, got 1"),
        ("steps/2/preempted/r1", "kill", ".preempted['r1'] must be one of 'recompute', 'swap', got 'kill'"),
        ("steps/1/held/r0/0", 8, ".held['r0'][0] must be a whole number from 0 to 7, got 8"),
        ("steps/1/drafts/r0/accepted", 3, ".drafts['r0'].accepted must be a whole number from 0 to 2, got 3"),
        ("steps/1/drafts/r0/words", [" a"], ".drafts['r0'].words must have 2 words, got 1"),
        ("steps/1/likely/r0/of", 0, ".likely['r0'].of must be a whole number of at least 1, got 0"),
        ("steps/1/likely/r0/tokens/0", [7], ".tokens[0] must be [token id, text, probability], got [7]"),
        ("steps/1/likely/r0/tokens/0/2", 1.5, ".tokens[0][2] must be a number of at least 0 and at most 1, got 1.5"),
        ("steps/1/readings/keys", DEEP, "must be a number of at least "),
        ("steps/2/texts/r1/ids", [1, []], ".ids[0] must be a whole number from 0 to 0, got 1"),
    ],
)
def test_a_wrong_field_is_named_before_anything_is_drawn(path, value, message, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Stage, "open", lambda stage: drawn.append(stage))  # tells the page of a new widget
    recording = changed(path, value)
    (file := tmp_path / "recording.json").write_text(json.dumps(recording))
    for source in (recording, file, str(file)):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - compared below
            Stage(source)
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not drawn


SCALARS = [
    path for path in paths(RECORDING) if path != "format" and not isinstance(value_at(RECORDING, path), (dict, list))
]


@pytest.mark.parametrize("path", SCALARS, ids=str)
def test_an_object_in_place_of_a_text_or_a_number_is_refused_by_name(path):
    with pytest.raises(ValueError, match=r"must be .*, got {'html': ") as refused:
        Stage(changed(path, ATTACK))
    message = str(refused.value)
    places = [f"[{key}]" if key.isdigit() else key for key in path.split("/")]
    assert message.startswith("recording.")
    assert all(place in message for place in places), message


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"{'format': 1}"])
def test_a_file_that_is_no_json_is_refused_in_one_line(content, tmp_path):
    (file := tmp_path / "recording.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"recording.json is no recording, because it is no JSON: .+") as refused:
        Stage(file)
    assert "\n" not in str(refused.value)


WRONG_VALUES = [None, True, -1, 0, 3, 10**30, 0.5, float("nan"), "", "0", "<b>", [], [0], [0, []], [0, 0], {}, ATTACK]


@pytest.mark.parametrize("value", WRONG_VALUES, ids=repr)
def test_a_recording_with_any_value_anywhere_is_played_or_refused_in_one_line(value):
    refused = []
    for path in paths(RECORDING):
        try:
            stage = Stage(changed(path, copy.deepcopy(value)))
        except ValueError as error:
            refused.append(str(error))
        else:
            play(stage)
    assert refused
    assert not any("\n" in message for message in refused)


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
