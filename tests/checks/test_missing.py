"""What a reader runs into when the cells above have not run."""

import ast

import pytest

from support.exercises import EXERCISES, run_cell


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_an_exercise_after_a_restart_asks_for_an_import_and_no_more(exercise):
    """The kernel restarts and the exercise's cell runs first: Python names what is missing, and one cell brings it."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(exercise.imports))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    names = {"__name__": "notebook"}
    missing = None
    try:
        run_cell(exercise.stub, names)
    except NameError as error:
        missing = error.name
    if missing is None:
        assert eval(exercise.call, names).status == "not attempted"
    else:
        assert missing in imported
