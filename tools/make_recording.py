"""Record the model on this machine for the site's first screen, in data/recordings.

python tools/make_recording.py [--model NAME] [--output FOLDER]

three_answers.json   three questions at once, in so few blocks that the third waits for those of the second. The first
                     and the third answer end in the same step, so the step before has both of them whole. Greedy.
                     The stage plays it (widgets/stage.js; docs/trace.md describes the format)
one_story.json       a beginning and four samples of how it goes on, as words: what the page's siblings tell

By hand, because it records this package's engine in this package's format.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pagedlab_lessons.widgets import Stage

from pagedlab import LLM, SamplingParams
from pagedlab.recipes.trace import pieces

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = ("What is a linked list, in one sentence?", "What is the largest planet?", "How far is the moon?")
FEW_BLOCKS = 8  # for two of the questions, and not for three
MOST_TOKENS = 64  # of an answer; each ends before
BEGINNING = "Once upon a time, a little fox met"


def record(model: str | None) -> Stage:
    """Two answers, and a third that waits for the blocks of one of them."""
    llm = LLM(model, num_blocks=FEW_BLOCKS, prefix_caching=False)
    with Stage(llm) as stage:
        for question in QUESTIONS:
            llm.add([{"role": "user", "content": question}], SamplingParams(max_tokens=MOST_TOKENS))
        while llm.step():
            pass
    return stage


def tell(model: str | None) -> dict[str, object]:
    """One beginning and four ways on, a word a token."""
    llm = LLM(model, num_blocks=64, prefix_caching=False)
    params = SamplingParams(n=4, max_tokens=40, temperature=0.8, top_p=0.9, seed=3, ignore_eos=True)
    (told,) = llm.generate([BEGINNING], params)
    prompt = told.prompt_token_ids
    stories = [pieces(llm.decode, [*prompt, *output.token_ids], len(prompt)) for output in told.outputs]
    return {"model": llm.model.name, "prompt": pieces(llm.decode, prompt), "stories": stories}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as for LLM; by default what pagedlab chooses")
    parser.add_argument("--output", type=Path, default=ROOT / "data" / "recordings")
    args = parser.parse_args()
    stage, story = record(args.model), tell(args.model)
    stage.save(args.output / "three_answers.json")
    (args.output / "one_story.json").write_text(json.dumps(story, ensure_ascii=False) + "\n", encoding="utf-8")
