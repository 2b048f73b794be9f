"""`import pagedlab` changes nothing in the process; what torch needs is set when an engine is first asked for."""

import ast
import os
import subprocess
import sys

import pytest

from support import warm
from support.paths import ROOT

OWN_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
WITHOUT_SIDE_EFFECTS = """
import atexit
import gc
import os
import sys
import threading

def state():
    threads = [thread.name for thread in threading.enumerate()]
    return dict(os.environ), atexit._ncallbacks(), threads, gc.get_freeze_count(), gc.isenabled(), sys.meta_path[:]

before = state()
import pagedlab
assert state() == before, (before, state())
heavy = {"torch", "transformers", "numpy", "tqdm", "IPython"} & sys.modules.keys()
assert not heavy, heavy
"""
IN_A_NOTEBOOK = """
import sys
import threading
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.kernel = object()  # as in a notebook

def hooks():
    return {name: len(callbacks) for name, callbacks in shell.events.callbacks.items()}

before = hooks(), threading.active_count()
import pagedlab
assert (hooks(), threading.active_count()) == before
pagedlab.LLM
assert (hooks(), threading.active_count()) == before
assert "pagedlab.engine" in sys.modules
"""


def python(*arguments, **own):
    """Run Python without the environment's own thread settings, but with those given."""
    env = {name: value for name, value in os.environ.items() if name not in OWN_SETTINGS} | own
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True)


UNTIL_TORCH_IS_IMPORTED = f"""
import os
import sys

def tell():
    print({{n: os.environ[n] for n in {OWN_SETTINGS} if n in os.environ}})
    sys.exit()

class StopsAtTorch:
    def find_spec(self, name, *rest):
        if name == "torch":
            tell()

sys.meta_path.insert(0, StopsAtTorch())
"""


def set_by(code, **own):
    """The thread settings in the environment when this code imports torch, or ends."""
    run = python("-c", f"{UNTIL_TORCH_IS_IMPORTED}\n{code}\ntell()", **own)
    assert run.returncode == 0, run.stderr
    return ast.literal_eval(run.stdout.splitlines()[-1])


def test_importing_pagedlab_has_no_side_effects():
    run = python("-W", "error", "-c", WITHOUT_SIDE_EFFECTS)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_the_help_of_the_package_explains_every_public_name():
    run = python("-c", "import pagedlab; print(all(f'    {name}: ' in pagedlab.__doc__ for name in pagedlab.__all__))")
    assert run.stdout == "True\n", run.stderr


def test_a_notebook_gets_neither_hooks_nor_threads():
    warm.run(IN_A_NOTEBOOK, ROOT)


@pytest.mark.parametrize("name", ["LLM", "SamplingParams", "KVCache", "Completion"])
def test_torch_threads_spin_little_once_an_engine_is_asked_for(name):
    assert set_by(f"from pagedlab import {name}") == {"GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_a_users_own_thread_settings_are_left_alone(own):
    assert set_by("from pagedlab import LLM", **own) == own


def test_nothing_is_set_once_torch_has_been_imported():
    """libgomp would not read it any more."""
    assert set_by("sys.modules['torch'] = None; from pagedlab import SamplingParams") == {}


@pytest.mark.parametrize(("command", "more"), [("generate", "hi"), ("serve", "--port=0")])
def test_the_command_lines_set_it_before_they_import_torch(command, more, tmp_path):
    code = f"import runpy; sys.argv[1:] = [{command!r}, '--model', {str(tmp_path)!r}, {more!r}]"
    code += "; runpy.run_module('pagedlab_serve', run_name='__main__')"
    assert set_by(code) == {"GOMP_SPINCOUNT": "1000"}
