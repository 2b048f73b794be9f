"""pagedlab chat: conversations on the prefix cache, forks, what is drawn, and Ctrl-C."""

import io
import re

import pytest
from rich.console import Console

from pagedlab import LLM, SamplingParams
from pagedlab.model import TINY_MODEL
from pagedlab_serve.cli.chat import COLORS, converse
from pagedlab_serve.cli.main import main
from support.engines import assert_idle
from support.faults import raising_at

BLOCK = re.compile(r"([=+&])(\d+)")
QUESTION = "What is a drum?"


@pytest.fixture
def llm(tiny):
    engine = LLM(tiny, num_blocks=256, verbose=False)
    yield engine
    assert_idle(engine)


def drawn(llm, *lines, **look):
    """What a terminal without colours, or with this look, shows of a conversation."""
    console = Console(file=io.StringIO(), width=500, **look)
    converse(llm, SamplingParams(max_tokens=40), lines, console)
    return console.file.getvalue()


def tables(text):
    """The block tables: pairs of a mark and a number."""
    return [BLOCK.findall(line) for line in text.splitlines() if line.startswith("blocks ")]


def test_it_answers_what_generate_answers_and_reuses_the_blocks_of_the_turns_before(llm):
    message = [{"role": "user", "content": QUESTION}]
    (expected,) = llm.generate(message, SamplingParams(max_tokens=40))
    llm.reset()
    text = drawn(llm, QUESTION, "What is a mill?")
    assert text.startswith(expected.outputs[0].text.strip())
    first, second = tables(text)
    assert {mark for mark, _ in first} == {"+"}
    full = (len(expected.prompt_token_ids) + len(expected.outputs[0].token_ids) - 1) // 16
    assert second[:full] == [("=", number) for _, number in first[:full]]
    assert {mark for mark, _ in second[full:]} == {"+"}
    assert f"prompt: {len(expected.prompt_token_ids)} tokens, 0 of them reused" in text
    assert f"{16 * full} of them reused" in text


def test_a_fork_shares_the_full_blocks_of_the_question_and_all_is_remembered_until_a_new_one(llm):
    """A prompt grows by the answer, which has up to 40 tokens, and by the next message."""
    text = drawn(llm, QUESTION, "/fork Tell me a story about a mill.", "Three", "/new", QUESTION)
    one, two = tables(text)[1:3]
    shared = [block for block in one if block[0] in "=&"]
    assert shared == [block for block in two if block[0] in "=&"]
    assert {mark for mark, _ in shared} == {"=", "&"}
    assert one[len(shared)] != two[len(shared)]
    first, second, third, last = (int(length) for length in re.findall(r"prompt: (\d+) tokens", text))
    assert first == last < second < third


def test_a_conversation_that_is_too_long_is_one_line_and_changes_nothing(llm):
    text = drawn(llm, "drum " * 3000, QUESTION)
    error, *rest = text.splitlines()
    assert error.startswith("error: the prompt has ")
    assert "\n".join(rest).strip().startswith(drawn(llm, QUESTION)[:10])


def test_words_have_the_colour_of_their_block(llm):
    text = drawn(llm, QUESTION, color_system="truecolor", force_terminal=False)
    colors = [";".join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5)) for color in COLORS]
    words, blocks = text.split("blocks ")
    for place, color in enumerate(colors[:3]):
        assert f"48;2;{color}m" in words, "the first block holds the question and the first words"
        assert f"48;2;{color}m +{place} " in blocks


def test_control_characters_of_a_model_are_shown(llm, monkeypatch):
    monkeypatch.setattr("pagedlab.outputs.Output.text", "a\x1b]52;c;aGk=\x07\r")
    assert r"a\x1b]52;c;aGk=\x07\x0d" in drawn(llm, QUESTION)


@pytest.mark.parametrize("method", ["step", "forward"])
def test_ctrl_c_stops_an_answer_and_keeps_its_beginning(llm, method):
    """Between two steps, and inside one, which resets the engine."""
    setattr(llm, method, raising_at(7, getattr(llm, method), KeyboardInterrupt))
    text = drawn(llm, QUESTION, "And a flute?")
    assert "error" not in text
    assert len(tables(text)) == 2
    assert "prompt: 13 tokens" in text.split("blocks ")[1]


def test_the_command_helps_and_ends_when_it_is_told_to(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n\n/fork\n/exit\n/quit\nAnd?"))
    with pytest.raises(SystemExit, match="0"):
        main(["chat", "--model", str(TINY_MODEL), "--max-tokens", "5"])
    text = capsys.readouterr().out
    assert text.count("as /quit and Ctrl-D do") == 4
    assert len(tables(text)) == 1
