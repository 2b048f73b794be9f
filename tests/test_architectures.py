"""Every `model_type` of `MODEL_TYPES` writes transformers' own tokens; every other one is refused in one line.

Each type gets a tiny config and random weights, saved and loaded as a reader's would be.
"""

import json

import pytest
import torch
from transformers import CONFIG_MAPPING

from pagedlab import LLM
from pagedlab.loading import MODEL_TYPES
from pagedlab.model import load_model
from pagedlab.recipes.logprobs import score
from support.checkpoints import random_checkpoint, small_config
from support.engines import exactly, ids_of, poison
from support.refused import refused

SCALED = {"factor": 2.0, "original_max_position_embeddings": 64}
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": SCALED,
    "llama3": SCALED | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": SCALED | {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
}


def rope(kind):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}}


EQUAL = [(kind, {}) for kind in sorted(MODEL_TYPES)]
EQUAL += [(kind, rope(name)) for kind in ("llama", "qwen2") for name in ROPES if name != "longrope"]
EQUAL += [("gemma3_text", {"final_logit_softcapping": 5.0})]
WINDOWS = {"layer_types": ["full_attention", "sliding_attention"]}
LOADING = [  # what is refused before weights are read
    ("mistral", {"sliding_window": 8}, "has layers with .*sliding_attention; pagedlab runs models with full attention"),
    ("qwen2", WINDOWS | {"sliding_window": 8, "use_sliding_window": True}, "has layers with .*sliding_attention"),
    ("gemma3_text", WINDOWS, "has layers with .*sliding_attention"),
    *((kind, rope("longrope"), "has layers with .*longrope") for kind in ("llama", "qwen2", "phi3")),
]
PROMPTS = [[5, 9, 11, 13, 17, 19, 23, 29, 31, 37, 41], [7, 8, 3], [50, 40, 30, 20, 10]]
PARAMS = exactly(6)


def load(folder):
    return load_model(folder, device="cpu", dtype="float32", verbose=False)


def named(rows):
    return [f"{kind}, {more}"[:60] for kind, more, *_ in rows]


@pytest.mark.parametrize(("kind", "more"), EQUAL, ids=named(EQUAL))
def test_it_writes_transformers_tokens(kind, more, tmp_path):
    if kind not in CONFIG_MAPPING:
        pytest.skip("this version of transformers has no such type")
    module = random_checkpoint(tmp_path, kind, **more)
    llm = LLM(load(tmp_path), num_blocks=40, block_size=4, verbose=False)
    poison(llm.cache)
    for prompt, new in zip(PROMPTS, ids_of(llm.generate(PROMPTS, PARAMS)), strict=True):
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([prompt + new]), use_cache=False).logits[0].float()
        assert new == logits.argmax(dim=1)[len(prompt) - 1 : -1].tolist(), "other tokens than transformers"
        logprobs = torch.log_softmax(logits, dim=1)
        expected = [float(logprobs[i, token]) for i, token in enumerate(prompt[1:])]
        assert [one.logprob for one in score(llm, prompt)[1:]] == pytest.approx(expected, abs=2e-3)


@pytest.fixture
def without_weights(tmp_path):
    """A folder whose tokenizer and weights are empty files."""
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    return tmp_path


def test_other_types_are_refused(without_weights, rng):
    for kind in [*rng.sample(sorted({*CONFIG_MAPPING} - MODEL_TYPES), 40), "frobnicator"]:
        (without_weights / "config.json").write_text(json.dumps({"model_type": kind}))
        with refused(f" is a {kind} model; pagedlab runs llama, |^cannot load the config of "):
            load(without_weights)


@pytest.mark.parametrize(("kind", "more", "said"), LOADING, ids=named(LOADING))
def test_a_config_that_asks_for_more_is_refused(kind, more, said, without_weights):
    small_config(kind, **more).save_pretrained(without_weights)
    with refused(said):
        load(without_weights)


def test_the_hook_refuses_attention_that_is_not_causal(tmp_path):
    """The first step says so."""
    random_checkpoint(tmp_path, "gemma3_text", use_bidirectional_attention=True)
    llm = LLM(load(tmp_path), num_blocks=40, block_size=4, verbose=False)
    with refused("this model's attention is not causal, and paged attention is"):
        llm.generate(PROMPTS, PARAMS)
