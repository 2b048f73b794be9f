"""pagedlab chat: a conversation in the terminal, with the blocks that hold it.

A word has the colour of the block that holds it. The blocks of each answer are below it:

    blocks  =12  =13  +14  +15
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pagedlab.sampling_params import SamplingParams
from pagedlab_serve.cli.options import (
    BlockSize,
    Device,
    Dtype,
    MaxTokens,
    Model,
    NumBlocks,
    Seed,
    Temperature,
    load_llm,
)
from pagedlab_serve.cli.terminal import visible

if TYPE_CHECKING:
    from pagedlab.engine import LLM

# Backgrounds that black text can be read on, the colours of Okabe and Ito as far as they are.
COLORS = ("#56B4E9", "#E69F00", "#2FBF92", "#F0E442", "#DB93B8", "#E8824A")
PROMPT = "you> "
WELCOME = """\
Type a message. Below each answer are its blocks, in the colours of their words:
= reused from the prefix cache, + new, & shared by both answers.
/fork MESSAGE gives two answers and goes on with the first, /new begins anew.
Ctrl-C stops an answer. At you> it ends the chat, as /quit and Ctrl-D do.
"""


def chat(
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    block_size: BlockSize = 16,
    num_blocks: NumBlocks = None,
) -> None:
    """Talk to a model. Below each answer are the blocks that hold the conversation."""
    llm = load_llm(model, device, dtype, block_size, num_blocks)
    console = Console(highlight=False)
    console.print(WELCOME)
    with llm:
        sampling = SamplingParams(max_tokens, temperature, seed=seed)
        converse(llm, sampling, typed_lines(console), console)


def typed_lines(console: Console) -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D or the end of the input."""
    with suppress(EOFError):
        while True:
            yield console.input(PROMPT if sys.stdin.isatty() else "")
    console.print()


def converse(llm: LLM, sampling: SamplingParams, lines: Iterable[str], console: Console) -> None:
    """Answer each line.

    Args:
        llm: the engine. Nobody else uses it meanwhile.
        sampling: how an answer is sampled.
        lines: the lines that the user types.
        console: where the answers are drawn.
    """
    messages: list[dict[str, str]] = []
    for line in lines:
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return
        if command == "/new":
            messages = []
            continue
        how = sampling
        if command == "/fork":  # at a lower temperature, two answers are often equal
            how = replace(how, n=2, temperature=how.temperature or 1.5, top_k=5)
            line = rest
        if line.strip()[:1] in ("", "/"):  # nothing is asked, or it is no command
            console.print(WELCOME)
            continue
        asked = [*messages, {"role": "user", "content": line}]
        try:
            text = draw(llm, asked, how, console)
            messages = [*asked, {"role": "assistant", "content": text}]
        except (ValueError, FloatingPointError) as error:
            console.print(f"error: {error}\n", markup=False)


def draw(
    llm: LLM, messages: list[dict[str, str]], sampling: SamplingParams, console: Console
) -> str:
    """Draw the answers while they grow, until Ctrl-C, and return the text of the first one."""
    request_id = llm.add(messages, sampling)
    turn = Turn(llm, request_id, sampling.n)
    with ExitStack() as stack:
        stack.callback(llm.abort, request_id)
        # In the forward pass tables have all their blocks; after it, a sequence may have ended.
        stack.callback(llm.on_forward(turn.look))
        live = stack.enter_context(Live(console=console, auto_refresh=False))
        stack.enter_context(suppress(KeyboardInterrupt))
        while llm.num_unfinished:
            turn.step()
            live.update(turn.drawing(), refresh=True)
    return turn.texts[0].plain


class Turn:
    """The answers to a question, one or two, while they grow.

    Args:
        llm: the engine.
        request_id: of the question.
        count: how many answers there are.

    Attributes:
        texts: of each answer, its text in colour.
        tables: of each answer, its block table.
    """

    def __init__(self, llm: LLM, request_id: int, count: int) -> None:
        self._llm = llm
        self._request_id = request_id
        self.texts = [Text() for _ in range(count)]
        self.tables: list[list[int]] = [[] for _ in range(count)]
        self._prompt_tokens = 0

    def look(self, plan: Any, logits: Any) -> None:
        """Note the blocks of the answers that have not ended."""
        for sequence in self._llm.sequences():
            self.tables[sequence.nth] = list(sequence.table.block_ids)

    def step(self) -> None:
        """Run a step, and note the text that it adds. `FloatingPointError` if it cannot go on."""
        for completion in self._llm.step():
            if completion.request_id != self._request_id:
                continue  # Ctrl-C has dropped it in the middle of a step
            self._prompt_tokens = len(completion.prompt_token_ids)
            for text, output in zip(self.texts, completion.outputs, strict=False):
                if output.error:
                    raise FloatingPointError(output.error)
                last = self._prompt_tokens + len(output.token_ids) - 1
                place = last // self._llm.block_size
                text.append(visible(output.text)[len(text) :], style_of(place))

    def drawing(self) -> Text:
        """Return the answers, each with its blocks below it."""
        drawn = Text()
        for text, table in zip(self.texts, self.tables, strict=True):
            drawn.append_text(text).append("\n\nblocks ")
            for place, block_id in enumerate(table):
                drawn.append(f" {self._mark(place)}{block_id} ", style_of(place))
                drawn.append(" ")
            drawn.append("\n\n")
        cached = self._llm.stats.cached_tokens
        return drawn.append(
            f"prompt: {self._prompt_tokens} tokens, {cached} of them reused\n", "dim"
        )

    def _mark(self, place: int) -> str:
        """Return the mark of the block at this place of a table."""
        size = self._llm.block_size
        if place < self._llm.stats.cached_tokens // size:
            return "="
        is_full_of_prompt = place < self._prompt_tokens // size
        return "&" if is_full_of_prompt and len(self.tables) > 1 else "+"


def style_of(place: int) -> str:
    """Return the style of a block's words: the same in all answers that share the block."""
    return f"black on {COLORS[place % len(COLORS)]}"
