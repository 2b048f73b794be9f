"""A replay as the stage shows it: a block grid, and the answers as far as they are written."""

from typing import Any

from pagedlab.recipes.trace import Replay, SequenceState
from pagedlab_lessons.colors import sequence_look
from pagedlab_lessons.widgets.reading import Reading, TableReading


def grid_of(replay: Replay) -> dict[str, Any]:
    """The state as a block grid shows it, see `Reading.snapshot`."""
    tables: dict[str, TableReading] = {}
    looks = {}
    for name, sequence in replay.sequences.items():
        if sequence.blocks:
            tables[name] = TableReading(list(sequence.blocks), sequence.tokens)
            looks[name] = sequence.look
    free = replay.recording["num_blocks"] - replay.used
    size = replay.recording["block_size"]
    grid = Reading(size, list(replay.counts), free, tables, problems=[]).snapshot(looks)
    grid["used"] = replay.used
    grid["copied"] = replay.copied
    return grid


def answers_of(replay: Replay) -> list[dict[str, Any]]:
    """Of each sequence: its name, state and look, and runs of its words.

    A run is (entry of the block table or None, words, whether they are the prompt's).
    """
    size = replay.recording["block_size"]
    answers = []
    for name, sequence in replay.sequences.items():
        runs = _runs(sequence, size)
        look = sequence_look(sequence.look)
        answers.append({"name": name, "state": sequence.state, "runs": runs, **look})
    return answers


def _runs(sequence: SequenceState, block_size: int) -> list[tuple[int | None, str, bool]]:
    """Its words, those of one block together, without what a chat template added."""
    runs: dict[tuple[int | None, bool], str] = {}
    for position, word in enumerate(sequence.words):
        if position in sequence.roles:
            continue
        entry = position // block_size if position < sequence.tokens else None
        run = (entry, position < sequence.prompt)
        runs[run] = runs.get(run, "") + word
    return [(entry, words, is_prompt) for (entry, is_prompt), words in runs.items()]
