"""The eight puzzles of notebook 07: what their checks notice, and solutions that cannot drift.

test_exercises.py tries the wrong answers of wrong_n07.py.
"""

import ast
import inspect

import pytest

pytest.importorskip("triton", reason="kernels run in Triton's interpreter")
import torch
from pagedlab_lessons.checks import check, kernels
from pagedlab_lessons.kernels07 import ladder, puzzles
from pagedlab_lessons.kernels07 import watch as watching
from pagedlab_lessons.kernels07.ladder import decoder
from pagedlab_lessons.kernels07.puzzles import PUZZLES, splits_for
from pagedlab_lessons.kernels07.watch import Memory, Outside, define, source_of
from wrong_n07 import EDITS

from pagedlab.kernels.runtime import INTERPRETED
from support.exercises import EXERCISES, solution_of
from support.exercises import edited_answer as answer
from support.warm import processes

interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton compiles here")
EXERCISES_OF_07 = {exercise.name: exercise for exercise in EXERCISES if exercise.notebook.startswith("07")}


def test_there_are_eight_puzzles_with_three_mistakes_each():
    assert list(EDITS) == [*PUZZLES, "launch"] == list(EXERCISES_OF_07)
    assert all(sum(bool(named) for *_, named in listed) >= 3 for listed in EDITS.values())


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
@pytest.mark.parametrize("name", ["decode", "grouped", "split", "launch"])
def test_solutions_run_as_functions(name, seed):
    given = puzzles.PUZZLES["grouped"].given(lengths=(40, 3, 300, 17), heads=6, kv_heads=2, size=16, dim=32)
    batch = [given[key] for key in ("q", "k_cache", "v_cache", "tables", "seq_lens")]
    out = decoder(answer(name), tile=32)(*batch)
    q, k_cache, v_cache, tables, _ = batch
    first = puzzles.decode(q[0], k_cache, v_cache, tables[0], 40, given["scale"])
    assert torch.allclose(out[0], first, atol=1e-5)
    assert torch.allclose(out, PUZZLES["grouped"].expected(given)["out"], atol=1e-5)


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
    kernel = define("@triton.jit\ndef f(out, x, N: tl.constexpr):\n    i = tl.arange(0, 4)\n"
                    "    tl.store(out + i, tl.load(x + i, mask=i < N, other=0.0))")["f"]  # fmt: skip
    memory = Memory()
    out, x = memory.put("out", torch.zeros(4)), memory.put("x", torch.arange(3.0))
    memory.run(lambda: kernel[(1,)](out, x, 3))
    assert out.tolist() == [0, 1, 2, 0]
    assert [load.elements.tolist() for load in memory.loads["x"]] == [[0, 1, 2]]
    assert [store.elements.tolist() for store in memory.stores["out"]] == [[0, 1, 2, 3]]
    with pytest.raises(Outside, match="loads element 3 of x"):
        memory.run(lambda: kernel[(1,)](out, x, 4))


@interpreted
def test_source_brings_along_what_a_kernel_uses():
    names = define(
        "W = tl.constexpr(3)\n@triton.jit\ndef helper(x):\n    return x * W\n"
        "@triton.jit\ndef f(out):\n    tl.store(out, helper(2))"
    )
    again = define(source_of(names["f"]))
    out = torch.zeros(1, dtype=torch.int32)
    again["f"][(1,)](out)
    assert out.item() == 6


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
