"""Finds the command that the user names, and runs it."""

from __future__ import annotations

from typing import Annotated

import typer

from pagedlab import __version__
from pagedlab.extras import MissingExtra
from pagedlab_serve.cli.chat import chat
from pagedlab_serve.cli.download import download
from pagedlab_serve.cli.generate import generate
from pagedlab_serve.cli.info import info
from pagedlab_serve.cli.notebooks import notebooks
from pagedlab_serve.cli.serve import serve
from pagedlab_serve.cli.terminal import visible

BAD_INPUT = 2  # the exit code of a command with a bad option
EXPECTED = (ValueError, OSError, FloatingPointError, MissingExtra)
COMMANDS = (chat, generate, serve, download, notebooks, info)

app = typer.Typer(
    help="An engine with a paged KV cache, and a series of notebooks that builds it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command()(command)


@app.callback(invoke_without_command=True)
def before_a_command(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Obey the options that stand before a command."""
    if version:
        typer.echo(f"pagedlab {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Its end is a `SystemExit`; of an error that is expected, print one line.

    Args:
        arguments: the command and its options; None for those of the command line.

    Returns:
        The exit code.
    """
    try:
        app(arguments, prog_name="pagedlab")
    except EXPECTED as error:
        typer.echo(f"error: {visible(str(error))}", err=True)
    return BAD_INPUT
