"""Record the model on this machine for the site's first screen, in data/recordings.

python tools/make_recording.py [--model NAME] [--output FOLDER]

three_answers.json   two questions at once, and a third when one has its answer: its blocks go to the newcomer. Greedy.
                     The stage plays it (pagedlab/widgets/stage.js; docs/trace.md describes the format)
one_story.json       a beginning and four samples of how it goes on, as words: what the page's siblings tell

By hand, because it records this package's engine in this package's format.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pagedlab import LLM, SamplingParams
from pagedlab.trace import pieces
from pagedlab.widgets import Stage

ROOT = Path(__file__).resolve().parent.parent
FIRST = (("What is a hash table, in two sentences?", 64), ("Name three rivers in Europe.", 32))
THEN = ("What is a library?", 40)
BEGINNING = "Once upon a time, a little fox met"


def record(llm: LLM) -> Stage:
    """Two answers, and a third that joins when one has ended."""
    with Stage(llm) as stage:
        for question, most in FIRST:
            llm.add([{"role": "user", "content": question}], SamplingParams(max_tokens=most))
        while llm.num_unfinished == len(FIRST):
            llm.step()
        llm.add([{"role": "user", "content": THEN[0]}], SamplingParams(max_tokens=THEN[1]))
        while llm.step():
            pass
    return stage


def tell(llm: LLM) -> dict[str, object]:
    """One beginning and four ways on, a word a token."""
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
    llm = LLM(args.model, num_blocks=64, prefix_caching=False)
    record(llm).save(args.output / "three_answers.json")
    story = json.dumps(tell(llm), ensure_ascii=False)
    (args.output / "one_story.json").write_text(story + "\n", encoding="utf-8")
