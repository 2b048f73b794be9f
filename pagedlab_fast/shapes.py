"""The shapes of steps.

A CUDA graph has one shape, so a step is padded to the smallest shape that holds it.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

# rows of decode steps
DECODE_ROWS = (
    1,
    2,
    4,
    8,
    *range(16, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
)
PROMPT_ROWS = (16, 64)  # rows of steps with prompts or drafts
# tokens of steps with prompts or drafts
TOKENS = (
    16,
    64,
    *range(128, 1025, 128),
    *range(1280, 2561, 256),
)
# Larger steps are no graphs. They are padded to a multiple, so that kernels see few shapes.
TOKENS_MULTIPLE = 128


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple that is n or more."""
    return -(-n // multiple) * multiple


class StepShape(NamedTuple):
    """How large a step is, padding included.

    Args:
        rows: sequences.
        tokens: tokens that the host lays out; None for a decode step, one token a row, which the
            device lays out.
        is_sampled: whether the device samples; else the host does, and the step ends after the
            layers.
        is_penalised: whether a row has penalties that the device applies.
    """

    rows: int
    tokens: int | None = None
    is_sampled: bool = True
    is_penalised: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, whoever lays them out."""
        return self.rows if self.tokens is None else self.tokens

    @property
    def num_last_rows(self) -> int:
        """Tokens whose logits are wanted, at most."""
        return self.rows if self.is_sampled else self.num_tokens


class Limits(NamedTuple):
    """The largest window that is launched.

    Args:
        max_rows: sequences.
        max_blocks: blocks of a sequence.
        max_steps: steps.
        max_tokens: tokens of one step.
    """

    max_rows: int
    max_blocks: int
    max_steps: int
    max_tokens: int


class StepShapes:
    """The shapes that steps are padded to.

    Attributes:
        decode_rows: rows of decode steps, ascending.
        prompt_rows: rows of steps with prompts or drafts, ascending.
        tokens: tokens of steps with prompts or drafts that are graphs, ascending.
        larger_tokens: tokens of larger steps, ascending.
        max_graph_tokens: tokens that a graph has at most.
    """

    def __init__(self, limits: Limits) -> None:
        self.decode_rows = [n for n in DECODE_ROWS if n < limits.max_rows] + [limits.max_rows]
        self.prompt_rows = [n for n in PROMPT_ROWS if n < limits.max_rows] + [limits.max_rows]
        self.tokens = [n for n in TOKENS if n <= limits.max_tokens]
        first = round_up(max(self.tokens, default=0) + 1, TOKENS_MULTIPLE)
        last = round_up(limits.max_tokens, TOKENS_MULTIPLE)
        self.larger_tokens = range(first, last + 1, TOKENS_MULTIPLE)
        self.max_graph_tokens = max([limits.max_rows, *self.tokens])

    def decode(self, rows: int) -> StepShape:
        """The shape of a decode step with this many rows."""
        return StepShape(next(n for n in self.decode_rows if n >= rows))

    def ragged(self, rows: int, tokens: int) -> StepShape:
        """The shape of a step with prompts or drafts."""
        padded_rows = next(n for n in self.prompt_rows if n >= rows)
        padded_tokens = next(n for n in chain(self.tokens, self.larger_tokens) if n >= tokens)
        return StepShape(padded_rows, padded_tokens)

    def host_sampled(self, rows: int, tokens: int) -> StepShape:
        """The shape of a step that the host samples for, which always lays out its tokens."""
        shape = self.ragged(rows, tokens) if tokens > rows else self.decode(rows)
        return StepShape(shape.rows, shape.num_tokens, is_sampled=False)

    def to_capture(self, is_sampled: bool) -> list[StepShape]:
        """All shapes, the largest first, so that the other graphs fit into its memory.

        In front are the smallest and the largest step that are no graphs: their kernels are
        compiled. Decode steps are last.
        """
        larger = self.larger_tokens
        sizes = sorted({*self.tokens, *larger[:1], *larger[-1:]}, reverse=True)
        rows_and_fewer = list(pairwise([0, *self.prompt_rows]))
        shapes = []
        for tokens in sizes:
            for fewer_rows, rows in reversed(rows_and_fewer):
                if fewer_rows < tokens:  # every row has a token, so smaller steps use fewer rows
                    shapes.append(StepShape(rows, tokens, is_sampled))
        for rows in reversed(self.decode_rows):
            shapes.append(StepShape(rows, None if is_sampled else rows, is_sampled))
        return shapes
