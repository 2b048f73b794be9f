"""The machinery behind the exercises: stubs, endless loops, errors, and counterexamples that are as small as can be."""

from __future__ import annotations

import contextlib
import pydoc
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import broken
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import BlockPool, BlockTable
from pagedlab.blocks import InvariantError
from pagedlab.checks import TOPICS, CheckResult, Trial, Wrong, check, compare, search, to_write
from pagedlab.checks.results import REGISTERED
from pagedlab.lessons.show import show_source

# Stubs --------------------------------------------------------------------------------------------------------


def stub(n: int) -> int: ...  # type: ignore[empty-body]


def documented_stub(n: int) -> int:
    """What it should return."""
    ...


def raises_not_implemented(*arguments: Any) -> int:
    raise NotImplementedError


class HalfWritten(BlockPool):
    def allocate(self) -> int: ...  # type: ignore[empty-body]

    @property
    def num_free(self) -> int: ...  # type: ignore[empty-body]

    def share(self, block_id: int) -> int:
        return super().share(block_id)


class Empty: ...


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (..., ["the answer"]),
        (None, ["the answer"]),
        ([1, ...], ["the answer"]),
        ({"A": 1, "B": ...}, ["B"]),
        (stub, ["stub"]),
        (documented_stub, ["documented_stub"]),
        (HalfWritten, ["allocate", "num_free"]),
        (Empty, ["Empty"]),
        (0, []),
        ("", []),
        ([], []),
        (len, []),
        (BlockPool, []),
        (lambda n: n, []),
        (lambda: 0, []),
    ],
)
def test_to_write_names_the_stubs_and_nothing_else(answer: Any, missing: list[str]) -> None:
    assert to_write(answer) == missing


def test_stubs_are_not_attempted_and_say_what_is_left() -> None:
    result = check.block_pool(HalfWritten)
    assert result.status == "not attempted"
    assert "allocate, num_free" in result.message
    assert check.slot(raises_not_implemented).status == "not attempted"
    table = type("MyTable", (BlockTable,), {"fork": raises_not_implemented})
    assert check.copy_on_write(table).status == "not attempted"


# What a reader's code may do ----------------------------------------------------------------------------------


def test_an_endless_loop_fails_with_the_operations_that_led_there() -> None:
    class Spins(BlockPool):
        def release(self, block_id: int) -> None:
            super().release(block_id)
            while True: pass  # fmt: skip  # noqa: E701

    class Swallows(BlockPool):
        def release(self, block_id: int) -> None:
            super().release(block_id)
            while True:
                try:
                    block_id += 1
                except Exception:
                    block_id = 0

    before = sys.gettrace()
    for answer in (Spins, Swallows):
        result = check.block_pool(answer)
        assert sys.gettrace() is before
        assert result.operations == ("a = pool.allocate()", "pool.release(a)")
        assert "still running" in result.got


def test_endless_recursion_and_errors_show_the_line_they_come_from() -> None:
    class Recurses(BlockTable):
        def fork(self) -> BlockTable:
            return self.fork()

    class Divides(BlockTable):
        def append(self, n: int = 1) -> Any:
            return n // (len(self.block_ids) - len(self.block_ids))

    assert "RecursionError" in check.copy_on_write(Recurses).got
    result = check.copy_on_write(Divides)
    assert result.got.startswith("ZeroDivisionError")
    assert "append: return n // (len(self.block_ids)" in result.got


@pytest.mark.parametrize("answer", [42, "text", [1, 2], {}, object(), int, lambda: 0])
def test_nonsense_never_ends_in_a_traceback(answer: Any) -> None:
    statuses = {name: getattr(check, name)(answer).status for name in dir(check)}
    assert set(statuses.values()) == {"failed"}, statuses


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (2, "2 is the number of the table's entry."),
        (3, "there is no entry 3"),
        (9, "Block 9 is the table's second entry: it holds tokens 16 to 31."),
        (37 / 16, "is not a whole number"),
        (1, "one of the numbers in the table"),
        ("block 2", "one of the numbers in the table"),
    ],
)
def test_the_first_check_answers_what_was_given(answer: Any, message: str) -> None:
    result = check.block_of(answer)
    assert (result.status, result.got) == ("failed", repr(answer))
    assert message in result.message
    assert "physical block 4" not in str(result), "the answer is not given away"


def test_pools_named_in_a_list_are_asked_for_as_a_dict() -> None:
    result = check.broken_pools(["counted", "exclusive", "atomic"])
    assert result.message == "The answer is a dictionary with a name for each pool."
    assert "AttributeError" not in str(result)


def test_a_replacement_that_is_no_distribution_is_named() -> None:
    def unnormalised(p: list[float], q: list[float], token: int) -> tuple[float, list[float]]:
        return min(1.0, p[token] / q[token]), [max(0.0, a - b) for a, b in zip(p, q, strict=True)]

    assert "do not add up to 1" in check.acceptance_rule(unnormalised).message


def test_compare_reports_the_first_case_and_protects_its_arguments() -> None:
    def empties(values: list[int]) -> int:
        return len([values.pop() for _ in range(len(values))])

    cases = [([],), ([1, 2],)]
    compare(empties, len, cases)
    assert cases == [([],), ([1, 2],)]
    with pytest.raises(Wrong) as wrong:
        compare(lambda values: 0, len, cases)
    assert wrong.value.operations == ("<lambda>([1, 2])",)
    assert (wrong.value.expected, wrong.value.got) == (2, "0")
    compare(lambda n: 0.1 + n, lambda n: 0.3, [(0.2,)])  # 0.30000000000000004


# Results ------------------------------------------------------------------------------------------------------


def test_a_result_reads_as_text_and_as_escaped_html() -> None:
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


def test_an_unknown_check_names_those_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no check 'blok_pool'; there are .*block_pool"):
        check.blok_pool  # noqa: B018


def test_help_describes_the_answer_and_the_result() -> None:
    said = pydoc.render_doc(check.slot, renderer=pydoc.plaintext)
    assert "slot(answer: 'Any') -> 'CheckResult'" in said
    assert "Your function is called like slot(block_ids: collections.abc.Sequence[int], position: int" in said
    assert "The answer: A class with BlockPool's verbs." in (check.block_pool.__doc__ or "")
    listed = pydoc.render_doc(check, renderer=pydoc.plaintext)
    assert all(name in listed for name in dir(check))


def test_each_module_has_the_checks_that_are_listed() -> None:
    for topic, names in TOPICS.items():
        import_module(f"pagedlab.checks.{topic}")
        module = "watched" if topic == "kernel" else topic  # it registers the puzzles
        assert {name for name in REGISTERED if REGISTERED[name].__module__.endswith(f".{module}")} == set(names)
    assert set(REGISTERED) == set(dir(check))


def test_importing_the_checks_pulls_in_no_torch() -> None:
    code = "import sys; from pagedlab.checks import check; dir(check); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The search ---------------------------------------------------------------------------------------------------


def letters(fatal: Sequence[str]) -> Trial:
    """Fails once its operations contain `fatal` in order, whatever stands between."""
    yield "letters"
    for letter in fatal:
        while (yield "xyz") != letter:
            pass
    raise Wrong("all there")


@given(st.text("xyz", min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_search_shrinks_to_the_operations_that_matter(fatal: str) -> None:
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
def test_broken_classes_have_the_smallest_counterexample(answer: type, at_most: int) -> None:
    result = (check.block_pool if issubclass(answer, BlockPool) else check.copy_on_write)(answer)
    assert result.status == "failed"
    assert len(result.operations) == at_most, str(result)
    assert result.setup.startswith("pool = ")


def test_a_counterexample_is_python_that_a_reader_can_run() -> None:
    result = check.copy_on_write(broken.LeaksOnFork)
    names: dict[str, Any] = {"BlockPool": BlockPool, "LeaksOnFork": broken.LeaksOnFork}
    exec("\n".join([result.setup, *result.operations]), names)
    assert "block 0 counts 3" in result.message
    assert names["pool"].refcount(0) == 3


@pytest.mark.parametrize("answer", [broken.HandsOutInTurn, broken.CountsBeforeItLooks, broken.LosesBlocks])
def test_broken_pools_fail_their_own_books_too(answer: type[BlockPool]) -> None:
    result = check.block_pool(answer)
    lines = [result.setup, *(line for line in result.operations[:-1])]
    names: dict[str, Any] = {answer.__name__: answer}
    exec("\n".join(lines), names)
    with contextlib.suppress(ValueError):
        exec(result.operations[-1], names)
    with pytest.raises(InvariantError):
        names["pool"].check()


# Source in notebooks ------------------------------------------------------------------------------------------


def test_show_source_is_the_source_under_its_file() -> None:
    shown = show_source(BlockTable.append, BlockPool.share)
    assert repr(shown).startswith("# pagedlab/blocks.py: BlockTable.append\ndef append(self, n: int = 1)")
    assert "\n\n# pagedlab/blocks.py: BlockPool.share\ndef share" in repr(shown)
    assert f"```python\n{shown!r}\n```" in shown._repr_markdown_()
    with pytest.raises(ValueError, match="no source"):
        show_source(3)


def test_a_triton_kernel_is_shown_like_the_function_that_it_is() -> None:
    ladder = pytest.importorskip("pagedlab.lessons.ladder")
    shown = repr(show_source(ladder.one_page_kernel))
    assert shown.startswith("# pagedlab/lessons/ladder.py: one_page_kernel\n@triton.jit\ndef one_page_kernel(")
    assert shown.endswith("tl.store(out + row, acc / total)")
