"""A conversation: its messages, its requests to the engine, and the blocks of each turn.

Each turn sends the whole conversation as a prompt. The prefix cache still has the blocks of the
turns before, so the engine computes only the new tokens. This module prints nothing: screen.py
draws a turn.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pagedlab import LLM, Completion, SamplingParams
from pagedlab.blocks import BlockEvent, BlockPool
from pagedlab.scheduler import Plan, Sequence

# Of two answers, if the user set no temperature: at a lower one they are often equal. Such a high
# one needs a small top_k, because unlikely tokens make no sentence.
FORK_TEMPERATURE = 1.5
FORK_TOP_K = 5
State = Literal["reused", "new", "copied", "handed on"]


@dataclass
class Cell:
    """A block of an answer's table.

    Args:
        index: its logical number: 0 is the first block of the conversation.
        block_id: its physical number.
        state: "reused" if the prefix cache had it, "copied" if it is the copy of a shared block,
            "handed on" if its answer has ended and the pool gave the block to the other answer.
        tokens: how many of its slots are taken.
    """

    index: int
    block_id: int
    state: State
    tokens: int


@dataclass
class Piece:
    """Text that a step added, and the logical block that its last token is in."""

    text: str
    index: int


@dataclass
class Answer:
    """An answer while it grows: its text in pieces, and its blocks."""

    pieces: list[Piece] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(piece.text for piece in self.pieces)


@dataclass
class Turn:
    """A question and its answers, one or two.

    Args:
        question: the user's message.
        answers: the answers.
        block_size: tokens a block.
        prompt_tokens: tokens of the whole conversation up to the question.
        cached_tokens: how many of these the prefix cache had.
        new_tokens: tokens of the answers.
        tokens_per_second: the speed of the turn.
        finished: whether the answers are complete.
        error: what ended an answer, in one line; None if nothing went wrong.
    """

    question: str
    answers: list[Answer]
    block_size: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    tokens_per_second: float = 0.0
    finished: bool = False
    error: str | None = None

    def hand_on(self, block_id: int) -> None:
        """Note that the pool gives a block away: an answer that shows it has freed it."""
        for answer in self.answers:
            for cell in answer.cells:
                if cell.block_id == block_id:
                    cell.state = "handed on"

    @property
    def answers_are_equal(self) -> bool:
        """Whether there are two complete answers with one text."""
        texts = {answer.text for answer in self.answers}
        return self.finished and len(self.answers) > 1 and len(texts) == 1

    def is_shared(self, cell: Cell) -> bool:
        """Whether both answers have this block at this place.

        The other answer may have the block of a cell that was handed on: this is no sharing.
        """
        return sum(_has_block(answer, cell) for answer in self.answers) > 1


def _has_block(answer: Answer, cell: Cell) -> bool:
    """Return whether the answer has the cell's block at the cell's place."""
    return any(
        own.index == cell.index and own.block_id == cell.block_id
        for own in answer.cells
        if own.state != "handed on"
    )


class Conversation:
    """Messages, and the engine that answers them.

    Args:
        llm: the engine. While a turn runs, no other caller uses it.
        sampling: how an answer is sampled.
        system: the system message; None for the one of the model's chat template.
    """

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None = None) -> None:
        self.llm = llm
        self.sampling = sampling
        self.last: Turn | None = None
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self._start)

    @property
    def pool(self) -> BlockPool:
        """The engine's pool, which is a new one after a step that was interrupted."""
        assert isinstance(self.llm.pool, BlockPool)  # the commands use no other
        return self.llm.pool

    def forget(self) -> None:
        """Begin a new conversation. The prefix cache keeps the blocks of the old one."""
        self.messages = list(self._start)
        self.last = None

    def ask(self, question: str, num_answers: int = 1) -> Generator[Turn, None, None]:
        """Answer a question and yield the turn after each step.

        The answer becomes part of the conversation, even if the caller stops early or Ctrl-C
        interrupts a step. Of two answers, `pick` says which one; the first, to begin with.

        Args:
            question: the user's message.
            num_answers: 2 forks the conversation after the question.

        Raises:
            ValueError: If the conversation is longer than the model or the pool can take. It is
                then as it was before.
        """
        sampling = self.sampling
        if num_answers > 1:
            if sampling.temperature == 0:
                sampling = replace(sampling, temperature=FORK_TEMPERATURE, top_k=FORK_TOP_K)
            sampling = replace(sampling, n=num_answers)
        user = {"role": "user", "content": question}
        turn = Turn(question, [Answer() for _ in range(num_answers)], self.pool.block_size)
        states: dict[int, State] = {}  # of the blocks that the pool gave out in this turn

        def note(event: BlockEvent) -> None:
            if event.kind == "allocate":
                states[event.block_id] = "new"
                turn.hand_on(event.block_id)
            elif event.kind == "copy":
                states[event.block_id] = "copied"

        request_id = self.llm.add([*self.messages, user], sampling, stream=True)

        def look(plan: Plan, logits: Any) -> None:
            cached = [n for each, n in plan.admitted.items() if each.request_id == request_id]
            turn.cached_tokens = max([turn.cached_tokens, *cached])
            self._update_blocks(turn, request_id, states)

        with ExitStack() as stack:
            stack.callback(self._end, turn, user, request_id)
            stack.callback(self.pool.subscribe(note))
            # In the forward pass tables have all their blocks; after it, a sequence may have ended.
            stack.callback(self.llm.on_forward(look))
            while not turn.finished:
                for completion in self.llm.step():
                    if completion.request_id == request_id:
                        look(self.llm.plan, None)
                        self._update_text(turn, completion)
                yield turn

    def _end(self, turn: Turn, user: dict[str, str], request_id: int) -> None:
        """End the request if it runs, and add its answer, complete or not, to the messages."""
        self.llm.abort(request_id)
        if turn.answers[0].text.strip():
            self.messages += [user, {"role": "assistant", "content": ""}]
            self.last = turn
            self.pick(1)

    def ask_again(self) -> str | None:
        """Remove the last question and its answer, and return the question; None without one."""
        if self.last is None:
            return None
        question = self.last.question
        del self.messages[-2:]
        self.last = None
        return question

    def pick(self, number: int) -> None:
        """Go on with answer `number` of the last turn, from 1 on.

        Raises:
            ValueError: If there is no such answer.
        """
        answers = self.last.answers if self.last else []
        if not 1 <= number <= len(answers):
            raise ValueError(f"there is no answer {number}: /fork gives two to pick from")
        self.messages[-1]["content"] = answers[number - 1].text.strip()

    def _update_text(self, turn: Turn, completion: Completion) -> None:
        """Add the text that a step has added to the turn, and its figures."""
        turn.prompt_tokens = len(completion.prompt_token_ids)
        turn.new_tokens = sum(len(output.token_ids) for output in completion.outputs)
        turn.tokens_per_second = self.llm.stats.tokens_per_second
        turn.finished = completion.finished
        for answer, output in zip(turn.answers, completion.outputs, strict=False):
            turn.error = turn.error or output.error
            new_text = output.text[len(answer.text) :]
            if new_text:
                last = turn.prompt_tokens + len(output.token_ids) - 1
                answer.pieces.append(Piece(new_text, last // turn.block_size))

    def _update_blocks(self, turn: Turn, request_id: int, states: dict[int, State]) -> None:
        """Note the blocks of those answers that have not ended."""
        by_name = {sequence.name: sequence for sequence in self.llm.sequences()}
        for number, answer in enumerate(turn.answers):
            sequence = by_name.get(f"r{request_id}.{number}" if number else f"r{request_id}")
            if sequence is not None and sequence.table.block_ids:
                answer.cells = self._cells(sequence, turn, states)

    def _cells(self, sequence: Sequence, turn: Turn, states: dict[int, State]) -> list[Cell]:
        """Return the blocks of a sequence.

        A block that the pool did not give out in this turn is from the prefix cache. It was found
        for the prompt, or a new block with the same contents was exchanged for it.
        """
        size = turn.block_size
        num_reused = turn.cached_tokens // size
        cells = []
        for index, block_id in enumerate(sequence.table.block_ids):
            given_out: State = states.get(block_id, "reused")
            state: State = "reused" if index < num_reused else given_out
            tokens = min(size, sequence.table.num_tokens - index * size)
            cells.append(Cell(index, block_id, state, tokens))
        return cells
