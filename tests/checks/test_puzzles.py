"""The eight puzzles of notebook 07: what their checks notice, and solutions that cannot drift.

test_exercises.py tries the wrong answers of wrong_n07.py.
"""

import ast
import inspect

import pytest

pytest.importorskip("triton", reason="kernels run in Triton's interpreter")
import torch
from pagedlab_lessons.checks import check, kernels
from pagedlab_lessons.kernels07 import ladder
from pagedlab_lessons.kernels07 import watch as watching
from pagedlab_lessons.kernels07.puzzles import splits_for
from pagedlab_lessons.kernels07.watch import Memory, Outside, define

from pagedlab.kernels.runtime import INTERPRETED
from support.exercises import EXERCISES, solution_of
from support.exercises import edited_answer as answer
from support.warm import processes

interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton compiles here")
EXERCISES_OF_07 = {exercise.name: exercise for exercise in EXERCISES if exercise.notebook.startswith("07")}


def test_the_folded_solution_of_7_is_the_kernel_that_is_measured():
    def bare(text):
        """Parameters and statements of each function, without docstrings, in one format."""
        text = text.replace("split_kernel", "my_split").replace("merge_kernel", "my_merge")
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        return [
            (
                [parameter.arg for parameter in node.args.args],
                [ast.unparse(line) for line in node.body if not isinstance(getattr(line, "value", None), ast.Constant)],
            )
            for node in functions
        ]

    parts = [getattr(item, "fn", item) for item in (ladder.split_kernel, ladder.merge_kernel, splits_for)]
    assert bare(solution_of(EXERCISES_OF_07["split"])) == bare("\n".join(map(inspect.getsource, parts)))


@interpreted
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_no_error_of_a_kernel_leaves_its_check_but_an_interrupt(error):
    names = define("@triton.jit\ndef kernel(out, s, m, n, TILE: tl.constexpr):\n    fails()")

    def fails():
        raise error("bye")

    names["fails"] = fails
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            check.weights(names["kernel"])
    else:
        assert "bye" in check.weights(names["kernel"]).got


@interpreted
def test_a_fence_stops_what_reaches_outside_and_notes_the_rest():
    kernel = define(
        "@triton.jit\ndef f(out, x, N: tl.constexpr):\n    i = tl.arange(0, 4)\n"
        "    tl.store(out + i, tl.load(x + i, mask=i < N, other=0.0))"
    )["f"]
    memory = Memory()
    out, x = memory.put("out", torch.zeros(4)), memory.put("x", torch.arange(3.0))
    memory.run(lambda: kernel[(1,)](out, x, 3))
    assert out.tolist() == [0, 1, 2, 0]
    assert [load.elements.tolist() for load in memory.accesses["load", "x"]] == [[0, 1, 2]]
    assert [store.elements.tolist() for store in memory.accesses["store", "out"]] == [[0, 1, 2, 3]]
    with pytest.raises(Outside, match="loads element 3 of x"):
        memory.run(lambda: kernel[(1,)](out, x, 4))


@interpreted
def test_where_triton_compiles_another_process_judges(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    monkeypatch.setattr(watching, "INTERPRETED", False)
    monkeypatch.setattr(watching, "get_context", lambda kind: processes())  # test_kernels07.py starts one from nothing
    result = check.decode(answer("decode", "h // GROUP", "h % KV_HEADS"))
    assert result.status == "failed"
    assert "dealt out in turn" in result.message
    assert result.expected != result.got
    assert check.launch(answer("launch")).status == "passed"
