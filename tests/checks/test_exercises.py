"""Every exercise of every notebook: its stub is "not attempted", its folded solution passes, wrong answers fail.

What a notebook has to look like for this is in the docstring of pagedlab_lessons.checks. A kernel that is wrong may
never end, and only the interpreter stops it: on a machine with a GPU the answers are tried in a process that sees none.
"""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pagedlab_lessons.capstone import OPTIONS, Workbench
from pagedlab_lessons.checks import check
from pagedlab_lessons.widgets import Stage

from pagedlab.kernels.runtime import INTERPRETED
from support.exercises import EXERCISES, SOLUTION, edited_answer, run_cell, solution_of

HERE = Path(__file__).parent
HINT = re.compile(r"<summary>\s*Hint \d\s*</summary>")


MODULES = [import_module(path.stem) for path in sorted(HERE.glob("wrong_*.py"))]


def listed(kind):
    """Of all files wrong_nNN.py, by the name of the check."""
    return {name: answers for module in MODULES for name, answers in getattr(module, kind, {}).items()}


WRONG, RIGHT = listed("WRONG"), listed("RIGHT")  # whole answers
# Edits of the folded solution: old text, new text, and words that the check must say, if it has special ones.
EDITS, RIGHT_EDITS = listed("EDITS"), listed("RIGHT_EDITS")


def of_each(answers):
    cases = [(name, answer) for name, several in answers.items() for answer in several]
    ids = [f"{name}-{getattr(answer, '__name__', i)}" for i, (name, answer) in enumerate(cases)]
    return pytest.mark.parametrize(("name", "answer"), cases, ids=ids)


interpreted = pytest.mark.skipif(not INTERPRETED, reason="in another process, where there is a GPU")
of_each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=[f"{e.notebook}-{e.name}" for e in EXERCISES])


@interpreted
@of_each_exercise
def test_stub_is_not_attempted_and_the_folded_solution_passes(exercise):
    names = {"__name__": "notebook"}
    exec(exercise.imports, names)
    run_cell(exercise.stub, names)
    assert eval(exercise.call, names).status == "not attempted"
    run_cell(solution_of(exercise), names)
    result = eval(exercise.call, names)
    assert result.status == "passed", str(result)


@of_each_exercise
def test_hints_and_a_word_on_why(exercise):
    assert len(HINT.findall(exercise.help)) >= 2, (
        f"{exercise.name}: write two or three <summary>Hint N</summary> below the exercise"
    )
    why = re.sub(r"<[^>]+>", "", SOLUTION.split(exercise.help)[-1])
    assert len(why.split()) >= 15, f"{exercise.name}: say after the solution why it is right"


@pytest.mark.parametrize("name", dir(check))
def test_every_check_has_three_wrong_answers(name):
    assert len(WRONG.get(name, [])) + len(EDITS.get(name, [])) >= 3, (
        f"list wrong answers for check.{name} in tests/checks/wrong_nNN.py"
    )


def assert_failed_with_a_small_counterexample(name, result):
    assert result.status == "failed", str(result)
    assert result.name == name
    assert result.expected != result.got
    assert result.got, "a failed check shows what came out"
    assert len(result.operations) <= 6, str(result)


@interpreted
@of_each(WRONG)
def test_wrong_answer_fails_with_a_small_counterexample(name, answer):
    assert_failed_with_a_small_counterexample(name, getattr(check, name)(answer))


@interpreted
@of_each(EDITS)
def test_wrong_edit_of_the_solution_fails_with_a_small_counterexample(name, answer):
    old, new, *words = answer
    result = getattr(check, name)(edited_answer(name, old, new))
    assert_failed_with_a_small_counterexample(name, result)
    said = " ".join(f"{result.message} {result.got}".split())
    assert all(word in said for word in words), said


@interpreted
@of_each(RIGHT)
def test_other_right_answers_pass(name, answer):
    result = getattr(check, name)(answer)
    assert result.status == "passed", str(result)


@interpreted
@of_each(RIGHT_EDITS)
def test_other_right_edits_pass(name, answer):
    result = getattr(check, name)(edited_answer(name, *answer))
    assert result.status == "passed", str(result)


@interpreted
def test_the_seven_solutions_of_15_make_an_engine(tiny):
    mine = Workbench()
    mine.parts = {name: edited_answer(name) for name in OPTIONS}
    assert "passed" in str(check.my_engine(mine))
    llm = mine.engine(tiny, verbose=False)
    with Stage(llm) as stage:
        llm.generate([[7] * 20] * 2)
    assert "1 shared" in stage.picture()


@pytest.mark.skipif(INTERPRETED, reason="tried in this process")
def test_answers_where_there_is_a_gpu():
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
