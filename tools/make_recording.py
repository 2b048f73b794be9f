"""Record the model on this machine for the site's first screen, in data/recordings.

PAGEDLAB_MODEL=FOLDER python tools/make_recording.py

three_answers.json   three questions at once, in so few blocks that the third waits for those of the second. The first
                     and the third answer end in the same step, so the step before has both of them whole. Greedy.
                     The stage plays it (widgets/stage.js; docs/trace.md describes the format)

By hand, because it records this package's engine in this package's format.
"""

from __future__ import annotations

from pathlib import Path

from pagedlab_lessons.widgets import Stage

from pagedlab import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = ("What is a linked list, in one sentence?", "What is the largest planet?", "How far is the moon?")
FEW_BLOCKS = 8  # for two of the questions, and not for three
MOST_TOKENS = 64  # of an answer; each ends before


def record() -> Stage:
    """Two answers, and a third that waits for the blocks of one of them."""
    llm = LLM(num_blocks=FEW_BLOCKS, prefix_caching=False)
    with Stage(llm) as stage:
        for question in QUESTIONS:
            llm.add([{"role": "user", "content": question}], SamplingParams(max_tokens=MOST_TOKENS))
        while llm.step():
            pass
    return stage


if __name__ == "__main__":
    record().save(ROOT / "data" / "recordings" / "three_answers.json")
