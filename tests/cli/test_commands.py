"""The commands: their help, what they print, and what they refuse in one line."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pagedlab import __version__
from pagedlab.model import TINY_MODEL
from pagedlab.shipped import DEFAULT_MODEL, notebooks
from pagedlab_serve.background import listen
from pagedlab_serve.cli.main import COMMANDS, main
from pagedlab_serve.cli.serve import address_of, is_loopback
from support.paths import ROOT

NAMES = [command.__name__ for command in COMMANDS]
TINY = ["--model", str(TINY_MODEL)]


def run(*arguments):
    """Run a command and return its exit code."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "hi", "--top-p", "0"], "top_p must be a number above 0"),
        (["generate", "hi", *TINY, "--ranks", "4"], "error: 2 KV heads cannot be shared evenly by 4 ranks"),
        (["generate", "hi", *TINY, "--attention", "nix"], "'nix' is not one of 'auto', 'torch', 'triton'"),
        (["serve", "--host", "0.0.0.0", "--port", "0"], "error: 0.0.0.0 can be reached from outside"),
        (["serve", "--api-key", ""], "a key is empty: give --api-key"),
        (["download", "a b"], f"error: a hub id is like {DEFAULT_MODEL}, got 'a b'"),
        (["notebooks", str(TINY_MODEL / "config.json"), "--no-open"], "error: "),
    ],
)
def test_bad_input_is_refused(arguments, said, capsys, monkeypatch):
    monkeypatch.delenv("PAGEDLAB_API_KEYS", raising=False)
    assert run(*arguments) == 2
    printed = capsys.readouterr().err
    last = " ".join(printed.partition("rror: ")[2].split())
    assert said in f"error: {last}"
    assert "Traceback" not in printed


def test_one_prompt_grows_as_several_do_at_once(capsys):
    common = [*TINY, "--max-tokens", "12", "--chat"]
    assert run("generate", "What is a drum?", *common) == 0
    alone, status = capsys.readouterr()
    assert run("generate", "What is a drum?", "What is a mill?", *common) == 0
    assert f"> What is a drum?\n{alone}" in capsys.readouterr().out
    assert re.search(r"\n12 tokens in \d+\.\d\d s \(.+ tokens/s, .*; peak 2 of ", status)


def test_a_pipe_sends_the_prompt_and_gets_the_text_alone(monkeypatch, capsys, tiny):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False, read=lambda: "Once upon a\n"))
    assert run("generate", *TINY, "--max-tokens", 2, "--stop", "xx", "--attention", "online") == 0
    assert capsys.readouterr().out == " time,\n"
    monkeypatch.setattr("sys.stdin.read", lambda: "")
    assert run("generate", *TINY) == 2
    assert "name a prompt" in capsys.readouterr().err


def test_info_names_versions_and_the_model(capsys, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", str(TINY_MODEL))
    assert run("--version") == run("info") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"pagedlab {__version__}\n" * 2 + "python 3.")
    assert f"model: {TINY_MODEL} (PAGEDLAB_MODEL says so)" in printed


def test_loopback_addresses_and_those_that_others_reach():
    hosts = ["127.0.0.1", "localhost", "::1", "127.8.9.10", "0.0.0.0", "10.1.2.3", "::", "example.org", ""]
    assert [host for host in hosts if is_loopback(host)] == hosts[:4]
    assert address_of("::1", 1) == "http://[::1]:1"


def test_a_taken_port_is_said_before_a_model_is_loaded(capsys):
    with listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        assert run("serve", "--port", port) == 2
    assert capsys.readouterr().err.startswith(f"error: port {port} of 127.0.0.1 cannot be used: name another (")


@pytest.mark.parametrize(
    ("user", "more", "kept"), [(0, ["--allow-root"], "03_copy_on_write.ipynb"), (1000, [], "docs/index.md")]
)
def test_notebooks_are_copied_never_overwritten_and_opened(user, more, kept, tmp_path, monkeypatch, capsys):
    """JupyterLab refuses to start as root without the option."""
    started = []
    monkeypatch.setattr("os.geteuid", lambda: user, raising=False)
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr("subprocess.run", lambda command, **_: started.append(command) or done)
    (mine := tmp_path / kept).parent.mkdir(exist_ok=True)
    mine.write_text("my work")
    assert run("notebooks", tmp_path) == 0
    names = {path.name for path in notebooks().glob("*.ipynb")}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "docs"}
    for path in tmp_path.rglob("*.*"):
        for link in re.findall(r"\]\(([\w./-]*(?:docs/\w+\.md|\d\d_\w+\.ipynb))", path.read_text()):
            assert (path.parent / link).exists()
    assert mine.read_text() == "my work"
    assert capsys.readouterr().out.startswith(f"{len(names - {kept})} notebooks copied to {tmp_path}")
    opened = [f"--ServerApp.root_dir={tmp_path}", "--LabApp.default_url=/lab/tree/00_start_here.ipynb"]
    assert started == [[sys.executable, "-m", "jupyterlab", *opened, *more]]


# A missing extra, and time ----------------------------------------------------------------------------------------


def python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def without(package):
    """Code after which no finder finds the package."""
    return f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name == {package!r} else find(name, *rest))
"""


COMMAND = "from pagedlab_serve.cli.main import main; raise SystemExit(main([{!r}]))"


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        ("import pagedlab_lessons.widgets", "anywidget", "notebooks"),
        ("import pagedlab_lessons.plots", "matplotlib", "notebooks"),
        (COMMAND.format("serve"), "uvicorn", "server"),
        (COMMAND.format("notebooks"), "jupyterlab", "notebooks"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(code, package, extra):
    errors = python(f"{without(package)}\n{code}").stderr
    last = f'{package} is not installed: pip install "pagedlab[{extra}]"\n'
    assert errors.endswith(f"pagedlab.extras.MissingExtra: {last}" if code.startswith("import") else f"error: {last}")
    assert errors.startswith("Traceback") == code.startswith("import")


FIRST_LINES = """
import contextlib, io, sys

class Heavy(BaseException):
    pass

class Refuses:
    def find_spec(self, name, *rest):
        if name in {"torch", "transformers", "huggingface_hub"}:
            raise Heavy

sys.meta_path.insert(0, Refuses())
from pagedlab_serve.cli.main import main

for arguments in COMMANDS:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        with contextlib.suppress(Heavy, SystemExit):
            main(arguments)
    print(printed.getvalue().partition("\\n")[0])
"""


def test_something_is_printed_before_torch_is_imported():
    """A process in which nothing heavy can be imported prints the first line of each command, and every help."""
    begins = {
        ("generate", "hi"): "loading ",
        ("chat",): "loading ",
        ("serve", "--port", "0"): "loading ",
        ("info",): "pagedlab ",
        ("download",): "asking ",
        (): "Usage: pagedlab [OPTIONS] COMMAND",
        **{(name, "--help"): f"Usage: pagedlab {name} " for name in NAMES},
    }
    done = python(FIRST_LINES.replace("COMMANDS", repr([list(arguments) for arguments in begins])))
    assert (done.returncode, done.stderr) == (0, "")
    for line, begin in zip(done.stdout.splitlines(), begins.values(), strict=True):
        assert line.startswith(begin)


def test_ctrl_c_makes_no_traceback():
    options = [*["Once upon a time"] * 200, "--max-tokens", "1900"]
    command = [sys.executable, "-u", "-m", "pagedlab_serve", "generate", *TINY, *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            next(line for line in process.stderr if line.startswith("attention: "))
            process.send_signal(2)
            assert "Traceback" not in process.communicate(timeout=60)[1]
            assert process.returncode != 0
        finally:
            process.kill()
