"""The eight puzzles of notebook 07: every wrong answer is told what is wrong with it, and solutions cannot drift."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels run in Triton's interpreter")
import torch
from wrong_kernel import MISTAKES, answer, solutions

from pagedlab.checks import check
from pagedlab.kernels import runtime
from pagedlab.kernels.runtime import INTERPRETED
from pagedlab.lessons import ladder, puzzles, tracer
from pagedlab.lessons.fence import Memory, Outside, define, source_of
from pagedlab.lessons.puzzles import PUZZLES, decoder, splits_for

interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton compiles here")
CASES = [(name, number) for name, listed in MISTAKES.items() for number in range(len(listed))]


def test_there_are_eight_puzzles_with_four_mistakes_each() -> None:
    assert list(MISTAKES) == [*PUZZLES, "launch"] == list(solutions())
    assert all(sum(bool(named) for *_, named in listed) >= 4 for listed in MISTAKES.values())


@interpreted
@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_mistake_is_named(name: str, number: int) -> None:
    old, new, named = MISTAKES[name][number]
    result = getattr(check, name)(answer(name, old, new))
    assert result.status == "failed"
    assert named in result.message.replace("\n", " "), str(result)


def test_the_folded_solution_of_7_is_the_kernel_that_is_measured() -> None:
    def bare(text: str) -> list[tuple[list[str], list[str]]]:
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
    assert bare(solutions()["split"]) == bare("\n".join(map(inspect.getsource, parts)))


@interpreted
@pytest.mark.parametrize("name", ["decode", "grouped", "split", "launch"])
def test_solutions_run_as_functions(name: str, seed: int) -> None:
    given = puzzles.PUZZLES["grouped"].given(lengths=(40, 3, 300, 17), heads=6, kv_heads=2, size=16, dim=32)
    batch = [given[key] for key in ("q", "k_cache", "v_cache", "tables", "seq_lens")]
    out = decoder(answer(name), tile=32)(*batch)
    assert torch.allclose(out, PUZZLES["grouped"].expected(given)["out"], atol=1e-5)


@interpreted
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("@triton.jit\n", "", "write @triton.jit above its def"),
        ("tl.load(s + i, mask=mine)", "s[i]", "s[...] indexes a tensor"),
        ("tl.arange(0, TILE)", "tl.arange(0, n)", "tl.constexpr"),
        ("tl.exp(", "torch.exp(", "A kernel calls torch"),
    ],
)
def test_what_a_pytorch_user_writes_first_gets_a_sentence(old: str, new: str, said: str) -> None:
    result = check.weights(answer("weights", old, new))
    assert result.status == "failed"
    assert said in result.message.replace("\n", " ")


@interpreted
def test_nan_of_the_arithmetic_is_no_missing_mask() -> None:
    raw_logs = answer("split", "weight = tl.exp(log - tl.max(log, 0))", "weight = log")
    assert "out of the arithmetic" in check.split(raw_logs).message


@interpreted
def test_a_fence_stops_what_reaches_outside_and_notes_the_rest() -> None:
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
def test_source_brings_along_what_a_kernel_uses() -> None:
    names = define(
        "W = tl.constexpr(3)\n@triton.jit\ndef helper(x):\n    return x * W\n"
        "@triton.jit\ndef f(out):\n    tl.store(out, helper(2))"
    )
    again: dict[str, Any] = define(source_of(names["f"]))
    out = torch.zeros(1, dtype=torch.int32)
    again["f"][(1,)](out)
    assert out.item() == 6


@interpreted
def test_where_triton_compiles_another_process_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "INTERPRETED", False)
    monkeypatch.setattr(tracer, "INTERPRETED", False)
    result = check.decode(answer("decode", "h // GROUP", "h % KV_HEADS"))
    assert result.status == "failed"
    assert "dealt out in turn" in result.message
    assert result.expected != result.got
    assert check.split(answer("split")).status == "passed"
    assert check.launch(answer("launch")).status == "passed"
