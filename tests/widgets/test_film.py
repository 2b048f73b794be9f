"""What a stage adds to a recording: a sentence a step, and who wrote the words of a chat."""

import pytest
from pagedlab_lessons.widgets.film import film, roles_of, sentence


def texts(number, state="running"):
    return {f"r{i}": {"state": state} for i in range(number)}


def r0(**change):
    return {"texts": {"r0": change}}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"step": 0}, "No request is here yet. Every block is free."),
        (r0(state="running"), "r0 is admitted."),
        ({"computed": {"r0": [3, 4]}}, "r0 continues."),
        (r0(state="swapped") | {"preempted": {"r0": "swap"}}, "Out of blocks: r0 is preempted."),
        (r0(state="running") | {"resumed": ["r0"]}, "r0 resumes."),
        (r0(state="stop") | {"cached": 4}, "r0 ends, and its blocks are free; 1 of them stays cached."),
        ({}, "Nothing runs."),
        ({"texts": texts(4)}, "4 sequences are admitted."),
        ({"texts": texts(2, "length"), "cached": 3}, "r0 and r1 end, and their blocks are free."),
        (
            {"hits": [1, 2], "copies": [[0, 3]], "evicted": [4]},
            "2 blocks found in the cache; block 0 is copied to 3; 1 cached block evicted.",
        ),
        (r0(blocks=[2, [2]]), "r0’s last block is full: it takes block 2."),
        ({"texts": {"r0": {"blocks": [2, [2]]}, "r1": {"blocks": [1, [5]]}}}, "2 blocks are taken."),
    ],
)
def test_what_happened_in_a_step_is_one_sentence(step, said):
    assert sentence({"step": 1, "cached": 3, **step}, {"cached": 3}) == said


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        (
            ["", "system", "\n", "You", " are", "", "\n", "", "user", "\n", "Hi"],
            {0: "", 1: "system", 2: "", 3: "", 4: "", 5: "", 6: "", 7: "", 8: "user", 9: ""},
        ),
        (["user", "\n", "Why"], {}),
    ],
)
def test_what_a_chat_template_adds_is_known(words, roles):
    assert roles_of({"prompt": len(words), "words": [0, [*words, "user"]]}) == roles
    assert roles_of({"words": [4, words]}) == {}, "an answer"


def test_each_person_has_one_request_and_the_recording_stays_as_it_was():
    change = {"prompt": 1, "state": "running", "words": [0, ["a bell"]]}
    step = {"step": 1, "texts": {"r0.1": change, "r1": change}, "computed": {"r1": [0, 1]}, "resumed": ["r0.1"]}
    recording = {"steps": [step]}
    (named,) = film(recording, {"Ben": "bell"})["steps"]
    assert (list(named["texts"]), list(named["computed"]), named["resumed"]) == (["Ben.1", "r1"], ["r1"], ["Ben.1"])
    assert named["said"] == "r1 is admitted; Ben.1 resumes."
    assert recording == {"steps": [step]}
    assert "said" not in step
