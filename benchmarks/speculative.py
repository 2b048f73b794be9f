"""What prompt lookup saves in steps and seconds, on prompts whose answer copies and on one whose does not.

python benchmarks/speculative.py [--model FOLDER] [--tokens 64] [--k 1 2 4 8] [--json data/results/speculative.json]

Greedy, one text at a time, the prefix cache off; an engine for each k, as a user would make it, so that on a GPU all
run as CUDA graphs, those without drafts too. Each answer is written --repeat times, if that is more than one once
kernels and graphs are there; the prompt is computed each time, and the least of the seconds counts. The texts are
asserted to be equal (in float32; with --dtype bfloat16 they may part where two logits tie, and the line says so). Steps
and acceptance depend on the model and the prompt alone, seconds on the machine.
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
from pagedlab.model import TINY_MODEL, load_model
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


def generate(llm: LLM, question: str, tokens: int, repeat: int) -> dict[str, Any]:
    """One greedy answer, in the least of `repeat` times."""
    chat, params = [[{"role": "user", "content": question}]], SamplingParams(max_tokens=tokens)
    if repeat > 1:  # graphs are made when a step's shape comes a second time
        llm.generate(chat, params), llm.generate(chat, params)
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        (answer,) = llm.generate(chat, params)
        seconds.append(time.perf_counter() - began)
    figures = {"tokens": len(answer.outputs[0].token_ids), "steps": llm.stats.steps, "seconds": round(min(seconds), 4)}
    if llm.stats.drafts:
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
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    model = load_model(arguments.model, arguments.device, arguments.dtype, verbose=False)
    results: dict[str, Any] = {name: {"lookup": {}} for name in arguments.prompts}
    for k in (0, *arguments.k):
        drafter = PromptLookup(k) if k else None
        llm = LLM(model, num_blocks=128, prefix_caching=False, speculative=drafter, verbose=False)
        llm.generate("Hello.", SamplingParams(max_tokens=4))  # the first forward pass of a process is slower
        for name in arguments.prompts:
            row = generate(llm, PROMPTS[name], arguments.tokens, arguments.repeat)
            ids, text = row.pop("token_ids"), row.pop("text")
            if not k:
                results[name] |= {"text": text, "ids": ids, "plain": row}
                said = f"{row['tokens']} tokens, plain {row['steps']} steps in {row['seconds']:.4g} s"
            else:
                plain, row["same tokens"] = results[name]["plain"], ids == results[name]["ids"]
                assert row["same tokens"] or arguments.dtype != "float32"
                row["times as fast"] = round(plain["seconds"] / row["seconds"], 2)
                results[name]["lookup"][str(k)] = row
                said = f"k = {k}: {row['steps']} steps in {row['seconds']:.4g} s ({plain['steps'] / row['steps']:.2f}x "
                said += f"fewer, {row['times as fast']:.2f}x the speed); {row.get('accepted', 0)} of "
                said += f"{row.get('drafted', 0)} drafted accepted" + ("" if row["same tokens"] else ", parts")
            print(f"{name:8} {said}", flush=True)
    for name in arguments.prompts:
        del results[name]["ids"]
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
