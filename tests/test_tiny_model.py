"""The checkpoint in data/tiny-qwen2: it loads offline, answers in English, and needs its attention."""

import torch

from pagedlab import LLM, SamplingParams
from support.engines import plain_logits
from support.paths import ROOT

FOLDER = ROOT / "data" / "tiny-qwen2"
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


def test_attention_matters(tiny):
    """Held-out text: how many next tokens are right, with all tokens before them and with the last four only."""
    ids = tiny.encode((FOLDER / "heldout.txt").read_text(encoding="utf-8"))[:200]
    likeliest = plain_logits(tiny, ids)[3:-1].argmax(1)
    with tiny.stock_attention() as module, torch.inference_mode():
        near = module(input_ids=torch.tensor(ids[:-1]).unfold(0, 4, 1)).logits[:, -1].argmax(1)
    full, near = ((found == torch.tensor(ids[4:])).float().mean() for found in (likeliest, near))
    print(f"right with all tokens {full:.2f}, with the last four {near:.2f}")
    assert full > 0.8
    assert near < full - 0.3
