"""Log-probabilities of new tokens and of texts are those of a plain forward pass, whatever became of the request.

The model runs in fp64: in fp32, logits around 20 are rounded to 2e-6, and sums over a hundred of those part by 2e-5.
"""

import random

import pytest
import torch

from pagedlab import LLM
from pagedlab.blocks import OutOfBlocks
from pagedlab.recipes.logprobs import score
from pagedlab.recipes.penalties import Penalties
from pagedlab.recipes.speculative import DraftModel, PromptLookup, SpeculativeLLM
from pagedlab.recipes.swap import SwappingScheduler
from support.engines import assert_idle, drain, engine, exactly, finished, ids_of, plain_logits
from support.refused import refused

K = 5


def rows_of(model, token_ids):
    """log_softmax of transformers' own forward pass, [T, V]."""
    return torch.log_softmax(plain_logits(model, token_ids), dim=1)


def assert_said(said, token, row, k=K):
    assert said.token_id == token
    ids, logprobs = [i for i, _ in said.top], torch.tensor([p for _, p in said.top], dtype=row.dtype)
    bound = {"atol": 1e-5, "rtol": 0.0 if row.dtype == torch.float64 else 3e-6}
    assert len(set(ids)) == k
    torch.testing.assert_close(torch.tensor(said.logprob, dtype=row.dtype), row[token], **bound)
    torch.testing.assert_close(logprobs, row[ids], **bound)
    torch.testing.assert_close(logprobs, row.topk(k).values, **bound)  # of near equals either may come first
    if token in ids:
        assert said.logprob == dict(said.top)[token]  # to the last bit: clients ask whether the likeliest was taken


def assert_right(model, done, k=K):
    """Every token of each text."""
    prompt = done.prompt_token_ids
    for output in done.outputs:
        rows = rows_of(model, prompt + output.token_ids)[len(prompt) - 1 :]
        assert len(output.logprobs) == len(output.token_ids)
        for said, token, row in zip(output.logprobs, output.token_ids, rows, strict=False):
            assert_said(said, token, row, k)


def prompts(seed, count, longest=40):
    """Some of them begin alike, one has a single token."""
    rng = random.Random(seed)
    common = [5, 0, *(rng.randrange(3, 500) for _ in range(longest // 2))]
    tails = [[rng.randrange(3, 500) for _ in range(rng.randint(1, longest // 2))] for _ in range(count - 1)]
    return [*(common + tail for tail in tails), common[:1]]


HOW = {
    "greedy": ({}, {}),
    "sampled": ({}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}),
    "adjusted": ({}, {"temperature": 0.9, "n": 2, "adjust": Penalties(1.2, presence=0.5, bias={13: -100})}),
    "swap": ({"num_blocks": 26, "scheduler": SwappingScheduler}, {"temperature": 0.8, "n": 2}),
    "chunked and recompute": ({"num_blocks": 18, "max_batch_tokens": 7}, {"temperature": 0.8, "n": 2}),
    "prompt lookup": ({"kind": SpeculativeLLM, "drafter": PromptLookup(k=3)}, {}),
    "draft model": ({"kind": SpeculativeLLM}, {"temperature": 0.9}),
}


@pytest.mark.parametrize("how", HOW)
def test_logprobs_are_those_of_a_plain_forward_pass(exact, how, seed):
    options, params = HOW[how]
    if how == "draft model":
        options = options | {"drafter": DraftModel(exact, k=3)}
    llm = engine(exact, **{"block_size": 4, **options})
    asked = exactly(10, logprobs=K, seed=seed, **params)
    for _ in range(2):  # the second time the cache has all of it, which must not matter
        for completion in llm.generate(prompts(seed, 4, 20), asked):
            assert_right(exact, completion)
    assert not options.get("num_blocks") or llm.stats.preemptions > 0
    assert_idle(llm)


@pytest.mark.parametrize("asked", [None, 0, 10**6])
def test_only_what_is_asked_for_is_told(exact, asked, seed):
    """Beside a neighbour that asks for something else."""
    llm = LLM(exact, num_blocks=128, verbose=False)
    prompt, *others = prompts(seed, 3)
    done, _ = llm.generate([prompt, others[0]], [exactly(4, logprobs=asked), exactly(4, logprobs=2)])
    assert ids_of([done]) == ids_of(llm.generate([prompt], exactly(4)))
    if asked is None:
        assert done.outputs[0].logprobs is None
    else:
        assert_right(exact, done, min(asked, exact.vocab_size))


# Texts that are scored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "caching"), [(9, True), (1024, False)])
def test_a_text_is_scored_beside_others(exact, seed, rows, caching, monkeypatch):
    """In parts or at once, in the middle of others' answers, which get the same tokens."""
    monkeypatch.setattr("pagedlab.recipes.logprobs.ROWS", rows)
    texts = prompts(seed, 4)
    alone = ids_of(engine(exact, 64).generate(texts, exactly(4)))
    llm = engine(exact, 64, 4, prefix_caching=caching)
    ids = [llm.add(text, exactly(4)) for text in texts]
    done = {}
    while llm.num_unfinished:
        done |= finished(llm.step())
        for text in texts:
            first, *scores = score(llm, text, K)
            assert first is None
            for said, token, row in zip(scores, text[1:], rows_of(exact, text)[:-1], strict=True):
                assert_said(said, token, row)
    assert ids_of([done[i] for i in ids]) == alone
    assert_idle(llm)


def test_a_text_that_does_not_fit(exact):
    llm = engine(exact, 8, 4)
    with refused("needs 9 blocks of 4 tokens .* and the pool has 8"):
        score(llm, [5] * 33)
    with refused("top"):
        score(llm, [5], top=-1)
    llm.add([5] * 20, exactly(3))
    llm.step()
    with pytest.raises(OutOfBlocks, match="needs 8 blocks and 3 are free"):
        score(llm, [5] * 32)
    drain(llm)
    assert len(score(llm, [5] * 32)) == 32
    assert_idle(llm)
