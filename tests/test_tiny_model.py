"""The checkpoint in data/tiny-qwen2: it loads offline, writes English, and needs its attention.

The figures that the bounds come from are in data/tiny-qwen2/README.md.
"""

import json
import re
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.paths import ROOT

FOLDER = ROOT / "data" / "tiny-qwen2"
END, STOP = "<|endoftext|>", "<|im_end|>"
PLAIN = ("Once upon a time", "In the morning,", "A library is", "The memory of a computer")
QUESTIONS = (
    "Why is the sky blue?",
    "What is a block table?",
    "Tell me a story about a cat and a library.",
    "How does memory work in a computer?",
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def model():
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, local_files_only=True).eval()
    with torch.no_grad():
        yield model


@pytest.fixture(scope="module")
def held_out():
    return [text for text in (FOLDER / "heldout.txt").read_text(encoding="utf-8").split(END + "\n") if text]


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def render(tokenizer, question):
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def greedy(model, tokenizer, prompts):
    """Up to 100 ids after each prompt, the first end token included."""
    ids = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    rows = model.generate(**ids, max_new_tokens=100)[:, ids["input_ids"].shape[1] :].tolist()
    ends = model.generation_config.eos_token_id
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in rows]


def test_files_are_small_and_described():
    assert (FOLDER / "model.safetensors").stat().st_size < 7_200_000
    assert (FOLDER / "heldout.txt").stat().st_size <= 60_000
    about = json.loads((FOLDER / "loss.json").read_text(encoding="utf-8"))
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{about['parameters']:,}" in readme
    assert f"{about['curve'][-1]['heldout_loss']:.3f}" in readme


def test_greedy_text_is_english(model, tokenizer, held_out):
    known = set(words(" ".join(held_out)))
    prompts = [*PLAIN, *(render(tokenizer, question) for question in QUESTIONS)]
    for prompt, ids in zip(prompts, greedy(model, tokenizer, prompts), strict=True):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        said = words(text)
        assert len(said) >= 15, (prompt, text)
        assert sum(word in known for word in said) >= 0.85 * len(said), (prompt, text)
        grams = Counter(zip(said, said[1:], said[2:], said[3:], strict=False))
        assert max(grams.values()) <= 2, (prompt, text)


def test_answers_end_and_are_on_the_subject(model, tokenizer):
    answers = greedy(model, tokenizer, [render(tokenizer, question) for question in QUESTIONS])
    for ids, key in zip(answers, ("blue", "block", "library", "memory"), strict=True):
        assert key in tokenizer.decode(ids)
    assert [ids[-1] in tokenizer.convert_tokens_to_ids([STOP, END]) for ids in answers].count(True) >= 3


def loss(model, ids, window):
    """Nats a token over rows of ids [B, T], where each token sees itself and the `window` - 1 tokens before it."""
    back = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    seen = (back >= 0) & (back < window)
    mask = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    logits = model(ids, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_attention_matters(model, tokenizer, held_out):
    ids = tokenizer(END.join(held_out) + END, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    rows = ids[: 8 * 512].view(-1, 512)
    full, near = loss(model, rows, 512).item(), loss(model, rows, 4).item()
    print(f"held-out loss {full:.3f}, with the last 4 tokens only {near:.3f}")
    assert full < 1.0
    assert near > full + 1.0
