"""The parts that all commands share: options, help with examples, and errors of one line.

It imports neither torch nor transformers, so that a command can print something at once.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NoReturn

from pagedlab.arguments import MODELS, integer, model_name, one_of, similar_name, visible
from pagedlab.shipped import DEFAULT_MODEL

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
BAD_INPUT = 2  # the exit code of a command with a bad option
MODEL_HELP = (
    "hub id, folder or .gguf file; default: the model in PAGEDLAB_MODEL, else "
    "Qwen2.5-0.5B-Instruct if it was downloaded, else the tiny model that is included"
)
DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (--?[\w-]+)")  # argparse's own words
OPTION_OF = {  # of the engine's arguments that errors name
    "max_tokens": "--max-tokens",
    "num_blocks": "--num-blocks",
    "block_size": "--block-size",
    "attention_backend": "--attention",
}
ARGUMENT = re.compile(rf"\b({'|'.join(OPTION_OF)})\b( ?= ?)?")
DEVICE_HELP = "auto, cpu, cuda or for instance cuda:1; default: auto, the GPU if there is one"
DTYPE_HELP = (
    "auto, float32, float16, bfloat16 or float64; default: auto, bfloat16 on a GPU and float32 "
    "on a CPU"
)


def program_name() -> str:
    """Return what the user types to start pagedlab, as the messages name it.

    It is the command that was started, for instance "pagedlab", ".venv/bin/pagedlab" or "python -m
    pagedlab". In a notebook, or in another program, it is the command of the same environment.
    """
    started = Path(sys.argv[0] if sys.argv else "")
    if started.stem == "pagedlab":
        return _as_typed(started)
    if started.name == "__main__.py" and Path(__file__).parent in started.parents:
        return f"{shlex.quote(sys.orig_argv[0])} -m pagedlab_serve"
    python = Path(sys.executable)
    command = python.with_name(f"pagedlab{python.suffix if python.suffix == '.exe' else ''}")
    if command.is_file():
        return _as_typed(command)
    return f"{_as_typed(python)} -m pagedlab_serve"


def _as_typed(program: Path) -> str:
    """Return the program's name if the shell finds it by that, else its path."""
    found = shutil.which(program.stem)
    if found is not None and program.is_file() and Path(found).samefile(program):
        return program.stem
    with suppress(ValueError):  # it is not below the current folder
        program = program.relative_to(Path.cwd())
    return shlex.quote(str(program))


class Parser(argparse.ArgumentParser):
    """Reports a bad option in one line, and keeps the line breaks of its examples.

    Args:
        prog: the command as the user types it, for instance "pagedlab chat".
        description: one or two sentences about the command.
        examples: command lines, one a line. {prog} is the command.
    """

    def __init__(self, prog: str, description: str, examples: str = "") -> None:
        super().__init__(
            prog,
            description=description,
            epilog=f"examples:\n{examples.format(prog=prog)}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        hint = self._similar_option(message)
        line = visible(f"error: {message}{hint}; see {self.prog} --help", kept="")
        self.exit(BAD_INPUT, f"{line}\n")

    def _similar_option(self, message: str) -> str:
        """Return a question that names the option most like an unknown one; "" if none is."""
        unknown = UNKNOWN_OPTION.match(message)
        if unknown is None:
            return ""
        hint = similar_name(unknown[1], self._option_string_actions, cutoff=0.75)
        return f"; {hint}" if hint else ""


def whole_number(text: str) -> int | str:
    """Return the number, or the text if it is none: the check of the option names it then."""
    try:
        return int(text)
    except ValueError:
        return text


def number(text: str) -> float | str:
    """Return the number, or the text if it is none: the check of the option names it then."""
    try:
        return float(text)
    except ValueError:
        return text


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a model and where it runs."""
    add = parser.add_argument
    add("--model", help=MODEL_HELP)
    add(
        "--download",
        nargs="?",
        const=DEFAULT_MODEL,
        metavar="ID",
        help=f"download this model first; without ID, {DEFAULT_MODEL}; default: no download",
    )
    add("--device", default="auto", help=DEVICE_HELP)
    add("--dtype", default="auto", help=DTYPE_HELP)


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the size of the block pool."""
    add = parser.add_argument
    add(
        "--block-size", type=whole_number, default=16, help="tokens per block; default: %(default)s"
    )
    add(
        "--num-blocks",
        type=whole_number,
        help="blocks of the pool; default: as many as the memory holds",
    )


def check_pool_options(asked: argparse.Namespace) -> None:
    """Check the sizes of the block pool before the model is loaded.

    Raises:
        ValueError: Names the option that is out of range.
    """
    integer("--block-size", asked.block_size, 1)
    if asked.num_blocks is not None:
        integer("--num-blocks", asked.num_blocks, 1)


def check_model_options(asked: argparse.Namespace) -> None:
    """Check the model's name, the device and the dtype as far as that needs no torch.

    Raises:
        ValueError: Names what does not exist, and what is accepted.
    """
    if DEVICE.fullmatch(asked.device) is None:
        accepted = "'auto', 'cpu', 'cuda' or for instance 'cuda:1'"
        raise ValueError(f"there is no device {asked.device!r}: choose {accepted}")
    one_of("--dtype", asked.dtype, DTYPES)
    if asked.model == "":
        raise ValueError(f"--model is empty: name {MODELS}")
    name = asked.model or os.environ.get("PAGEDLAB_MODEL")
    if name and not asked.download:
        model_name(name)


def with_options(error: BaseException) -> str:
    """Return the error's message. It names options in place of the engine's arguments."""

    def option(match: re.Match[str]) -> str:
        return OPTION_OF[match[1]] + (" " if match[2] else "")

    return ARGUMENT.sub(option, str(error))


def engine_arguments(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `LLM` for the model options and the pool options of a command."""
    return {
        "model": asked.model or asked.download,
        "device": asked.device,
        "dtype": asked.dtype,
        "block_size": asked.block_size,
        "num_blocks": asked.num_blocks,
    }


def print_error(error: BaseException) -> int:
    """Print an error in one line and return the exit code."""
    print(visible(f"error: {with_options(error)}", kept=""), file=sys.stderr)
    return BAD_INPUT


def print_now(line: str) -> None:
    """Print a line at once, even if the output is a pipe. Control characters are written out."""
    print(visible(line), flush=True)


@contextmanager
def status_on_stderr() -> Iterator[None]:
    """Print what a command says of itself on stderr: stdout is for what the user asked for."""
    with redirect_stdout(sys.stderr):
        yield


def stopped_by_hand(program: Callable[[list[str]], int], arguments: list[str] | None) -> int:
    """Run a program. Ctrl-C ends it with one line instead of a traceback.

    Args:
        program: takes the arguments and returns the exit code.
        arguments: the arguments; None for those of the command line.

    Returns:
        The exit code.
    """
    _prepare_streams()
    try:
        try:
            return program(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()  # here, where an error is one line
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, for instance `head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it when it ends
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it when it ends
        print(f"error: nothing more can be written: {error.strerror}", file=sys.stderr)
        return 1


def _prepare_streams() -> None:
    """Let no character and no closed stream end the program with a traceback.

    Python has None for a stream that was closed before it started, as in `pagedlab info >&-`.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - it is the program's input from now on
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it is the program's output
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it is the place of its errors
    # Bytes that are not UTF-8 reach the check of the prompt, which names them.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once, while Python imports and loads.

    A KeyboardInterrupt could be caught by a library, which would then be half imported.
    """

    def end(*_: object) -> None:
        os.write(2, b"stopped\n")
        os._exit(INTERRUPTED)

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:  # there is another handler, or none at all
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
