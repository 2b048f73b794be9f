"""Log-probabilities of new tokens and of prompts are those of a plain forward pass, whatever became of the request.

The model runs in fp64: in fp32, logits around 20 are rounded to 2e-6, and sums over a hundred of those part by 2e-5.
"""

import random

import pytest
import torch

from pagedlab import LLM, SamplingParams
from pagedlab.speculative import DraftModel, PromptLookup
from support.engines import exactly, ids_of, plain_logits
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


def assert_right(model, done):
    """Every token of the prompt and of each text."""
    prompt = done.prompt_token_ids
    for output in done.outputs:
        rows = rows_of(model, prompt + output.token_ids)
        assert len(output.logprobs) == len(output.token_ids)
        for i, said in enumerate(output.logprobs):
            assert_said(said, output.token_ids[i], rows[len(prompt) - 1 + i])
        assert abs(sum(said.logprob for said in output.logprobs) - output.cumulative_logprob) < 1e-4
        first, *others = done.prompt_logprobs
        assert first is None
        assert len(others) == len(prompt) - 1
        for i, scored in enumerate(others):
            assert_said(scored, prompt[i + 1], rows[i])


def prompts(seed, count, longest=40):
    """Some of them begin alike, one has a single token."""
    rng = random.Random(seed)
    common = [rng.randrange(3, 500) for _ in range(longest // 2)]
    tails = [[rng.randrange(3, 500) for _ in range(rng.randint(1, longest // 2))] for _ in range(count - 1)]
    return [*(common + tail for tail in tails), common[:1]]


HOW = {
    "greedy": ({}, {}),
    "sampled": ({}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}),
    "chunked": ({"max_batch_tokens": 7}, {"temperature": 0.8, "n": 2}),
    "recompute": ({"num_blocks": 26}, {"temperature": 0.8, "n": 2}),
    "swap": ({"num_blocks": 26, "preemption": "swap"}, {"temperature": 0.8, "n": 2}),
    "chunked and recompute": ({"num_blocks": 18, "max_batch_tokens": 7}, {"temperature": 0.8, "n": 2}),
    "no cache": ({"prefix_caching": False}, {}),
    "prompt lookup": ({"speculative": PromptLookup(k=3)}, {}),
}


@pytest.mark.parametrize("how", HOW)
def test_logprobs_are_those_of_a_plain_forward_pass(exact, how, seed):
    options, params = HOW[how]
    llm = LLM(exact, verbose=False, **{"block_size": 4, "num_blocks": 256, **options})
    asked = exactly(16, logprobs=K, prompt_logprobs=K, seed=seed, **params)
    for _ in range(2):  # the second time the cache has all of it, which must not matter
        for completion in llm.generate(prompts(seed, 4, 20), asked):
            assert_right(exact, completion)
    assert not options.get("num_blocks") or llm.stats.preemptions > 0
    assert llm.pool.num_free == llm.pool.num_blocks


def test_in_fp32(tiny):
    """Within 1e-5 as well, but for logarithms far below zero."""
    (done,) = LLM(tiny, num_blocks=64, verbose=False).generate(
        "Once upon a time, there was a", SamplingParams(max_tokens=16, logprobs=K, prompt_logprobs=K)
    )
    assert_right(tiny, done)


def test_a_draft_models_tokens_have_the_targets_logprobs(exact, seed):
    llm = LLM(exact, num_blocks=128, verbose=False, speculative=DraftModel(exact, k=3))
    asked = exactly(12, logprobs=K, prompt_logprobs=K, temperature=0.9, seed=seed)
    for completion in llm.generate(prompts(seed, 4), asked):
        assert_right(exact, completion)
    assert llm.stats.accepted_tokens > 0


def test_giving_way_in_the_middle_of_a_prompt_scores_each_token_once(exact, seed):
    """By hand: the request gives way when a part of its prompt is scored, and when all of it is."""
    llm = LLM(exact, block_size=4, num_blocks=64, max_batch_tokens=8, verbose=False)
    (prompt,) = [p for p in prompts(seed, 2) if len(p) > 1]
    llm.generate(prompt, SamplingParams(max_tokens=2))  # so the cache knows it
    request_id = llm.add(prompt, exactly(4, logprobs=K, prompt_logprobs=K))
    done = []
    while not done:
        done = [c for c in llm.step() if c.finished and c.request_id == request_id]
        if llm.scheduler.running and llm.stats.steps in (2, len(prompt) // 8 + 2):
            llm.scheduler._preempt(llm.scheduler.running[0])
    assert llm.stats.prompt_tokens > len(prompt)
    assert_right(exact, done[0])


def test_only_what_is_asked_for_is_told_and_scored_prompts_are_bounded(exact, seed, monkeypatch):
    """Neighbours in a batch: one asks for nothing, one for its tokens, one for its prompt. Rows of logits are few."""
    monkeypatch.setattr("pagedlab.scheduler.MAX_SCORED", 9)
    llm, most = LLM(exact, num_blocks=128, verbose=False), 0
    plain, forward = [p for p in prompts(seed, 7) if len(p) > 1], llm.forward

    def counted(batch, *rest):
        nonlocal most
        most = max(most, len(batch.last_rows))
        return forward(batch, *rest)

    monkeypatch.setattr(llm, "forward", counted)
    ask = [{}, {"logprobs": 0}, {"prompt_logprobs": 0}, {"prompt_logprobs": 2}, {"prompt_logprobs": 10**6}, {}]
    done = llm.generate(plain, [SamplingParams(max_tokens=4, **a) for a in ask])
    assert most <= 9 + len(plain)
    expected = LLM(exact, num_blocks=128, verbose=False).generate(plain, SamplingParams(max_tokens=4))
    assert ids_of(done) == ids_of(expected)
    for completion, a in zip(done, ask, strict=True):
        assert (completion.outputs[0].logprobs is None) == ("logprobs" not in a)
        assert (completion.prompt_logprobs is None) == ("prompt_logprobs" not in a)
        rows = rows_of(exact, completion.prompt_token_ids)
        for i, said in enumerate((completion.prompt_logprobs or [])[1:]):
            assert_said(said, completion.prompt_token_ids[i + 1], rows[i], min(a["prompt_logprobs"], exact.vocab_size))


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_what_cannot_be_told(name):
    for bad in (-1, 1.5, True, "3"):
        with refused(name):
            SamplingParams(**{name: bad})
