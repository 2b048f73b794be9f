"""pagedlab chat: conversations on the prefix cache, forks, what is drawn, and Ctrl-C."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from pagedlab import LLM, SamplingParams
from pagedlab.model import TINY_MODEL
from pagedlab_serve.cli.chat import HELP, converse, typed_lines
from pagedlab_serve.cli.conversation import FORK_TEMPERATURE, Answer, Cell, Conversation, Piece, Turn
from pagedlab_serve.cli.screen import (
    EQUAL_ANSWERS,
    LEGEND,
    MOST_CELLS,
    PlainScreen,
    RichScreen,
    block_lines,
    colors_by_index,
    figures,
    make_screen,
)
from support.paths import ROOT
from support.refused import refused

FORKED = "blocks of answer "


@pytest.fixture
def llm(tiny):
    return LLM(tiny, num_blocks=256, verbose=False)


@pytest.fixture
def conversation(llm):
    talk = Conversation(llm, SamplingParams(max_tokens=60))
    yield talk
    assert llm.pool.num_used == 0, "every block is free or cached"
    assert not llm.num_unfinished
    assert not llm.pool.callbacks


def last(turns):
    *_, turn = turns
    return turn


def text_of(lines):
    return [" ".join("".join(part.text for part in line).split()) for line in lines]


# What it asks of the engine ---------------------------------------------------------------------------------------


def test_a_second_turn_reuses_the_blocks_of_the_first(conversation):
    first = last(conversation.ask("What is a drum?"))
    assert first.finished
    assert first.cached_tokens == 0
    assert {cell.state for cell in first.answers[0].cells} == {"new"}
    second = last(conversation.ask("What is a mill?"))
    full_blocks = (first.prompt_tokens + first.new_tokens - 1) // 16
    assert second.cached_tokens == 16 * full_blocks > 0
    states = [cell.state for cell in second.answers[0].cells]
    assert states == ["reused"] * full_blocks + ["new"] * (len(states) - full_blocks)
    before = [cell.block_id for cell in first.answers[0].cells[:full_blocks]]
    assert [cell.block_id for cell in second.answers[0].cells[:full_blocks]] == before
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2


def test_it_answers_what_generate_answers(conversation, llm):
    question = [{"role": "user", "content": "What is a drum?"}]
    (expected,) = llm.generate(question, SamplingParams(max_tokens=60))
    assert last(conversation.ask("What is a drum?")).answers[0].text == expected.outputs[0].text


def test_the_turn_grows_step_by_step(conversation):
    lengths = [len(turn.answers[0].text) for turn in conversation.ask("What is a drum?")]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 10


def test_a_fork_shares_the_question_and_copies_one_block(conversation):
    last(conversation.ask("What is a drum?"))
    turn = last(conversation.ask("Tell me a story about a mill.", num_answers=2))
    one, two = (answer.cells for answer in turn.answers)
    in_both = [cell.index for cell in one if turn.is_shared(cell)]
    assert in_both == [cell.index for cell in two if turn.is_shared(cell)]
    assert in_both == list(range(turn.prompt_tokens // 16))
    copied = [cell for cell in [*one, *two] if cell.state == "copied"]
    assert len(copied) == (turn.prompt_tokens % 16 > 0)
    assert turn.answers[0].text != turn.answers[1].text
    lines = text_of(block_lines(turn))
    assert lines[0].startswith(FORKED + "1 =0 ")
    assert lines[1].startswith(FORKED + "2 =0 ")
    assert "& shared by both answers" in lines[2]


def test_a_block_that_an_ended_answer_freed_belongs_to_the_other_one_alone(tiny):
    llm = LLM(tiny, num_blocks=256, block_size=4, verbose=False)
    talk = Conversation(llm, SamplingParams(max_tokens=120, temperature=1, seed=1))
    num_handed_on = 0
    for question in ("Hello", "Why is the sky blue?"):
        turn = last(talk.ask(question, num_answers=2))
        places = {}
        for cell in [*turn.answers[0].cells, *turn.answers[1].cells]:
            if cell.state == "handed on":
                num_handed_on += 1
            else:
                places.setdefault(cell.block_id, set()).add(cell.index)
        assert all(len(indices) == 1 for indices in places.values()), places
    assert num_handed_on, "the test has a case of it"


def test_pick_says_which_answer_the_conversation_goes_on_with(conversation):
    turn = last(conversation.ask("Tell me a story about a mill.", num_answers=2))
    texts = [answer.text.strip() for answer in turn.answers]
    assert conversation.messages[-1]["content"] == texts[0]
    conversation.pick(2)
    assert conversation.messages[-1]["content"] == texts[1]
    with refused("there is no answer 3: /fork gives two to pick from"):
        conversation.pick(3)
    again = last(conversation.ask("And then?"))
    assert again.cached_tokens >= 16 * (turn.prompt_tokens // 16)


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_is(conversation):
    turns = conversation.ask("What is a drum?")
    turn = next(turns)
    while len(turn.answers[0].text) < 10:
        turn = next(turns)
    turns.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": turn.answers[0].text.strip()}
    assert conversation.llm.num_unfinished == 0


def test_a_conversation_that_is_too_long_changes_nothing(tiny):
    talk = Conversation(LLM(tiny, num_blocks=4, verbose=False), SamplingParams(max_tokens=10))
    with refused("the pool has 4"):
        next(talk.ask("drum " * 200))
    assert talk.messages == []
    assert last(talk.ask("What is a drum?")).finished


def test_the_system_message_comes_first(llm):
    talk = Conversation(llm, SamplingParams(max_tokens=4), "You are brief.")
    last(talk.ask("What is a drum?"))
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant"]
    talk.forget()
    assert talk.messages == [{"role": "system", "content": "You are brief."}]


# What the user types ----------------------------------------------------------------------------------------------


def typed(conversation, *lines):
    converse(conversation, PlainScreen(), lines)


def test_the_commands(conversation, capsys):
    typed(conversation, "What is a drum?", "", "/fork", "/pick 2", "/blocks", "/new", "/help")
    printed = capsys.readouterr().out
    assert (
        "blocks +0 +1 +2 13/16\n+ new, 13/16 slots taken\nprompt: 13 tokens, 0 of them reused, 13 computed · answer: 33"
        in printed
    )
    assert "answer 1: " in printed
    assert f"{FORKED}2 " in printed
    assert "goes on with answer 2" in printed
    assert re.search(
        r"256 blocks of 16 tokens: 0 in use, [1-9]\d* cached for later prompts with the same beginning", printed
    )
    assert printed.endswith(HELP + "\n\n")
    assert conversation.messages == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nonsense", "there is no /nonsense; there are /fork, /pick, /blocks, /new, /help, /quit"),
        ("/fork", "there is no message yet: /fork MESSAGE"),
        ("/pick", "name the answer: /pick 1 or /pick 2"),
        ("/pick 2", "there is no answer 2: /fork gives two to pick from"),
        ("drum " * 3000, "the prompt has "),
    ],
)
def test_a_line_that_cannot_be_done(conversation, line, message, capsys):
    typed(conversation, line)
    printed = capsys.readouterr().out
    assert printed.startswith(f"error: {message}")
    assert len(printed.splitlines()) == 2, "one line, and an empty one"


def test_a_conversation_that_is_too_long_names_the_way_out(conversation, capsys):
    typed(conversation, "What is a drum?", "drum " * 3000, "/new", "drum " * 3000)
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert [error.endswith(", or begin a new conversation with /new") for error in errors] == [True, False]


@pytest.mark.parametrize("command", ["/quit", "/exit"])
def test_quit_ends_it(command, conversation, capsys):
    typed(conversation, command, "What is a drum?")
    assert capsys.readouterr().out == ""


# What is drawn ----------------------------------------------------------------------------------------------------


def turn_of(num_blocks, num_answers=1):
    cells = [Cell(i, 10 + i, "reused" if i < 2 else "new", 16) for i in range(num_blocks)]
    cells[-1].tokens = 5
    pieces = [Piece(f" word{i}", i) for i in range(num_blocks)]
    answers = [Answer(list(pieces), list(cells)) for _ in range(num_answers)]
    return Turn("why?", answers, 16, prompt_tokens=40, cached_tokens=32, new_tokens=9)


def test_marks_and_their_meaning():
    assert text_of(block_lines(turn_of(4))) == [
        "blocks =10 =11 +12 +13 5/16",
        "= reused from the prefix cache, + new, 5/16 slots taken",
    ]


def test_the_help_explains_every_mark():
    assert all(f"\n{mark} {meaning}\n" in HELP for mark, meaning in LEGEND.items())
    assert "10 of its 16 slots hold a token" in HELP


def test_that_a_block_is_shared_says_more_than_that_it_is_a_copy():
    cells = [Cell(0, 9, "copied", 16)]
    turn = Turn("why?", [Answer(cells=list(cells)), Answer(cells=list(cells))], 16)
    assert text_of(block_lines(turn))[:2] == [FORKED + "1 &9", FORKED + "2 &9"]


def test_a_block_that_is_handed_on_at_the_same_place_is_not_shared():
    one, two = Answer(cells=[Cell(0, 9, "new", 4)]), Answer()
    turn = Turn("why?", [one, two], 16)
    turn.hand_on(9)
    two.cells = [Cell(0, 9, "new", 5)]
    assert text_of(block_lines(turn)) == [
        FORKED + "1 -9 4/16",
        FORKED + "2 +9 5/16",
        "+ new, - this answer ended and gave the block back; the other answer uses it now, 5/16 slots taken",
    ]


def test_a_block_has_one_colour_in_both_answers_and_in_words():
    one = Answer([Piece("a", 0), Piece("b", 1), Piece("c", 2)], [Cell(0, 3, "new", 16), Cell(1, 7, "new", 4)])
    two = Answer(cells=[Cell(0, 3, "new", 16), Cell(1, 8, "new", 16), Cell(2, 7, "new", 2)])
    first, second, _ = block_lines(Turn("why?", [one, two], 16))
    colors = [{part.text.split()[0][1:]: part.color for part in line if part.color} for line in (first, second)]
    assert colors[0]["7"] == colors[1]["7"] == colors_by_index(one)[1]
    assert colors[0]["3"] == colors[1]["3"] == colors_by_index(one)[0]
    assert len({*colors[0].values(), *colors[1].values()}) == 3, "neighbours differ"
    assert 2 not in colors_by_index(one), "a token without a block has no colour"


@pytest.mark.parametrize("finished", [True, False])
def test_two_equal_answers_are_said_to_be_equal(finished):
    turn = turn_of(4, num_answers=2)
    turn.finished = finished
    assert (text_of(block_lines(turn))[-1] == EQUAL_ANSWERS) is finished
    turn.answers[1].pieces.append(Piece("more", 3))
    assert EQUAL_ANSWERS not in text_of(block_lines(turn))


def test_a_fork_has_the_temperature_of_the_user_or_one_at_which_answers_differ(llm, monkeypatch):
    asked = []
    add = llm.add
    monkeypatch.setattr(llm, "add", lambda prompt, sampling, **rest: asked.append(sampling) or add(prompt, sampling))
    for temperature in (0.0, 0.3):
        last(Conversation(llm, SamplingParams(2, temperature)).ask("Hello", num_answers=2))
    assert [sampling.temperature for sampling in asked] == [FORK_TEMPERATURE, 0.3]


def test_the_tokens_of_two_answers_are_those_of_answers():
    assert "· answer: 9 tokens" in figures(turn_of(4))
    assert "· answers: 9 tokens" in figures(turn_of(4, num_answers=2))


@pytest.mark.parametrize("height", [24, 12])
def test_what_is_drawn_over_fits_on_the_screen(height):
    console = pytest.importorskip("rich.console")
    out = io.StringIO()
    screen = RichScreen(
        console.Console(file=out, force_terminal=True, color_system="truecolor", width=80, height=height)
    )
    turn = turn_of(MOST_CELLS, num_answers=2)
    for answer in turn.answers:
        answer.pieces = [Piece(f" word{i}", i // 20) for i in range(400)]
    screen.grow(turn)
    frame = out.getvalue()
    assert frame.count("\n") < max(height, 22), "one line of each answer, at least"


def test_of_a_long_table_the_last_blocks_are_drawn():
    line = text_of(block_lines(turn_of(MOST_CELLS + 7)))[0]
    assert line.startswith("blocks (7 more before) +17 +18")


def in_a_terminal(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("no_color", [True, False])
def test_rich_draws_words_in_the_colour_of_their_block(no_color, monkeypatch, capsys):
    in_a_terminal(monkeypatch)
    monkeypatch.setenv("COLORTERM", "truecolor")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = make_screen(plain=False)
    screen.grow(turn_of(4))
    screen.end(turn_of(4))
    drawn = capsys.readouterr().out.rpartition("\x1b[2K")[2]
    assert ("\x1b[30;48;2;86;180;233m" in drawn) is not no_color
    plain = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", drawn).replace("\N{NO-BREAK SPACE}", " ")
    assert "word0 word1 word2 word3" in plain
    assert "=10   =11   +12   +13 5/16" in plain
    assert "prompt: 40 tokens, 32 of them reused, 8 computed" in plain


ESCAPES = "a\x1b]52;c;aGk=\x07 b\x9b2J c\r\x7f\td\n\x00e"
SHOWN = r"a\x1b]52;c;aGk=\x07 b\x9b2J c\x0d\x7f"


@pytest.mark.parametrize("num_answers", [1, 2])
@pytest.mark.parametrize("is_plain", [True, False])
def test_control_characters_of_a_model_are_shown(is_plain, num_answers, monkeypatch, capsys):
    in_a_terminal(monkeypatch)
    turn = turn_of(4, num_answers)
    for answer in turn.answers:
        answer.pieces = [Piece(part, 0) for part in re.split("(b)", ESCAPES)]
    screen = make_screen(is_plain)
    screen.grow(turn)
    screen.end(turn)
    printed = capsys.readouterr().out
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", printed).replace("\r", "")  # what rich itself writes
    assert plain.count(SHOWN) >= num_answers
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", plain) is None


def test_without_a_terminal_it_is_plain():
    assert isinstance(make_screen(plain=False), PlainScreen)


def test_in_a_terminal_it_is_plain_where_rich_cannot_draw(monkeypatch):
    in_a_terminal(monkeypatch)
    assert isinstance(make_screen(plain=True), PlainScreen)
    assert isinstance(make_screen(plain=False), RichScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_screen(plain=False), PlainScreen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("pagedlab_serve.cli.screen.find_spec", lambda name: None)
    assert isinstance(make_screen(plain=False), PlainScreen)


# From end to end --------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "pagedlab_serve", "chat", "--model", str(TINY_MODEL), "--num-blocks", "64"]


def test_a_conversation_from_a_pipe_with_a_byte_that_is_not_unicode():
    """That message is refused, the next ones are answered, and what an ASCII terminal lacks is a question mark."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    lines = b"caf\xe9\nWhat is a drum?\nWhat is a mill?\n"
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment, input=lines, capture_output=True, check=False)
    assert done.returncode == 0
    refused, _, answers = done.stdout.decode("ascii").partition("you> What is a drum?\n")
    assert refused.startswith("you> caf?\nerror: the chat must be valid Unicode, and ")
    assert answers.startswith("A drum is a round box"), "the rest is on stderr"
    for line in ("loading torch", "model: tiny-qwen2", "attention: ", "Type a message."):
        assert f"\n{line}" in f"\n{done.stderr.decode()}"
    assert b"Traceback" not in done.stderr
    assert "\x1b" not in answers
    assert "blocks =0 =1 +2" in answers
    assert "13 computed ? answer: " in answers
    assert answers.endswith("a second\n\n"), "no prompt is left at the end"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_end_of_the_input_ends_the_line_of_a_terminal(is_terminal, monkeypatch, capsys):
    """Ctrl-D, or the end of a pipe."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal)
    assert list(typed_lines()) == []
    assert capsys.readouterr().out == ("you> \n" if is_terminal else "")


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, **environment):
        pty = pytest.importorskip("pty")
        self.process, self.end = pty.fork()
        if self.process == 0:
            os.chdir(ROOT)
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", **environment})
            os.execv(sys.executable, COMMAND)  # noqa: S606
        self.seen = ""
        self.at = 0  # characters of it that were read

    def read_until(self, text, seconds=60):
        """Return what is printed after what was read before, up to the text."""
        start = self.at
        deadline = time.monotonic() + seconds
        while text not in self.seen[start:]:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.end, 1 << 16).decode(errors="replace")
                except OSError:  # the process has ended
                    assert text in self.seen[start:], self.seen
        self.at = self.seen.index(text, start) + len(text)
        return self.seen[start : self.at]

    def type(self, text):
        # readline loses what comes before it has the terminal. That is after the prompt, and nothing tells when.
        time.sleep(0.5)
        os.write(self.end, text.encode())

    def exit_code(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
class TestTerminal:
    def test_colours_a_fork_and_ctrl_c_that_stops_an_answer_and_then_clears_a_line(self):
        """No frame is taller than the screen: its first lines would stay, as the terminal cannot draw over them."""
        terminal = Terminal(COLUMNS="80", LINES="24")
        terminal.read_until("you> ")
        terminal.type("What is a drum?\n")
        assert "\x1b[30;48" in terminal.read_until("a second")
        terminal.read_until("you> ")
        terminal.type("/fork Tell me a long story about a mill and a goose.\n")
        terminal.read_until("\x1b[?25l")  # the cursor is hidden while an answer grows
        frames = terminal.read_until("\x1b[?25h")
        ups = [part.count("\x1b[1A") for part in re.findall(r"(?:\x1b\[1A\x1b\[2K)+", frames)]
        assert ups
        assert max(ups) < 24
        terminal.read_until("/pick 2 takes the other one.")
        terminal.read_until("you> ")
        terminal.type("Tell me a long story about a mill and a goose.\n")
        terminal.read_until("blocks")  # it grows
        os.write(terminal.end, b"\x03")
        terminal.read_until("stopped\r\n")
        terminal.read_until("you> ")
        terminal.type("half a line\x03")
        terminal.read_until("Ctrl-D or /quit ends the chat.\r\n")
        terminal.read_until("you> ")
        terminal.type("/blocks\n")
        terminal.read_until("blocks of 16 tokens")
        terminal.read_until("you> ")
        terminal.type("\x03")
        terminal.read_until("Ctrl-D or /quit ends the chat.\r\n")
        terminal.read_until("you> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
        assert "Traceback" not in terminal.seen

    def test_ctrl_c_while_it_loads(self):
        terminal = Terminal()
        terminal.read_until("loading torch and transformers ...\r\n")
        os.kill(terminal.process, signal.SIGINT)
        assert terminal.read_until("stopped").strip().splitlines()[-1] == "stopped"
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.seen
