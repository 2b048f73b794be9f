"""The checkpoint in data/tiny-qwen2: it loads offline, answers in English, and needs its attention.

The figures that the bounds come from are in data/tiny-qwen2/README.md.
"""

import torch

from pagedlab import LLM, SamplingParams
from support.paths import ROOT

FOLDER = ROOT / "data" / "tiny-qwen2"
END = "<|endoftext|>"
QUESTIONS = {  # and a word of each answer
    "Why is the sky blue?": "blue",
    "What is a block table?": "block",
    "Tell me a story about a cat and a library.": "library",
    "How does memory work in a computer?": "memory",
}


def test_answers_end_and_are_on_the_subject(tiny):
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    done = LLM(tiny, num_blocks=64, verbose=False).generate(chats, SamplingParams(max_tokens=100))
    outputs = [completion.outputs[0] for completion in done]
    for output, word in zip(outputs, QUESTIONS.values(), strict=True):
        assert word in output.text
    assert [output.finish_reason for output in outputs].count("stop") >= 3


def loss(model, ids, window):
    """Nats a token over rows of ids [B, T], where each token sees itself and the `window` - 1 tokens before it."""
    back = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    seen = (back >= 0) & (back < window)
    mask = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with model.stock_attention() as module, torch.no_grad():
        logits = module(ids, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


def test_attention_matters(tiny):
    held_out = (FOLDER / "heldout.txt").read_text(encoding="utf-8").replace(END + "\n", END)
    rows = torch.tensor(tiny.encode(held_out)[: 8 * 512]).view(-1, 512)
    full, near = loss(tiny, rows, 512), loss(tiny, rows, 4)
    print(f"held-out loss {full:.3f}, with the last 4 tokens only {near:.3f}")
    assert full < 1.0
    assert near > full + 1.0
