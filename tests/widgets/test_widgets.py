"""The block grid without a browser: messages in, `state` out. test_browser.py clicks on the real thing."""

import json
import re
from xml.parsers.expat import ParserCreate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagedlab_lessons.colors import sequence_color
from pagedlab_lessons.drawing import label, svg
from pagedlab_lessons.widgets import CHALLENGES, PRESETS, BlockPoolWidget
from pagedlab_lessons.widgets.operations import operations
from pagedlab_lessons.widgets.page import name_of, stored

from pagedlab import BlockPool, BlockTable
from support import broken
from support.plain_pool import PlainPool


def click(widget, op, **fields):
    """Send what the page sends, and return the state that the page gets."""
    widget.receive(widget, {"op": op, **fields}, [])
    return widget.state


def comparable(widget):
    changing = ("serial", "focus", "steps", "position", "next", "log")
    return {key: value for key, value in widget.state.items() if key not in changing}


# Operations and the log ------------------------------------------------------------------------------------------


def test_a_click_drives_the_real_pool_and_the_log_says_what_happened():
    widget = BlockPoolWidget(BlockPool, num_blocks=16, block_size=4)
    pool = widget.pool
    click(widget, "new", n=15)
    click(widget, "fork", sequence="s0")
    assert widget.do("new", "chat", 25) == "chat"
    state = click(widget, "write", sequence="s1")
    assert [pool.refcount(b) for b in range(12)] == [2, 2, 2] + [1] * 9 == state["counts"][:12]
    assert [text.split(":")[0] for text, _ in state["log"]] == [
        "new s0",
        "fork s0 into s1",
        "new chat",
        "append 1 to s1",
    ]
    assert state["copies"] == [[3, 11]]
    assert state["figures"] == {"used": 12, "free": 4, "shared": 3, "copied": 1, "with copies": 15}
    assert state["saved"] == "6 MiB"
    state = click(widget, "free", sequence="s0")
    assert state["counts"][:4] == [1, 1, 1, 0]
    assert list(widget.tables) == ["s1", "chat"]
    assert state["tables"][0]["look"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explode", "s0"), "verb must be one of"),
        (("append", "s9"), "no sequence 's9'"),
        (("append", "s0", 0), "at least 1, got 0"),
        (("append", "s0", 2.5), "whole number"),
        (("new", "s0"), "a sequence 's0' already"),
        (("fork",), "no sequence None"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(arguments, said):
    widget = BlockPoolWidget()
    widget.do("new", n=5)
    before = comparable(widget)
    with pytest.raises(ValueError, match=said):
        widget.do(*arguments)
    assert comparable(widget) == before


@pytest.mark.parametrize("message", [None, 7, {}, {"op": "seek", "step": "x"}, {"op": "_show"}])
def test_a_bad_message_is_answered_in_the_widget(message):
    widget = BlockPoolWidget()
    serial = widget.state["serial"]
    widget.receive(widget, message)
    assert widget.state["serial"] == serial + 1
    assert widget.state["alert"].startswith("ValueError")


def test_bad_arguments():
    for arguments, said in [
        ({"preset": "?"}, "preset must be one of"),
        ({"challenge": "?"}, "challenge must be one of"),
        ({"num_blocks": 1025}, "from 1 to 1024"),
    ]:
        with pytest.raises(ValueError, match=said):
            BlockPoolWidget(**arguments)


# Going back ------------------------------------------------------------------------------------------------------

VERBS = ["new", "append", "write", "fork", "free", "undo", "redo"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 40), st.integers(0, 99)), max_size=25)


def play(widget, verb, n, which):
    names = list(widget.tables)
    sequence = names[which % len(names)] if names and verb != "new" else None
    click(widget, verb, sequence=sequence, n=n)


@settings(max_examples=80, deadline=None)
@given(OPERATIONS, st.sampled_from([1, 4, 16]))
def test_state_is_what_pool_and_tables_say_and_every_step_can_be_seen_again(operations, block_size):
    widget = BlockPoolWidget(num_blocks=12, block_size=block_size)
    seen = {0: comparable(widget)}
    for operation in operations:
        play(widget, *operation)
        if not widget.state["alert"].startswith("ValueError"):  # a click on nothing, such as Free without a sequence
            now, last = widget.state["step"], widget.state["steps"]
            seen = {step: state for step, state in seen.items() if step <= max(now, last)}  # no other future
            seen[now] = comparable(widget)
            widget.pool.check(widget.tables.values())
            assert widget.state["counts"] == [widget.pool.refcount(b) for b in range(12)]
            assert widget.state["figures"]["free"] == widget.pool.num_free
            assert [t["blocks"] for t in widget.state["tables"]] == [t.block_ids for t in widget.tables.values()]
            assert not widget.state["alert"] or widget.last.error
    steps = widget.state["steps"]
    for step in [*range(0, steps + 1, 2), *range(steps, -1, -1)]:  # forward in leaps, back one by one
        click(widget, "seek", step=step)
        if step in seen:
            assert comparable(widget) == seen[step]
    json.dumps(widget.state)


def test_an_operation_in_the_past_replaces_the_future():
    widget = BlockPoolWidget(preset="parallel sampling")
    widget.seek(2)
    widget.do("free", "s1")
    widget.redo()
    assert (widget.state["step"], widget.state["steps"]) == (3, 3)
    widget.reset()
    widget.undo()
    assert (widget.state["step"], widget.state["steps"], widget.state["figures"]["used"]) == (0, 0, 0)


@pytest.mark.parametrize("pool", [BlockPool, PlainPool])
@pytest.mark.parametrize("name", PRESETS)
def test_examples_play_on_any_pool(name, pool):
    for num_blocks, block_size in ((64, 16), (1024, 16), (40, 1), (3, 16)):
        widget = BlockPoolWidget(pool, num_blocks=num_blocks, block_size=block_size, preset=name)
        assert widget.state["alert"] == widget.last.error, widget.state["log"]
        assert bool(widget.state["alert"]) == (name == "out of blocks") or (num_blocks, block_size) != (64, 16)


# Readers' classes ------------------------------------------------------------------------------------------------


class RaisesOnFree(PlainPool):
    def refcount(self, block_id):
        return self.counts[block_id]


class ReturnsNothing(PlainPool):
    def allocate(self):
        super().allocate()


class Stub:
    def __init__(self, num_blocks=64, block_size=16): ...


class ForksNothing(BlockTable):
    def fork(self):
        return None


class StrangeIds(BlockTable):
    def append(self, n=1):
        self.block_ids += [99, None, "x"]


class CopiesItsOwn(BlockTable):
    def append(self, n=1):
        moved = [self.copy_last()] if self.num_tokens % self.pool.block_size else []
        return moved + super().append(n)


class SaysNothing(BlockTable):
    def append(self, n=1):
        super().append(n)
        return []


class Halfway(BlockTable):
    def append(self, n=1):
        self.block_ids.append(self.pool.allocate())
        raise RuntimeError("halfway")


def operations_of(text):
    """Verb, sequence and number of each: "fork s0, append s1 10" """
    for operation in text.split(", "):
        verb, *rest = operation.split()
        names = [word for word in rest if not word.isdigit()]
        numbers = [int(word) for word in rest if word.isdigit()]
        yield verb, names[0] if names else None, numbers[0] if numbers else None


FORK = "new 20, fork s0"
WRITE = f"{FORK}, write s1"
FREE = f"{FORK}, free s0, free s1"
# The class that is wrong, what a reader does with it, and what is said.
WRONG = [
    (broken.LeaksOnFork, FORK, "block 1 counts 3; table entries that list it: 2"),
    (broken.CopiesWholeTable, "new 36, fork s0, write s1", "replaced a full block"),
    (broken.CopiesEagerly, FORK, "a fork shares its parent's blocks"),
    (broken.NeverCopies, WRITE, "s1 writes into block 1, which s0 reads too"),
    (broken.FreesSharedBlock, f"{FORK}, free s0", "block 0 counts as free, but s1 still reads it"),
    (broken.LosesBlocks, FREE, "num_free is 62, but 64"),
    (
        broken.HandsOutInTurn,
        "new 512, new 400, free s1, new 200",
        "block 0 counts 1; table entries that list it: 2",
    ),
    (RaisesOnFree, "new 20", "the pool cannot be read: KeyError: 2 (refcount: return self.counts[block_id])"),
    (
        ReturnsNothing,
        "new 20",
        "s0.block_ids[0] must be a whole number from 0 to 63",
    ),
    (StrangeIds, "new 20", "append returned None"),
    (CopiesItsOwn, "new 20, write s0", "block 1 was s0's alone and was copied"),
    (SaysNothing, WRITE, "s1 moved from block 1 to 2, but append named no such copy"),
    (ForksNothing, FORK, "fork returned None, not a table"),
    (Stub, "new 20", "the pool cannot be read: AttributeError"),
    (Halfway, "new 3", "failed, and yet something changed"),
]


@pytest.mark.parametrize(("wrong", "operations", "said"), WRONG)
def test_what_a_readers_class_does_wrong_is_shown_and_breaks_no_page(wrong, operations, said):
    kind = "table" if issubclass(wrong, BlockTable) else "pool"
    widget = BlockPoolWidget(**{kind: wrong})
    for verb, sequence, n in operations_of(operations):
        click(widget, verb, sequence=sequence, n=n)
    assert said in widget.state["alert"]
    for verb in ("undo", "redo", "append", "free", "reset"):
        serial = widget.state["serial"]
        click(widget, verb, sequence="s0", n=1)
        assert widget.state["serial"] > serial, "the page gets its answer"
        json.dumps(widget.state)
    assert widget.picture()


# Challenges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [BlockPool, PlainPool])
@pytest.mark.parametrize("name", CHALLENGES)
def test_a_solution_reaches_its_goal_at_the_last_step_and_not_before(name, pool):
    widget = BlockPoolWidget(pool, challenge=name)
    for verb, sequence, n, _ in operations(widget.challenge.solution):
        assert widget.state["challenge"]["missing"]
        widget.do(verb, sequence, n)
        assert not widget.last.problems
    assert not widget.state["challenge"]["missing"]


FORKED = "new 64, fork s0, fork s0, fork s0, append s0 10, append s1 10, append s2 10, append s3 10"


@pytest.mark.parametrize(
    ("name", "operations", "said"),
    [
        ("one_copy", "new 20, fork s0, fork s0, write s1, write s2", "2 blocks"),
        ("four_in_eleven", "new 74, new 74, new 74, new 74", "20 blocks are in use"),
        ("four_in_eleven", FORKED, "no block was copied yet"),
        ("fork_without_copy", "new 30, fork s0, append s0 10, append s1 10", "1 copied"),
        ("full_for_one", "new 64, write s0", "has room"),
        ("full_for_one", "new 60, append s0 100", "of one token"),
    ],
)
def test_other_ways_do_not_reach_it(name, operations, said):
    widget = BlockPoolWidget(challenge=name)
    for verb, sequence, n in operations_of(operations):
        widget.do(verb, sequence, n)
    assert said in widget.challenge.missing(widget)[-1]


# The picture -----------------------------------------------------------------------------------------------------

GROUND = re.compile(
    r'<svg [^>]*viewBox="(\S+) (\S+) (\S+) (\S+)"[^>]*><rect x="\1" y="\2" width="\3" height="\4" rx="10" fill="#fff"/>'
)


def still(widget):
    """The stored picture: on a ground of its own, without what only a page has."""
    data, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    svg = data["image/svg+xml"]
    assert GROUND.match(svg)
    assert len(svg) < 25_000
    assert "var(" not in svg, "there is no theme where it is shown"
    assert set(re.findall(r"url\(#([\w-]+)\)", svg)) <= set(re.findall(r'<pattern id="([\w-]+)"', svg))
    assert f'<img alt="{name_of(widget.picture())}" src="data:image/svg+xml;base64,' in data["text/html"]
    return svg


def test_the_stored_picture_shows_the_state():
    shown = still(BlockPoolWidget(preset="beam search"))
    assert shown == still(BlockPoolWidget(preset="beam search"))
    assert len(re.findall(r"<text [^>]*>4</text>", shown)) == 4 + 1, (
        "four blocks are shared by four, and one is block 4"
    )
    assert sequence_color(0) not in still(BlockPoolWidget())
    challenge = BlockPoolWidget(challenge="one_copy")
    assert "Challenge: Cause exactly one copy." in still(challenge)


def test_whatever_a_model_writes_can_be_drawn():
    text = "color: var(--brand) \x00 a \x0c <b> & \x1b"
    shown = stored(svg(300, 20, [label(0, 12, text)]), "a drawing")["image/svg+xml"]
    assert "color: var(--brand)" in shown
    ParserCreate().Parse(shown, True)  # as strict as a browser is about a picture
