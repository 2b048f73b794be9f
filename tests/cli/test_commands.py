"""The commands: what they print, their exit codes, and errors of one line."""

import io
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

import pagedlab
import pagedlab_serve
from pagedlab import __version__
from pagedlab.loading import DEFAULT_MODEL, TINY_MODEL
from pagedlab.shipped import notebooks
from pagedlab_serve.__main__ import main
from pagedlab_serve.cli.main import COMMANDS
from pagedlab_serve.command_line import program_name
from support.paths import ROOT

README = ROOT / "README.md"


def test_prints_texts_and_statistics(capsys):
    prompts = ["Once upon a time", "The memory of a computer is made of"]
    code = main([*prompts, "--model", str(TINY_MODEL), "--attention", "online", "--max-tokens", "12"])
    out, status = capsys.readouterr()
    assert code == 0
    assert re.fullmatch("".join(rf"\n> {prompt}\n.+\n" for prompt in prompts), out), "the texts, and nothing else"
    assert "blocks" in status
    assert "tokens/s" in status


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_prompt_from_a_pipe(end, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"The mill\n\nhad a wheel{end}"))
    assert main(["generate", "--model", str(TINY_MODEL), "--max-tokens", "3"]) == 0
    assert "> The mill" not in capsys.readouterr().out


def test_a_pipe_gets_the_text_of_one_prompt_alone_and_a_terminal_its_prompt_too(monkeypatch, capsys):
    ask = ["generate", "Once", "--model", str(TINY_MODEL), "--max-tokens", "3"]
    assert main(ask) == 0
    text = capsys.readouterr().out
    assert re.fullmatch(r"[^\n>].*\n", text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(ask) == 0
    assert capsys.readouterr().out == f"\n> Once\n{text}"


ESCAPES = "\x1b]0;title\x07\x9b2J\r"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_of_a_model_reach_a_file_and_no_terminal(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr(pagedlab.LLM, "stream", lambda *_: iter(["Once", ESCAPES, "more"]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert main(["generate", "Once", "--model", str(TINY_MODEL)]) == 0
    text = capsys.readouterr().out.split("\n> Once\n")[-1]
    assert text == ("Once\\x1b]0;title\\x07\\x9b2J\\x0dmore\n" if is_terminal else f"Once{ESCAPES}more\n")


def test_control_characters_of_a_prompt_and_of_its_text_are_shown(monkeypatch, capsys):
    output = SimpleNamespace(text=f"b{ESCAPES}c", error=None)
    monkeypatch.setattr(pagedlab.LLM, "generate", lambda *_: [SimpleNamespace(outputs=[output])] * 2)
    assert main(["generate", f"a{ESCAPES}", "Once", "--model", str(TINY_MODEL)]) == 0
    out, err = capsys.readouterr()
    assert CONTROL.search(out + err) is None
    assert out.count("\\x1b]0;title\\x07\\x9b2J") == 3


@pytest.mark.parametrize(
    "line",
    [
        "info",
        "generate Once --max-tokens 2",
        "generate Once --model ./FOLDER/no",
        "generate --HOST",
        "chat --device HOST",
        "download HOST",
        "notebooks FOLDER/notes --no-open",
        "serve --host HOST --port 0",
        "HOST",
    ],
)
def test_control_characters_of_a_name_are_shown(line, monkeypatch, tmp_path, capsys):
    folder = tmp_path / f"model{ESCAPES}\n"
    folder.symlink_to(TINY_MODEL)
    monkeypatch.setenv("PAGEDLAB_MODEL", str(folder))
    monkeypatch.chdir(tmp_path)
    names = {"HOST": f"a\nb{ESCAPES}", "FOLDER": f"new{ESCAPES}"}
    arguments = [word.replace("FOLDER", names["FOLDER"]).replace("HOST", names["HOST"]) for word in line.split()]
    with suppress(SystemExit):
        main(arguments)
    out, err = capsys.readouterr()
    assert CONTROL.search(out + err) is None
    assert re.search(r"\\x1b", out + err)
    if err.startswith("error: "):
        assert err.count("\n") == 1, "one line"


def test_generate_takes_top_p_and_stops(capsys):
    ask = ["generate", "Once upon a time", "--model", str(TINY_MODEL), "--max-tokens", "30"]
    assert main(ask) == 0
    text = capsys.readouterr().out
    word = text.split()[4]
    sampled = [*ask, "--temperature", "2", "--top-p", "1e-9"]  # the likeliest token only
    assert main([*sampled, "--stop", "never", "--stop", word]) == 0
    assert capsys.readouterr().out == text[: text.index(word)] + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate hello --max-tokens 0", "--max-tokens must be a whole number of at least 1, got 0"),
        ("generate hello --temperature -1", "--temperature must be a number of at least 0, got -1"),
        ("generate hello --ranks 0", "--ranks must be a whole number of at least 1, got 0"),
        ("generate hello --block-size 0", "--block-size must be a whole number of at least 1, got 0"),
        ("generate hello --num-blocks 0", "--num-blocks must be a whole number of at least 1, got 0"),
        (
            "generate hello --device gpu",
            "there is no device 'gpu': choose 'auto', 'cpu', 'cuda' or for instance 'cuda:1'",
        ),
        ("generate hello --dtype int3", "--dtype must be one of 'auto', 'float32',"),
        ("generate hello --attention magic", "--attention must be one of 'auto', 'torch',"),
        ("generate hello --seed -1", "--seed must be a whole number of at least 0, got -1"),
        ("chat --max-tokens many", "--max-tokens must be a whole number of at least 1, got 'many'"),
        ("chat --temperature hot", "--temperature must be a number of at least 0, got 'hot'"),
        ("generate hello --top-p 0", "--top-p must be a number above 0 and at most 1, got 0.0"),
        ('generate hello --stop ""', "--stop is empty: give a text, or leave the option out"),
        ("serve --port 0 --host 0.0.0.0", "0.0.0.0 can be reached from outside: give a key with --api-key, or leave"),
        ("serve --port 0 --host 999.1.1.1", "999.1.1.1 is no address of this machine ("),
        ("serve --port x", "--port must be a whole number from 0 to 65535, got 'x'"),
        ("serve --device gpu --port 0", "there is no device 'gpu'"),
        ("chat --model /nope", "there is no '/nope'"),
        ('chat --model ""', "--model is empty: name a folder, a .gguf file or a hub id"),
        ('notebooks "" --no-open', "the name of the folder is empty: name a folder, or . for this one"),
        ('""', "empty"),
        (
            f"'{'a long text ' * 50}' --num-blocks 2",
            "the pool has 2: shorten the prompt, lower --max-tokens or raise --num-blocks",
        ),
        ("generate hello --model ./no-such-folder", "there is no './no-such-folder'"),
        ("generate hello --model some/model", "`pagedlab download some/model` fetches it"),
        (
            "generate hello --model nothing",
            "in the local Hugging Face cache: name a folder, a .gguf file or a hub id like Qwen/",
        ),
        (
            "generate",
            'error: name a prompt, for example pagedlab generate "Once upon a time", or send one through a pipe\n',
        ),
        ("generate hello --ranks 3", "cannot be shared evenly by 3 ranks: this model takes 1 or 2\n"),
        ('serve --port 0 --api-key ""', "--api-key is empty: give a key, or leave the option out"),
        ('serve --port 0 --api-key a --api-key " "', "--api-key is empty: give a key"),
        ("serve --port 0 --download a/b/c", "a hub id is like"),
        ("chat --download 'not an id'", "a hub id is like"),
        ("--max-tokens 3 chat", "chat is a command: name it first, for example pagedlab chat --help"),
        ("--max-tokens 3", "error: name a prompt, for example"),
        (
            f"generate hello --model '{README}'",
            f"error: '{README}' is not a .gguf file: name a folder, a .gguf file or a hub id",
        ),
        *(
            (f"download '{name}'", f"error: a hub id is like {DEFAULT_MODEL}, got {name!r}\n")
            for name in ("???", "a/b/c", "../models", ".hidden", "")
        ),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", str(TINY_MODEL))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(shlex.split(arguments)) == 2
    printed = capsys.readouterr()
    *status, last = printed.err.splitlines(keepends=True)
    assert last.startswith("error: ")
    assert message in last
    needs_more = any(said in message for said in ("the pool has", "fetches it", "Face cache", "this model takes"))
    assert needs_more or not status, "it is found before torch is imported"
    assert all(line.startswith(("loading ", "model: ", "attention: ")) for line in status)
    assert printed.out.strip("\n") in ("", f"> {arguments[0]}")


@pytest.mark.parametrize("arguments", [["chat"], ["info"]])
def test_a_model_of_the_environment_that_does_not_exist(arguments, capsys, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", "/nope")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: there is no '/nope': name a folder")
    assert "model:" not in printed.out


def test_a_gguf_file_names_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pagedlab.extras.find_spec", lambda name: None)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert main(["generate", "hello", "--model", str(tmp_path / "a.gguf")]) == 2
    assert capsys.readouterr().err.endswith('error: gguf is not installed: pip install "pagedlab[gguf]"\n')


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("serv", "did you mean serve?"),
        ("gen", "did you mean generate?"),
        ("Chat", "did you mean chat?"),
        ("hi", "to continue it as a prompt: pagedlab generate hi"),
        ("it's", """to continue it as a prompt: pagedlab generate 'it'"'"'s'"""),
    ],
)
def test_a_mistyped_command_is_no_prompt(word, hint, capsys):
    assert main([word, "--max-tokens", "3"]) == 2
    assert capsys.readouterr() == ("", f"error: there is no command {word!r}; {hint}\n")


def test_messages_name_the_program_as_it_was_started(monkeypatch, tmp_path):
    """On the path it is one word. Elsewhere it is the path that was typed, or the module."""
    monkeypatch.chdir(tmp_path)
    programs = Path("my env", "bin")
    programs.mkdir(parents=True)
    for name in ("pagedlab", "python"):
        (programs / name).touch(mode=0o755)
    command = programs / "pagedlab"
    monkeypatch.setenv("PATH", "")
    assert started_as(monkeypatch, str(command)) == f"'{command}'"
    assert started_as(monkeypatch, str(tmp_path / command)) == f"'{command}'"
    file = str(Path(pagedlab_serve.__file__).parent / "__main__.py")
    assert started_as(monkeypatch, file, "python3") == "python3 -m pagedlab_serve"
    monkeypatch.setattr("sys.executable", str(tmp_path / programs / "python"))
    assert started_as(monkeypatch, "ipykernel_launcher.py") == f"'{command}'"
    monkeypatch.setenv("PATH", str(programs))
    assert started_as(monkeypatch, "ipykernel_launcher.py") == "pagedlab"
    assert started_as(monkeypatch, str(command)) == "pagedlab"
    command.unlink()
    assert started_as(monkeypatch, "ipykernel_launcher.py") == "python -m pagedlab_serve"


def started_as(monkeypatch, program, python="python"):
    """The name of the program in messages, after it was started as `program`."""
    monkeypatch.setattr("sys.argv", [program])
    monkeypatch.setattr("sys.orig_argv", [python, program])
    return program_name()


@pytest.mark.parametrize("module", ["pagedlab_serve"])
def test_a_module_that_was_started_is_named_in_its_errors(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--nonsense"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"{sys.executable} -m pagedlab_serve" in done.stderr


def test_without_arguments_the_commands_are_listed(capsys):
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate hello --nonsense", "unrecognized arguments: --nonsense; see pagedlab generate --help"),
        (
            "generate hi --temprature 3",
            "unrecognized arguments: --temprature 3; did you mean --temperature?; see pagedlab generate --help",
        ),
        (
            "chat --temp 1",
            "unrecognized arguments: --temp 1; did you mean --temperature?; see pagedlab chat --help",
        ),
        ("chat -seed 1", "unrecognized arguments: -seed 1; did you mean --seed?; see pagedlab chat --help"),
        ("info now", "unrecognized arguments: now; see pagedlab info --help"),
    ],
)
def test_an_unknown_option_is_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(shlex.split(arguments))
    assert end.value.code == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


@pytest.mark.parametrize("words", [["help"], ["help", "chat"]])
def test_help_is_a_word_too(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['pagedlab', *words[1:]])} [-h]")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"pagedlab {__version__}\n"


def test_one_prompt_grows_as_several_do_at_once(capsys):
    common = ["--model", str(TINY_MODEL), "--max-tokens", "12", "--chat"]
    assert main(["generate", "What is a drum?", *common]) == 0
    alone, status = capsys.readouterr()
    assert main(["generate", "What is a drum?", "What is a mill?", *common]) == 0
    together = capsys.readouterr().out
    assert f"> What is a drum?\n{alone}" in together
    assert re.search(
        r"\n12 tokens in \d+\.\d\d s \(.+ tokens/s\); at the peak 2 blocks of 16 tokens were in use \(", status
    )


def test_the_attention_that_was_asked_for_is_named_and_one_block_is_no_blocks(capsys):
    assert main(["generate", "hi", "--model", str(TINY_MODEL), "--attention", "online", "--max-tokens", "1"]) == 0
    printed = capsys.readouterr().err
    assert "attention: online (you asked for it)\n" in printed
    assert re.search(r"\n1 token in .*; at the peak 1 block of 16 tokens was in use \(\d+ KiB\)\n", printed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["info"], ["serve", "--port", "0"]])
def test_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pagedlab_serve", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: nothing more can be written: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="the shell of Windows cannot close streams")
@pytest.mark.parametrize(("command", "status"), [("info >&-", 0), ("generate <&-", 2)])
def test_a_stream_that_is_closed_makes_no_traceback(command, status):
    command = f"exec {shlex.quote(sys.executable)} -m pagedlab_serve {command}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_download_fetches(monkeypatch, capsys):
    fetched = []
    monkeypatch.setattr("pagedlab_serve.hub.download", fetched.append)
    for arguments in (["--download"], ["--download", "some/model"], ["download"], ["download", "some/model"]):
        assert main(arguments) == 0
    assert fetched == [DEFAULT_MODEL, "some/model"] * 2
    out, err = capsys.readouterr()
    assert err.startswith(f"asking the Hugging Face hub for {DEFAULT_MODEL} ...\n"), "of generate"
    assert out.startswith(f"asking the Hugging Face hub for {DEFAULT_MODEL} ...\n"), "of download"
    monkeypatch.setattr("pagedlab_serve.cli.main.hub_id", str)  # below, a folder stands for what was fetched
    assert main(["generate", "hello", "--download", str(TINY_MODEL), "--max-tokens", "1"]) == 0
    assert f"model: {TINY_MODEL.name}" in capsys.readouterr().err, "what was fetched answers"
    assert main(["generate", "hello", "--download", "--model", str(TINY_MODEL), "--max-tokens", "1"]) == 0
    assert fetched[4:] == [str(TINY_MODEL), DEFAULT_MODEL]


def test_a_download_that_fails_is_one_line(capsys):
    from pagedlab_serve.serve import main as serve

    for program in (main, serve):
        assert program(["--download", *(["--port", "0"] if program is serve else [])]) == 2
        *status, error = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {DEFAULT_MODEL} was not fetched (")
        assert all(line.startswith("asking ") for line in status)


def test_a_hub_that_does_not_answer_leaves_the_tiny_model(monkeypatch, capsys):
    def fail(*_, **__):
        raise httpx.ConnectError("no route to host")

    monkeypatch.setattr("pagedlab_serve.hub.HfApi", lambda: SimpleNamespace(model_info=fail))
    assert main(["download"]) == 2
    assert capsys.readouterr().err == (
        f"error: {DEFAULT_MODEL} was not fetched (the hub does not answer): try again; `pagedlab chat` works "
        "meanwhile, with the tiny model\n"
    )


def test_a_download_that_is_stopped(monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pagedlab_serve.hub.HfApi", lambda: SimpleNamespace(model_info=stop))
    assert main(["download"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_info_names_versions_and_the_model(capsys, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", str(TINY_MODEL))
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for begin in (
        f"pagedlab {__version__}",
        "python 3.",
        "torch 2.",
        "transformers 5.",
        "extra server: ",
        "devices: cpu",
    ):
        assert f"\n{begin}" in f"\n{printed}"
    assert f"model: {TINY_MODEL} (PAGEDLAB_MODEL says so)" in printed


# Notebooks --------------------------------------------------------------------------------------------------------


def test_notebooks_are_copied_and_never_overwritten(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "03_copy_on_write.ipynb").write_text("my work")
    assert main(["notebooks", str(folder), "--no-open"]) == 0
    names = {path.name for path in notebooks().glob("*.ipynb")}
    assert len(names) > 1
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "03_copy_on_write.ipynb").read_text() == "my work"
    assert capsys.readouterr().out == (
        f"{len(names) - 1} notebooks copied to {folder}, 1 that were there are as they were\n"
        f"open them with: {program_name()} notebooks {folder}\n"
    )


def test_a_folder_with_a_space_is_quoted(tmp_path, capsys):
    folder = tmp_path / "my notebooks"
    assert main(["notebooks", str(folder), "--no-open"]) == 0
    assert capsys.readouterr().out.endswith(f" notebooks '{folder}'\n")


@pytest.mark.parametrize(("user", "options"), [(0, ["--allow-root"]), (1000, [])])
def test_notebooks_are_opened(user, options, tmp_path, monkeypatch):
    """JupyterLab refuses to start as root without the option."""
    monkeypatch.setattr("os.geteuid", lambda: user, raising=False)
    started = []

    def run(command, **_):
        started.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("pagedlab_serve.cli.notebooks.subprocess.run", run)
    assert main(["notebooks", str(tmp_path)]) == 0
    opened = [f"--ServerApp.root_dir={tmp_path}", "--LabApp.default_url=/lab/tree/00_start_here.ipynb"]
    assert started == [[sys.executable, "-m", "jupyterlab", *options, *opened]]


def test_notebooks_need_jupyterlab(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pagedlab.extras.find_spec", lambda name: None)
    assert main(["notebooks", str(tmp_path)]) == 2
    assert capsys.readouterr().err == ('error: jupyterlab is not installed: pip install "pagedlab[notebooks]"\n')
    assert not list(tmp_path.iterdir())


def test_notebooks_where_nothing_can_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["notebooks", str(tmp_path / "file" / "folder"), "--no-open"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot copy the notebooks to ")
    assert main(["notebooks", str(tmp_path / "file"), "--no-open"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'file'} is a file, not a folder: name a folder\n"


# A missing extra --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("pagedlab_lessons.widgets", "anywidget", "notebooks"),
        ("pagedlab_lessons.plots", "matplotlib", "notebooks"),
    ],
)
def test_an_import_names_the_missing_extra(module, package, extra):
    done = python(f"{without(package)}\nimport {module}")
    last = done.stderr.strip().splitlines()[-1]
    assert last == (f'pagedlab.extras.MissingExtra: {package} is not installed: pip install "pagedlab[{extra}]"')


@pytest.mark.parametrize("command", ["['serve']", "['serve', '--help']"])
def test_the_server_names_its_extra_in_one_line(command):
    done = python(f"{without('uvicorn')}\nfrom pagedlab_serve.cli.main import main\nraise SystemExit(main({command}))")
    assert (done.returncode, done.stderr) == (
        2,
        'error: uvicorn is not installed: pip install "pagedlab[server]"\n',
    )


def without(package):
    """Code after which no finder finds the package."""
    return f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name == {package!r} else find(name, *rest))
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


# Time -------------------------------------------------------------------------------------------------------------


FIRST_LINES = """
import contextlib, io, json, sys

class Heavy(BaseException):
    pass

class Refuses:
    def find_spec(self, name, *rest):
        if name in {"torch", "transformers", "numpy", "rich", "huggingface_hub"}:
            raise Heavy

sys.meta_path.insert(0, Refuses())
sys.argv = ["pagedlab"]
from pagedlab_serve.cli.main import main

for arguments in COMMANDS:
    assert "fastapi" not in sys.modules
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        with contextlib.suppress(Heavy, SystemExit):
            main(arguments)
    print(printed.getvalue().partition("\\n")[0])
"""


def test_something_is_printed_before_torch_is_imported():
    """A process in which nothing heavy can be imported prints the first line of each command, and every help."""
    begins = {
        ("say hi",): "loading ",
        ("generate", "hi"): "loading ",
        ("chat",): "loading ",
        ("info",): "pagedlab ",
        ("download",): "asking ",
        ("--help",): "usage: pagedlab [-h] [--version] COMMAND",
        **{(name, "--help"): f"usage: pagedlab {name} [-h]" for name in COMMANDS},
        ("serve", "--port", "0"): "loading ",
    }
    done = python(FIRST_LINES.replace("COMMANDS", repr([list(arguments) for arguments in begins])))
    assert (done.returncode, done.stderr) == (0, "")
    for line, begin in zip(done.stdout.splitlines(), begins.values(), strict=True):
        assert line.startswith(begin)


def test_output_into_a_pipe_that_is_closed(monkeypatch):
    def broken(arguments):
        raise BrokenPipeError

    monkeypatch.setitem(COMMANDS, "info", broken)
    stdout = sys.stdout
    try:
        assert main(["info"]) == 1
    finally:
        sys.stdout = stdout
