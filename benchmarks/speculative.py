"""What prompt lookup saves in steps and seconds, on prompts whose answer copies and on one whose does not.

python benchmarks/speculative.py [--model FOLDER] [--tokens 64] [--users 1] [--json FILE]

Greedy, one prompt at a time, which --users users send at once, without a prefix cache. Each k has a
`pagedlab_fast.LLM` as a user would make it, so on a GPU all of them run as CUDA graphs, also the one without drafts.
Each answer is generated --repeat times, and the least of the seconds counts. The answers must be equal in float32; with
--dtype bfloat16 they may differ where two logits tie ("same tokens" in the result). Steps and acceptance depend on the
model and the prompt alone, seconds on the machine.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from common import Result, command_line, versions

from pagedlab import SamplingParams
from pagedlab.model import TINY_MODEL, load_model
from pagedlab.outputs import Output
from pagedlab.recipes.speculative import PromptLookup
from pagedlab_fast import LLM

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


def generate(llm: LLM, question: str, users: int, tokens: int, repeat: int) -> tuple[dict[str, Any], Output]:
    """The figures of greedy answers to all users, in the least of `repeat` times, and one of the answers."""
    chats = [[{"role": "user", "content": question}]] * users
    params = SamplingParams(max_tokens=tokens)
    if repeat > 1:  # graphs are captured when a step's shape occurs a second time
        for _ in range(2):
            llm.generate(chats, params)
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        answer, *_ = llm.generate(chats, params)
        seconds.append(time.perf_counter() - began)
    output, stats = answer.outputs[0], llm.stats
    figures = {
        "tokens": len(output.token_ids),
        "steps": stats.steps,
        "seconds": round(min(seconds), 4),
        "drafted": stats.drafted_tokens,
        "accepted": stats.accepted_tokens,
    }
    return figures, output


def main() -> None:
    parser = command_line(__doc__, model=str(TINY_MODEL), device="cpu", dtype="float32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--users", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    model = load_model(args.model, args.device, args.dtype, verbose=False)
    found: dict[str, Any] = {}
    result = Result(
        "speculative decoding by prompt lookup, see benchmarks/speculative.py",
        args.json,
        model=f"{model.name}, {args.dtype} on {args.device}, greedy, block size 16",
        **versions(),
        results=found,  # notebook 12 reads these
    )
    plain: dict[str, Output] = {}
    for k in (0, 1, 2, 4, 8):
        drafter = PromptLookup(k) if k else None
        llm = LLM(model, num_blocks=128 * args.users, prefix_caching=False, drafter=drafter, verbose=False)
        llm.generate("Hello.", SamplingParams(max_tokens=4))  # the first forward pass of a process is slower
        for prompt, text in PROMPTS.items():
            row, output = generate(llm, text, args.users, args.tokens, args.repeat)
            if k == 0:
                plain[prompt] = output
                found[prompt] = {"lookup": {}, "text": output.text, "plain": row}
            else:
                row["same tokens"] = output.token_ids == plain[prompt].token_ids
                assert row["same tokens"] or args.dtype != "float32", "drafts have changed a greedy answer"
                row["times as fast"] = round(found[prompt]["plain"]["seconds"] / row["seconds"], 2)
                found[prompt]["lookup"][str(k)] = row
            result.add(
                prompt, f"k = {k}" if k else "plain", row["tokens"] / row["seconds"], "tokens/s", steps=row["steps"]
            )


if __name__ == "__main__":
    main()
