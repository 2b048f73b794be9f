"""The machinery behind the exercises: stubs, endless loops, errors, and counterexamples that are as small as can be."""

import asyncio
import posixpath
import pydoc
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagedlab_lessons import readers_code
from pagedlab_lessons.checks import CheckResult, check, compared, search, to_write
from pagedlab_lessons.checks.protocol import NAMES, REGISTERED, Wrong, compare
from pagedlab_lessons.readers_code import HAS_ALARM
from pagedlab_lessons.show import show_source

from pagedlab import BlockPool, BlockTable
from pagedlab.kernels.runtime import INTERPRETED
from support import broken

# Stubs --------------------------------------------------------------------------------------------------------


def documented_stub(n):
    """What it should return."""
    ...


def raises_not_implemented(*arguments):
    raise NotImplementedError


def returns_none(n):
    return None


class HalfWritten(BlockPool):
    def allocate(self): ...

    @property
    def num_free(self): ...

    def share(self, block_id):
        return super().share(block_id)


class Empty: ...


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (..., ["the answer"]),
        (None, ["the answer"]),
        ([1, ...], ["the answer"]),
        ({"A": 1, "B": ...}, ["B"]),
        (documented_stub, ["documented_stub"]),
        (HalfWritten, ["allocate", "num_free"]),
        (Empty, ["Empty"]),
        (returns_none, []),
        (0, []),
        (BlockPool, []),
        (lambda n: n, []),
    ],
)
def test_to_write_names_the_stubs_and_nothing_else(answer, missing):
    assert to_write(answer) == missing


def test_stubs_are_not_attempted_and_say_what_is_left():
    result = check.block_pool(HalfWritten)
    assert (result.status, result.message) == ("not attempted", "Still to write: allocate, num_free.")
    assert check.slot(raises_not_implemented).status == "not attempted"


# What a reader's code may do ----------------------------------------------------------------------------------


def test_an_endless_loop_fails_with_the_operations_that_led_there():
    class Swallows(BlockPool):
        def release(self, block_id):
            super().release(block_id)
            while True:
                try:
                    block_id += 1
                except Exception:
                    block_id = 0

    before = sys.gettrace()
    result = check.block_pool(Swallows)
    assert sys.gettrace() is before
    assert result.operations == ("a = pool.allocate()", "pool.release(a)")
    assert "it is still running after 1,000,000 steps" in result.got


def test_steps_of_the_library_do_not_count():
    with readers_code.bounded(9):
        posixpath.join(*12 * ["a"])  # frozen in Python 3.11, as importlib is


def test_an_error_shows_the_line_that_it_comes_from():
    class Divides(BlockTable):
        def append(self, n=1):
            return n // 0

    got = check.copy_on_write(Divides).got
    assert got.startswith("ZeroDivisionError")
    assert "append: return n // 0" in got


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")


HOSTILE = [SystemExit("bye"), GeneratorExit(), asyncio.CancelledError(), BaseException("mine"), Silent()]


def raises(error):
    def answer(*arguments, **options):
        raise error

    return answer


@pytest.mark.parametrize("error", HOSTILE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", ["slot", "block_pool", "engine_loop", "softmax_step", "launch"])
def test_no_error_leaves_a_check(name, error):
    if name == "launch" and not INTERPRETED:
        pytest.skip("it runs in another process, which does not know the error")
    result = getattr(check, name)(raises(error))
    assert result.status == "failed"
    assert type(error).__name__ in result.got


class RaisesOnEveryLook:
    def __getattribute__(self, name):
        raise SystemExit(name)


def test_an_interrupt_by_the_reader_goes_through():
    with pytest.raises(KeyboardInterrupt):
        check.block_pool(raises(KeyboardInterrupt()))


@pytest.mark.skipif(not HAS_ALARM, reason="this system has no alarm")
def test_an_answer_that_sleeps_or_swallows_everything_is_stopped(monkeypatch):
    def sleeps(*case):
        time.sleep(600)

    def swallows(*case):
        while True:
            try:
                case = [*case][:3]
            except:  # noqa: E722 - as a reader may write it
                case = []

    monkeypatch.setattr(readers_code, "MAX_SECONDS", 0.5)
    before = signal.getsignal(signal.SIGALRM)
    for answer, time_or_steps in ((sleeps, "0.5 seconds"), (swallows, "1,000,000 steps")):
        # A browser has no alarm: there, steps alone stop an answer.
        monkeypatch.setattr(readers_code, "HAS_ALARM", answer is sleeps)
        result = check.slot(answer)
        assert result.status == "failed"
        assert f"it is still running after {time_or_steps}" in result.got
        assert signal.getsignal(signal.SIGALRM) is before


def test_a_check_in_another_thread_has_no_alarm_and_works():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(check.slot, raises(ValueError("mine"))).result().status == "failed"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("slot", lambda *case: list(range(10**6))),
        ("kept_tokens", raises(ValueError("x" * 10**6))),
    ],
)
def test_a_long_result_is_shortened(name, answer):
    result = getattr(check, name)(answer)
    assert result.status == "failed"
    assert len(str(result)) < 10_000
    assert result.expected != result.got


@pytest.mark.parametrize(
    ("name", "answer", "got"),
    [
        ("latencies", lambda *case: np.zeros(2), "ndarray"),
        ("attend_one", lambda q, *rest: q.numpy(), "ndarray"),
    ],
)
def test_a_value_of_another_kind_is_named(name, answer, got):
    assert f"returns a value of type {got}" in getattr(check, name)(answer).message


@pytest.mark.parametrize("make", [int, list, dict, lambda: int, lambda: len, RaisesOnEveryLook, Silent])
def test_nonsense_never_ends_in_a_traceback(make):
    statuses = {name: getattr(check, name)(make()).status for name in dir(check)}
    assert set(statuses.values()) == {"failed"}, statuses


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([10, 11], "2 x 16 = 32 slots, and the prompt has 40 tokens"),
        ([0, 1, 2, 4], "A further block would be empty"),
        ([16, 16, 8], "These are numbers of tokens"),
        ([1, 1, 2], "Block 1 is in the table twice"),
        ([0, 9, 1], "Block 9 is in use: r2 keeps its tokens from 32 on there"),
        ([0, 1, 64], "There is no block 64"),
        (40, "A block table is a list of block numbers"),
        ([8, 1, 0], "says: in block 0, at offset 5"),
    ],
)
def test_the_first_check_answers_what_was_given(answer, message):
    assert message in check.table_by_hand(answer).message


# Checks that a teacher writes ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def registered():
    before = {name: getattr(check, name) for name in dir(check)}  # imports all topics
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


def twice(n):
    """Two times the number."""
    return 2 * n


def half_of(n):
    return 1 / n


@pytest.mark.parametrize(
    ("right", "why", "error"),
    [(half_of, "", ZeroDivisionError), (twice, half_of, ZeroDivisionError), (twice, lambda: "because", TypeError)],
)
def test_a_teachers_mistake_is_found_where_the_check_is_written(right, why, error):
    with pytest.raises(error):
        compared("Right.", [(1,), (0,)], why=why)(right)
    assert right.__name__ not in dir(check)


def test_a_teacher_cannot_replace_a_check_of_the_series():
    def slot(answer):
        """A class."""
        return "Right."

    with pytest.raises(ValueError, match="the series has a check 'slot'; choose a name"):
        compared("Right.", [(1,)])(slot)


def test_floats_may_differ_a_little():
    compare(lambda n: 0.1 + n, lambda n: 0.3, [(0.2,)])  # 0.30000000000000004


def test_an_answer_that_changes_its_argument_does_not_pass_by_it():
    @compared("Right.", [([3, 1, 2],)])
    def first_of(values):
        return values.pop(0)

    def sorts(values):
        values.sort()
        return values[0]

    for _ in range(2):
        result = check.first_of(sorts)
        assert (result.status, result.operations) == ("failed", ("sorts([3, 1, 2])",)), str(result)
        assert check.first_of(lambda values: values[0]).status == "passed"


def test_braces_become_the_number_of_cases_and_the_docstring_the_help():
    for _ in range(2):  # the cell is run again
        compared("Right for all {} of {1, 2}.", [(1,), (2,)])(twice)
    assert check.twice(twice).message == "Right for all 2 of {1, 2}."
    said = pydoc.render_doc(check.twice, renderer=pydoc.plaintext)
    assert "twice(answer: 'Any') -> 'CheckResult'" in said
    assert "The answer: Two times the number." in said


# Results ------------------------------------------------------------------------------------------------------


def test_a_result_reads_as_text_and_as_escaped_html():
    result = CheckResult("failed", "a < b", "pool = P(1)", ("a = pool.allocate()",), "[0]", "<b>", "block_pool")
    assert str(result).splitlines() == [
        "failed · block_pool",
        "a < b",
        "     pool = P(1)",
        "  1  a = pool.allocate()",
        "expected   [0]",
        "yours      <b>",
    ]
    assert repr(result) == str(result)
    assert "a &lt; b" in result._repr_html_()
    assert "<b>\n" not in result._repr_html_()


def test_an_unknown_check_names_those_there_are():
    with pytest.raises(AttributeError, match=r"no check 'blok_pool'; there are .*block_pool.*slot"):
        check.blok_pool  # noqa: B018


@pytest.mark.parametrize("module", NAMES)
def test_each_module_has_the_checks_that_are_listed(module):
    made_in = {"n07": "kernels"}.get(module, module)
    registered = {name for name in dir(check) if str(getattr(check, name).__module__).endswith(f".{made_in}")}
    assert registered == set(NAMES[module])


# The search ---------------------------------------------------------------------------------------------------


def letters(fatal):
    """Fails once its operations contain `fatal` in order, whatever stands between."""
    yield "letters"
    for letter in fatal:
        while (yield "xyz") != letter:
            pass
    raise Wrong("all there")


@given(st.text("xyz", min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_search_shrinks_to_the_operations_that_matter(fatal):
    with pytest.raises(Wrong) as found:
        search([lambda: letters(fatal)])
    assert "".join(found.value.operations) == fatal
    search([lambda: letters("xyzzyx" * 5)])  # longer than any walk


@pytest.mark.parametrize(
    ("answer", "at_most"),
    [
        (broken.LeaksOnFork, 2),
        (broken.CopiesEagerly, 2),
        (broken.CopiesWholeTable, 3),
        (broken.NeverCopies, 3),
        (broken.FreesSharedBlock, 3),
        (broken.CountsBeforeItLooks, 3),
        (broken.LosesBlocks, 4),
        (broken.HandsOutInTurn, 5),
    ],
)
def test_broken_classes_have_the_smallest_counterexample(answer, at_most):
    result = (check.block_pool if issubclass(answer, BlockPool) else check.copy_on_write)(answer)
    assert len(result.operations) == at_most, str(result)


def test_a_counterexample_is_python_that_a_reader_can_run():
    result = check.copy_on_write(broken.LeaksOnFork)
    names = {"BlockPool": BlockPool, "LeaksOnFork": broken.LeaksOnFork}
    exec("\n".join([result.setup, *result.operations]), names)
    assert "block 0 counts 3" in result.message
    assert names["pool"].refcount(0) == 3


# Source in notebooks ------------------------------------------------------------------------------------------


def test_show_source_is_the_source_under_its_file():
    shown = show_source(BlockTable.append, BlockPool.share)
    assert "Returns:" not in shown.text
    assert shown.text.startswith("# pagedlab/blocks.py: BlockTable.append\ndef append(self, n: int = 1)")
    assert "\n\n# pagedlab/blocks.py: BlockPool.share\ndef share" in shown.text
    assert shown.text[40:] in shown._repr_markdown_()  # from the second line on
    with pytest.raises(ValueError, match="no source"):
        show_source(3)


def test_a_triton_kernel_is_shown_like_the_function_that_it_is():
    ladder = pytest.importorskip("pagedlab_lessons.kernels07.ladder")
    shown = repr(show_source(ladder.several_pages_kernel))
    assert shown.startswith(
        "# pagedlab_lessons/kernels07/ladder.py: several_pages_kernel\n@triton.jit\ndef several_pages_kernel("
    )
    assert shown.endswith("tl.store(out + row, acc / total)")
