"""The help: every option says what it does and what its default is."""

import argparse

import pytest

from pagedlab.attention import BACKENDS
from pagedlab.loading import DTYPES
from pagedlab_serve.cli import options
from pagedlab_serve.cli.main import COMMANDS
from pagedlab_serve.command_line import DTYPES as ACCEPTED_DTYPES
from pagedlab_serve.serve import make_parser


def serve():
    return make_parser("pagedlab serve")


PARSERS = [
    options.program,
    options.chat,
    options.generate,
    serve,
    options.download,
    options.notebooks,
    options.info,
]


def test_every_command_has_a_parser():
    assert [make().prog.partition(" ")[2] for make in PARSERS[1:]] == list(COMMANDS)


@pytest.mark.parametrize("make", PARSERS, ids=lambda make: make.__name__)
def test_every_option_has_help_and_names_its_real_default(make):
    parser = make()
    assert parser.description
    printed = " ".join(parser.format_help().split())
    for action in parser._actions:
        assert action.help, action
        is_required = not action.option_strings and action.nargs == "*"
        if action.nargs == 0 or is_required:
            continue
        assert "default: " in action.help, f"{parser.prog} {action.option_strings or action.dest}"
        if action.default not in (None, [], argparse.SUPPRESS):
            assert f"default: {action.default}" in printed, action.dest


@pytest.mark.parametrize("make", PARSERS[:-1], ids=lambda make: make.__name__)
def test_examples_can_be_parsed(make):
    """Each example begins with the command, and each of its options exists."""
    parser = make()
    assert parser.epilog
    for line in parser.epilog.splitlines()[1:]:
        assert "pagedlab" in line
        words = [word.partition("=")[0] for word in line.split() if word.startswith("--")]
        assert set(words) <= set(parser._option_string_actions), line


def test_the_help_lists_what_is_accepted():
    assert ACCEPTED_DTYPES == DTYPES
    assert set(options.ATTENTION) == {"auto", "triton", *BACKENDS}
    printed = " ".join(options.generate().format_help().split())
    assert all(dtype in printed for dtype in DTYPES)
