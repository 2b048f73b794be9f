"""pagedlab chat: a conversation in the terminal, with the blocks that hold it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress

from pagedlab_fast import LLM
from pagedlab_serve.cli.conversation import Conversation, Turn
from pagedlab_serve.cli.options import sampling_params
from pagedlab_serve.cli.screen import LEGEND, Screen, make_screen
from pagedlab_serve.command_line import (
    ended_by_ctrl_c,
    engine_arguments,
    print_now,
    status_on_stderr,
    with_options,
)

PROMPT = "you> "
WELCOME = "Type a message. /fork gives two answers from one beginning, /help lists more."
HOW_TO_END = "Ctrl-D or /quit ends the chat."
MARKS_HELP = "\n".join(f"{mark} {meaning}" for mark, meaning in LEGEND.items())
HELP = f"""\
/fork MESSAGE   two answers from one beginning: they share blocks until they differ
/fork           answer the last message again, twice
/pick 2         go on with answer 2
/blocks         the block pool
/new            begin a new conversation
/quit           end; Ctrl-D does the same
Ctrl-C stops an answer; at the prompt it clears the line.

The marks of blocks:
{MARKS_HELP}
+7 10/16 is a new block with the number 7. 10 of its 16 slots hold a token."""


def run(asked: argparse.Namespace) -> int:
    """Load the model, answer until the user ends it, and return the exit code."""
    sampling = sampling_params(asked)
    with ended_by_ctrl_c(), status_on_stderr():
        llm = LLM(**engine_arguments(asked))
    with llm:
        conversation = Conversation(llm, sampling, asked.system)
        with status_on_stderr():
            print_now(f"{WELCOME}\n")
        converse(conversation, make_screen(asked.plain), typed_lines())
    return 0


def typed_lines() -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D or the end of the input."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 - arrow keys and a history, where Python has it
    while True:
        try:
            line = input(PROMPT if is_terminal else "")
        except EOFError:
            if is_terminal:
                print()
            return
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print(f"\n{HOW_TO_END}")  # a line that was begun is gone
            continue
        if not is_terminal:
            print_now(f"{PROMPT}{line}")  # so that the output of a script shows the question
        yield line


def converse(conversation: Conversation, screen: Screen, lines: Iterable[str]) -> None:
    """Answer each line until the last one, or until /quit.

    Args:
        conversation: the messages and the engine.
        screen: where the turns are drawn.
        lines: the lines that the user types.
    """
    for line in lines:
        message = line.strip()
        if message in ("/quit", "/exit"):
            return
        if not message:
            continue
        try:
            if message.startswith("/"):
                _command(conversation, screen, message)
            else:
                _answer(screen, conversation.ask(message))
        except ValueError as error:
            is_long = bool(conversation.messages) and not message.startswith("/")
            hint = ", or begin a new conversation with /new" if is_long else ""
            print_now(f"error: {with_options(error)}{hint}\n")


def _answer(screen: Screen, turns: Generator[Turn, None, None]) -> None:
    """Draw a turn while it grows. Ctrl-C stops the answer and keeps the part that is there."""
    turn: Turn | None = None
    was_stopped = False
    try:
        with closing(turns):  # ends the request, whatever happens while a turn is drawn
            for turn in turns:
                screen.grow(turn)
    except KeyboardInterrupt:
        was_stopped = True
    finally:
        if turn is not None:
            screen.end(turn)
    if was_stopped:
        print_now("stopped\n")
    if turn is not None and turn.error:
        print_now(f"error: {turn.error}\n")


def _command(conversation: Conversation, screen: Screen, message: str) -> None:
    """Run a command: a line that begins with a slash."""
    name, _, rest = message.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        names = ", ".join([*COMMANDS, "/quit"])
        raise ValueError(f"there is no {name}; there are {names}")
    command(conversation, screen, rest.strip())


def _fork(conversation: Conversation, screen: Screen, rest: str) -> None:
    question = rest or conversation.ask_again()
    if not question:
        raise ValueError("there is no message yet: /fork MESSAGE")
    _answer(screen, conversation.ask(question, num_answers=2))
    print_now("The conversation goes on with answer 1; /pick 2 takes the other one.\n")


def _pick(conversation: Conversation, screen: Screen, rest: str) -> None:
    if rest not in ("1", "2"):
        raise ValueError("name the answer: /pick 1 or /pick 2")
    conversation.pick(int(rest))
    print_now(f"The conversation goes on with answer {rest}.\n")


def _blocks(conversation: Conversation, screen: Screen, rest: str) -> None:
    pool = conversation.pool
    free = pool.num_free - pool.num_cached
    print_now(
        f"{pool.num_blocks} blocks of {pool.block_size} tokens: {pool.num_used} in use, "
        f"{pool.num_cached} cached for later prompts with the same beginning, {free} empty\n"
    )


def _new(conversation: Conversation, screen: Screen, rest: str) -> None:
    conversation.forget()
    print_now("A new conversation. The blocks of the old one stay cached.\n")


def _help(conversation: Conversation, screen: Screen, rest: str) -> None:
    print_now(f"{HELP}\n")


COMMANDS: dict[str, Callable[[Conversation, Screen, str], None]] = {
    "/fork": _fork,
    "/pick": _pick,
    "/blocks": _blocks,
    "/new": _new,
    "/help": _help,
}
