"""Windows of decode steps as CUDA graphs: the texts of eager steps, in fp32, at and beside every bucket's edge.

python -m pytest tests/accelerate/test_run_ahead_gpu.py
"""

import random

import pytest

pytest.importorskip("triton")

import pagedlab_fast
from pagedlab import SamplingParams
from pagedlab.recipes.penalties import Penalties
from pagedlab_fast.shapes import TOKENS
from support.drafters import Recalls
from support.engines import breaking_at, broken_by, exactly, ids_of, texts_of
from support.engines import engine as poisoned

pytestmark = pytest.mark.gpu
MAX_TEXTS = 260
PROMPTS = [[(37 * i + j) % 4000 + 5 for j in range(i % 50 + 1)] for i in range(MAX_TEXTS)]
PARAMS = [SamplingParams(max_tokens=3 + i % 19, ignore_eos=i % 2 == 0) for i in range(MAX_TEXTS)]


@pytest.fixture(scope="module")
def model():
    from pagedlab.model import TINY_MODEL, load_model

    return load_model(TINY_MODEL, "cuda", "float32", verbose=False)


def engine(model, num_blocks=2048, **options):
    return poisoned(model, num_blocks, kind=pagedlab_fast.LLM, verbose=False, **{"max_sequences": MAX_TEXTS, **options})


def eager_engine(model, **options):
    return engine(model, cuda_graphs=False, fused=False, attention_backend="torch", **options)


def texts(llm, n):
    outputs = [c.outputs[0] for c in llm.generate(PROMPTS[:n], PARAMS[:n])]
    assert llm.pool.num_used == 0
    return [(o.token_ids, o.finish_reason) for o in outputs]


def test_graphs_and_fused_layers_at_every_bucket_edge(model):
    eager = eager_engine(model)
    expected = texts(eager, MAX_TEXTS)
    graphs, both = engine(model, cuda_graphs=True, fused=False), engine(model)
    assert both.forward != both.model.forward
    both.warm_up()
    edges = sorted(
        {n for bucket in both.runner.decoder.shapes.decode_rows for n in (bucket - 1, bucket, bucket + 1)} - {0}
    )
    for n in edges:
        if n <= MAX_TEXTS:
            for llm in (graphs, both):
                assert texts(llm, n) == expected[:n], (n, llm is both)


PENALISED = [{"adjust": Penalties(1.3)}, {"adjust": Penalties(presence=0.9, frequency=0.3)}, {}]


@pytest.mark.parametrize(("num_blocks", "asked"), [(2048, PENALISED), (14, [{}])], ids=["penalties", "few blocks"])
def test_texts_are_those_of_eager_steps(model, num_blocks, asked):
    """In the second round the steps are graphs."""
    params = [exactly(3 + 7 * i % 60, **asked[i % len(asked)]) for i in range(64)]
    expected = ids_of(eager_engine(model).generate(PROMPTS[:64], params))
    llm = engine(model, num_blocks)
    for _ in range(2):
        assert ids_of(llm.generate(PROMPTS[:64], params)) == expected
        assert (llm.stats.preemptions > 0) == (num_blocks == 14)
    assert any(shape.is_penalised for shape in llm.runner.decoder.runner.graphs) == (asked == PENALISED)


@pytest.mark.parametrize("asked", [{}, {"adjust": Penalties(1 + 1e-6)}, {"logprobs": 0}, {"min_p": 0.5}], ids=str)
def test_texts_whose_logits_are_not_finite_end_alone(model, asked):
    """In graphs, in the second round, and where the host samples."""
    params = exactly(40, **asked)
    answers = ids_of(engine(model).generate(PROMPTS[:45], params))
    token = answers[7][5]
    pairs = zip(PROMPTS, answers, strict=False)
    expected = [[([], "error") if token in prompt else broken_by(token, answer)] for prompt, answer in pairs]
    llm = engine(breaking_at(model, token))
    for _ in range(2):
        assert texts_of(llm.generate(PROMPTS[:45], params)) == expected
    assert {reason for [(_, reason)] in expected} == {"length", "error"}


def test_prompts_in_graphs_at_every_bucket_edge(model):
    """Prompts beside two texts that decode, so many tokens together; the texts are those of eager steps."""
    eager = eager_engine(model)
    fast = engine(model, max_prompt_tokens=4096)
    fast.warm_up()
    decoder = fast.runner.decoder
    captured = {shape.tokens for shape in decoder.runner.graphs if shape.is_sampled}
    assert captured == {None, *decoder.shapes.tokens}
    params = exactly(6, temperature=0.8, seed=1)
    for edge in decoder.shapes.tokens:
        for tokens in (edge - 1, edge, edge + 1):
            for llm in (eager, fast):
                llm.prefix_cache.clear()
            lengths = [*[400] * ((tokens - 3) // 400), (tokens - 3) % 400 + 1]  # and the two
            assert sum(lengths) + 2 == tokens
            prompts = [[(17 * i + j * j + tokens) % 4000 for j in range(n)] for i, n in enumerate(lengths)]
            got = []
            for llm in (eager, fast):
                first = [llm.add([5, 6, 7 + i], exactly(30)) for i in range(2)]
                done = {c.request_id: c for _ in range(2) for c in llm.step()}
                ids = first + [llm.add(prompt, params) for prompt in prompts]
                while llm.num_unfinished:
                    done |= {c.request_id: c for c in llm.step()}
                got.append([done[i].outputs[0].token_ids for i in ids])
                assert llm.pool.num_used == 0
            assert got[0] == got[1], tokens


@pytest.mark.parametrize("texts", [1, 9])
def test_drafts_in_graphs_at_every_bucket_edge(model, texts):
    """Some drafted tokens are wrong; the texts are those of eager steps without drafts."""
    new, prompts = 40, PROMPTS[10 : 10 + texts]
    eager = eager_engine(model)
    params = exactly(new)
    expected = ids_of(eager.generate(prompts, params))
    known = {tuple(p): ids for p, ids in zip(prompts, expected, strict=True)}
    for edge in TOKENS[:3]:
        for tokens in (edge - 1, edge, edge + 1):
            drafter = Recalls(-(-tokens // texts) - 1, known, 0.1, random.Random(tokens))
            if not 0 < drafter.k < new - 1:
                continue
            llm = engine(model, 256, max_sequences=texts, drafter=drafter)
            for _ in range(3):  # eager, captured, replayed
                assert ids_of(llm.generate(prompts, params)) == expected, tokens
            assert any(not shape.is_sampled for shape in llm.runner.decoder.runner.graphs)
            assert llm.stats.accepted_tokens > 0


def test_who_wants_the_host_in_graphs_at_every_bucket_edge(model):
    params = [SamplingParams(max_tokens=3 + i % 5, min_p=0.1, temperature=0.5, seed=i) for i in range(MAX_TEXTS)]
    eager, graphs = eager_engine(model), engine(model)
    expected = ids_of(eager.generate(PROMPTS, params))
    edges = {n for bucket in (1, 4, 16, 64, 256) for n in (bucket - 1, bucket, bucket + 1)}
    for n in sorted(edges - {0}):
        for _ in range(3):
            assert ids_of(graphs.generate(PROMPTS[:n], params[:n])) == expected[:n], n
    assert not any(shape.is_sampled for shape in graphs.runner.decoder.runner.graphs)
