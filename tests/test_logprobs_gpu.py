"""On a GPU: requests that tell or change something leave the windows and keep their neighbours' texts."""

import pytest

from pagedlab.model import TINY_MODEL, load_model
from pagedlab.recipes.logprobs import score
from pagedlab.recipes.penalties import Penalties
from pagedlab_fast import LLM
from support.engines import all_ids_of, exactly

pytestmark = pytest.mark.gpu
ASKED = [
    {},
    {"logprobs": 3},
    {"temperature": 0.8, "n": 2, "logprobs": 2},
    {"adjust": Penalties(1.3, presence=0.5, bias={13: -100})},
    {"temperature": 1.2, "min_p": 0.2, "logprobs": 0},
    {"temperature": 0.8},
]


@pytest.fixture(scope="module")
def model():
    return load_model(TINY_MODEL, device="cuda", dtype="float32", verbose=False)


def test_logprobs_and_penalties_beside_windows(model, seed, monkeypatch):
    prompt = model.encode("Once upon a time, there was a")
    params = [exactly(24, seed=seed + 100 * i, **a) for i, a in enumerate(ASKED)]
    fast = LLM(model, num_blocks=512, verbose=False)
    plain = LLM(model, num_blocks=512, cuda_graphs=False, fused=False, verbose=False)
    graphs_kept, compute = [], fast.runner.decoder.compute

    def seen(*given):
        logits = compute(*given)
        graphs_kept.append(logits.requires_grad)
        return logits

    monkeypatch.setattr(fast.runner.decoder, "compute", seen)
    done = fast.generate([prompt] * len(params), params)
    for completion, p in zip(done, params, strict=True):
        (alone,) = plain.generate([prompt], p)
        assert all_ids_of([completion]) == all_ids_of([alone])
        for output in completion.outputs:
            assert (output.logprobs is None) == (p.logprobs is None)
            scores = [one.logprob for one in score(plain, prompt + output.token_ids)[len(prompt) :]]
            if output.logprobs is not None:
                assert [one.logprob for one in output.logprobs] == pytest.approx(scores, abs=2e-3, rel=1e-3)
    assert fast.pool.num_free == fast.pool.num_blocks
    assert graphs_kept
    assert not any(graphs_kept)  # what a gradient would need is as large as all activations
