"""What prompt lookup saves in steps and seconds, on prompts whose answer copies and on one whose does not.

python benchmarks/speculative.py [--model FOLDER] [--tokens 64] [--k 1 2 4 8] [--json data/results/speculative.json]

Greedy, one text at a time, the prefix cache off; the prompt is computed in both ways and counted in the seconds. The
texts are asserted to be equal (in float32; with --dtype bfloat16 they may part where two logits tie, and the line says
so). Steps and acceptance depend on the model and the prompt alone, seconds on the machine.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from machine import record

from pagedlab import LLM, SamplingParams
from pagedlab.model import TINY_MODEL, Model, load_model
from pagedlab.speculative import PromptLookup

PASSAGE = """The library of Alderbrook was founded in 1891 by Margaret Finch, a schoolteacher who left her collection of
2,300 books to the town. It stands at the corner of Mill Lane and the old market square. The reading room on the first
floor has twelve oak tables and a glass roof, which was repaired in 1964 after a storm. Members may borrow up to six
books for four weeks. The children's room opens at three in the afternoon on school days. Since 2015 the library has
lent musical instruments too: eleven violins, four cellos and a harp that once belonged to the mayor's wife."""
PROMPTS = {
    "summary": f"{PASSAGE}\n\nSummarise the text above in four sentences. Keep to its words where you can.",
    "edit": f"{PASSAGE}\n\nRepeat the text above word for word, but write 'Oakbrook' in place of 'Alderbrook'.",
    "story": "Write a short story about a fox who learns to swim.",
}


def generate(model: Model, question: str, tokens: int, k: int) -> dict[str, Any]:
    """One greedy answer; k = 0 without drafts."""
    llm = LLM(model, num_blocks=128, prefix_caching=False, speculative=PromptLookup(k) if k else None, verbose=False)
    params = SamplingParams(max_tokens=tokens)
    began = time.perf_counter()
    (answer,) = llm.generate([[{"role": "user", "content": question}]], params)
    seconds = time.perf_counter() - began
    figures = {"tokens": len(answer.outputs[0].token_ids), "steps": llm.stats.steps, "seconds": round(seconds, 2)}
    if k:
        figures |= {
            "drafted": llm.stats.drafted_tokens,
            "accepted": llm.stats.accepted_tokens,
            "acceptance length": round(llm.stats.acceptance_length, 2),
        }
    return figures | {"token_ids": answer.outputs[0].token_ids, "text": answer.outputs[0].text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(TINY_MODEL), help="a folder, a .gguf file or a hub id")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    model = load_model(arguments.model, arguments.device, arguments.dtype, verbose=False)
    generate(model, "Hello.", 4, 0)  # the first forward pass of a process is slower
    results: dict[str, Any] = {}
    for name in arguments.prompts:
        plain = generate(model, PROMPTS[name], arguments.tokens, 0)
        ids, text = plain.pop("token_ids"), plain.pop("text")
        results[name] = {"text": text, "plain": plain, "lookup": {}}
        print(f"{name}: {plain['tokens']} tokens, plain {plain['steps']} steps in {plain['seconds']:.1f} s", flush=True)
        for k in arguments.k:
            row = generate(model, PROMPTS[name], arguments.tokens, k)
            row["same tokens"] = row.pop("token_ids") == ids
            del row["text"]
            assert row["same tokens"] or arguments.dtype != "float32"
            results[name]["lookup"][str(k)] = row
            said = f"{row['accepted']} of {row['drafted']} drafted accepted" + ("" if row["same tokens"] else ", parts")
            ratio = f"{plain['steps'] / row['steps']:.2f}x fewer, {plain['seconds'] / row['seconds']:.2f}x the speed"
            print(f"  k = {k}: {row['steps']} steps in {row['seconds']:.1f} s ({ratio}); {said}", flush=True)
    if arguments.json:
        about = "speculative decoding by prompt lookup; see benchmarks/speculative.py"
        record(
            arguments.json,
            about,
            model=f"{model.name}, {arguments.dtype} on {arguments.device}, greedy, block size 16",
            results=results,
        )


if __name__ == "__main__":
    main()
