"""Finds the command that the user names, and runs it.

    pagedlab COMMAND ...
    python -m pagedlab_serve COMMAND ...
    python -m pagedlab_serve "a prompt" ...  # the old form of `generate`; one word is no prompt

Nothing here imports torch. Each command prints a line before it imports its module.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable

from pagedlab import __version__
from pagedlab.arguments import hub_id, similar_name
from pagedlab.extras import MissingExtra, require
from pagedlab_serve import serve
from pagedlab_serve.cli import options
from pagedlab_serve.command_line import (
    BAD_INPUT,
    ended_by_ctrl_c,
    print_error,
    print_now,
    program_name,
    status_on_stderr,
    stopped_by_hand,
)

LOADING = "loading torch and transformers ..."


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: the command and its options; None for those of the command line.
    """
    return stopped_by_hand(_main, arguments)


def _main(arguments: list[str]) -> int:
    if not arguments:
        options.program().print_help()
        return BAD_INPUT
    if arguments[0] == "help":  # pagedlab help, or pagedlab help COMMAND
        arguments = [*arguments[1:2], "--help"]
    name, *rest = arguments
    if name in ("-h", "--help", "--version"):
        options.program().parse_args(arguments)  # prints, and ends the process
    command = COMMANDS.get(name)
    try:
        if command is not None:
            return command(rest)
        _refuse_unknown_command(name)
        _refuse_command_after_options(arguments)
        return _generate(arguments)  # the old form, without a command
    except BrokenPipeError:
        raise
    except (ValueError, ConnectionError, FloatingPointError, MissingExtra) as error:
        return print_error(error)  # ConnectionError: another rank has ended


def _refuse_unknown_command(name: str) -> None:
    """Raise `ValueError` if the first argument is one word: it is a mistyped command, no prompt."""
    if name.startswith("-") or not name or any(map(str.isspace, name)):
        return
    hint = similar_name(name, COMMANDS)
    if not hint:
        hint = f"to continue it as a prompt: {program_name()} generate {shlex.quote(name)}"
    raise ValueError(f"there is no command {name!r}; {hint}")


def _refuse_command_after_options(arguments: list[str]) -> None:
    """Raise `ValueError` for `pagedlab --model FOLDER chat`: it would continue the word "chat"."""
    if not arguments[0].startswith("-"):
        return
    for argument in arguments:
        if argument in COMMANDS:
            raise ValueError(
                f"{argument} is a command: name it first, for example {program_name()} {argument} "
                "--help"
            )


def _chat(arguments: list[str]) -> int:
    asked = options.chat().parse_args(arguments)
    _check_and_fetch(asked)
    with status_on_stderr():
        print_now(LOADING)
    with ended_by_ctrl_c():
        from pagedlab_serve.cli.chat import run
    return run(asked)


def _check_and_fetch(asked: argparse.Namespace) -> None:
    """Check the options, then download the model that --download names."""
    options.check_options(asked)
    if asked.download:
        with status_on_stderr():
            _fetch(asked.download)


def _generate(arguments: list[str]) -> int:
    asked = options.generate().parse_args(arguments)
    if not asked.prompts and not asked.download:
        asked.prompts = [_prompt_of_a_pipe()]
    if not asked.chat and "" in asked.prompts:
        raise ValueError("the prompt is empty: give at least one token to continue")
    _check_and_fetch(asked)
    if not asked.prompts:
        return 0
    with status_on_stderr():
        print_now(LOADING)
    with ended_by_ctrl_c():
        from pagedlab_serve.cli.generate import run
    return run(asked)


def _prompt_of_a_pipe() -> str:
    """Return the text on stdin, without the last line's end. `ValueError` if there is none."""
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    prompt = text.removesuffix("\n").removesuffix("\r")
    if not prompt:
        example = f'{program_name()} generate "Once upon a time"'
        raise ValueError(f"name a prompt, for example {example}, or send one through a pipe")
    return prompt


def _download(arguments: list[str]) -> int:
    _fetch(options.download().parse_args(arguments).model)
    return 0


def _fetch(model: str) -> None:
    """Download a model into the local Hugging Face cache."""
    hub_id(model)
    print_now(f"asking the Hugging Face hub for {model} ...")
    with ended_by_ctrl_c():
        from pagedlab_serve.hub import download  # the only module that uses the network
    try:
        download(model)
    except ValueError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def _serve(arguments: list[str]) -> int:
    require("server", "fastapi", "uvicorn", "prometheus_client")
    return serve.main(arguments)


def _notebooks(arguments: list[str]) -> int:
    asked = options.notebooks().parse_args(arguments)
    if not asked.no_open:
        require("notebooks", "jupyterlab")
    from pagedlab_serve.cli.notebooks import run

    return run(asked.folder, asked.no_open)


def _info(arguments: list[str]) -> int:
    options.info().parse_args(arguments)
    print_now(f"pagedlab {__version__}")
    with ended_by_ctrl_c():
        from pagedlab_serve.cli.info import run

        return run()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "chat": _chat,
    "generate": _generate,
    "serve": _serve,
    "download": _download,
    "notebooks": _notebooks,
    "info": _info,
}
