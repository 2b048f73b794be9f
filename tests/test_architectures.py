"""Every decoder that transformers has: with pagedlab it writes transformers' own tokens, or it is refused at load.

Each architecture gets a tiny config and random weights, saved and loaded as a reader's would be. There is no third
outcome: other tokens, or an error after the model is loaded.
"""

import copy
import shutil
import warnings

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pagedlab import LLM
from pagedlab.model import TINY_MODEL, load_model
from pagedlab.recipes.logprobs import score
from support.engines import exactly, poison

LAYERS = 2
WIDTH = 32
SIZES = [
    (4096, "vocab_size"),
    (WIDTH, "hidden_size n_embd d_model embedding_size"),
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers"),
    (LAYERS, "decoder_layers encoder_layers"),
    (4, "num_attention_heads n_head n_heads num_heads"),
    (4, "decoder_attention_heads encoder_attention_heads"),
    (2, "num_key_value_heads"),
    (8, "head_dim v_head_dim"),
    (48, "intermediate_size ffn_dim n_inner ffn_hidden_size"),
    (48, "decoder_ffn_dim encoder_ffn_dim"),
    (128, "max_position_embeddings n_positions"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_experts_per_tok moe_topk moe_k"),
    (16, "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size"),
    (1, "n_group topk_group first_k_dense_replace"),
    (16, "q_lora_rank kv_lora_rank"),
    (4, "qk_rope_head_dim qk_nope_head_dim"),
    (0.3, "initializer_range init_std"),  # so that attention is far from uniform
    (0, "pad_token_id"),
    (1, "bos_token_id"),
    (2, "eos_token_id"),
    (64, "vocab_size_per_layer_input"),
    (8, "hidden_size_per_layer_input"),
    (8, "attention_window"),
]
SMALL = {name: size for size, names in SIZES for name in names.split()}
MOST_WEIGHTS = 3_000_000
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "factor": 2.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    },
}
ROWS = {kind: (kind, {}) for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
ROWS |= {
    f"{kind}, {rope}": (kind, {"rope_parameters": {"rope_type": rope, "rope_theta": 1e4, **more}})
    for kind in ("llama", "qwen2", "phi3")
    for rope, more in ROPES.items()
    if kind != "phi3" or rope in ("default", "longrope")  # phi3 knows no other
}
ROWS |= {
    "gemma2 without softcapping": ("gemma2", {"attn_logit_softcapping": None}),
    "gemma2 with softcapping of its output": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": 5.0},
    ),
    "gemma3_text, bidirectional": ("gemma3_text", {"use_bidirectional_attention": True}),
    "llama4_text without tuning": ("llama4_text", {"attn_temperature_tuning": False, "no_rope_layers": [1] * LAYERS}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "mixtral without a window": ("mixtral", {"sliding_window": None}),
    "starcoder2 without a window": ("starcoder2", {"sliding_window": None}),
    "phi3 without a window": ("phi3", {"sliding_window": None}),
}
EQUAL = [  # what must run; others may
    *("llama", "llama, linear", "llama, dynamic", "llama, yarn", "llama, llama3", "qwen2", "qwen2, yarn"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "mistral without a window", "mixtral without a window"),
    *("gemma", "gemma2 without softcapping", "gemma3_text", "glm", "glm4", "olmo", "olmo2", "olmoe"),
    *("granite", "granitemoe", "cohere", "phi", "phi3 without a window", "starcoder2 without a window"),
    *("smollm3", "nanochat", "arcee"),
]
REFUSED = {  # what must be refused, and what the line says
    "gemma2": "takes softcap",
    "vaultgemma": "takes softcap",
    "gpt_oss": "takes s_aux",
    "doge": "has its own mask",
    "diffllama": "a diffllama model: its logits on pages are off by",
    "gemma3_text, bidirectional": "attention is not causal",
    "llama4_text": "scales attention by the position in the row",
    "llama, longrope": "longrope",
    "qwen2, longrope": "longrope",
    "phi3, longrope": "longrope",
    "deepseek_v3": "multi-head latent attention",
    "stablelm": "does not pass arguments on",
    "mamba": "layers of the kind linear_attention",
    "falcon": "is a falcon model; pagedlab runs models built like",
    "gptj": "is a gptj model; pagedlab runs models built like",
    "gpt2": "is a gpt2 model; pagedlab runs models built like",
}
NOT_BUILDABLE_OF = "5.23.0"
NOT_BUILDABLE = {  # by AutoModelForCausalLM from a small config of the generic kind
    "cohere_compass_text",
    "dbrx",
    "dots1",
    "gemma4_assistant",
    "lfm2_moe",
    "phi4_multimodal",
}
PROMPTS = [[5, 9, 11, 13, 17, 19, 23, 29, 31, 37, 41], [7, 8, 3], [50, 40, 30, 20, 10]]
PARAMS = exactly(6)


class NotBuildableError(Exception):
    """transformers makes no tiny model of this kind from a config like these."""


def small_config(kind, more):
    """A tiny config: fields that this kind has are set, but for those that it refuses."""
    config_class = CONFIG_MAPPING[kind]
    try:
        default = config_class()
    except Exception as error:
        raise NotBuildableError(repr(error)) from error
    known = {*vars(default), *getattr(default, "attribute_map", {})}
    wanted = {name: value for name, value in SMALL.items() if name in known}
    if getattr(default, "layer_types", None):
        wanted["layer_types"] = ["full_attention"] * LAYERS
    wanted |= more
    for _ in range(len(wanted)):
        try:
            return config_class(**wanted)
        except Exception as error:
            refused = [name for name in wanted if name in str(error) and name not in more]
            if not refused:
                raise NotBuildableError(str(error)) from error
            for name in refused:
                del wanted[name]
    raise NotBuildableError("it refuses every field")


def random_model(config):
    """The transformers module with random weights and its own attention."""

    def build():
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager")

    try:
        with torch.device("meta"):
            num_weights = sum(weight.numel() for weight in build().parameters())
        if num_weights > MOST_WEIGHTS:
            raise NotBuildableError(f"{num_weights:,} weights")
        torch.manual_seed(0)
        return build().eval()
    except NotBuildableError:
        raise
    except Exception as error:
        raise NotBuildableError(repr(error)) from error


def checkpoint(folder, kind, more):
    """Save a tiny model with the tiny model's tokenizer; None in place of a module that cannot be built."""
    for path in TINY_MODEL.glob("tokenizer*"):
        shutil.copy(path, folder)
    module = None
    try:
        config = small_config(kind, more)
        module = random_model(config)
        module.save_pretrained(folder)
    except NotBuildableError:
        try:
            CONFIG_MAPPING[kind]().save_pretrained(folder)  # its config alone may be enough to refuse it
        except Exception as error:
            raise NotBuildableError(repr(error)) from error
        (folder / "model.safetensors").touch()
    return module


def outcome(folder, kind, more):
    """ "equal", or the line with which the model is refused. Anything else is an error."""
    module = checkpoint(folder, kind, more)
    try:
        model = load_model(folder, device="cpu", dtype="float32", verbose=False)
    except ValueError as refusal:
        line = str(refusal)
        if module is None and "cannot load the model" in line:
            raise NotBuildableError(line) from refusal
        return line
    llm = LLM(model, num_blocks=40, block_size=4, verbose=False)
    poison(llm.cache)
    for prompt, completion in zip(PROMPTS, llm.generate(PROMPTS, PARAMS), strict=True):
        new = completion.outputs[0].token_ids
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([prompt + new]), use_cache=False).logits[0].float()
        own = logits.argmax(dim=1)[len(prompt) - 1 : -1].tolist()
        assert new == own, "other tokens than transformers"
        reported = [one.logprob for one in score(llm, prompt)[1:]]
        logprobs = torch.log_softmax(logits, dim=1)
        expected = [float(logprobs[i, token]) for i, token in enumerate(prompt[1:])]
        assert reported == pytest.approx(expected, abs=2e-3), "other log-probabilities than transformers"
    return "equal"


@pytest.mark.parametrize("row", ROWS)
def test_it_writes_transformers_tokens_or_is_refused(row, tmp_path):
    kind, more = ROWS[row]
    if kind not in CONFIG_MAPPING:
        pytest.skip("this version of transformers has no such config")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = outcome(tmp_path, kind, more)
        except NotBuildableError as error:
            if transformers.__version__ == NOT_BUILDABLE_OF and row not in NOT_BUILDABLE:
                raise
            pytest.skip(f"cannot be built: {str(error)[:160]}")
    print(result)
    assert "\n" not in result
    if result != "equal" and "cannot load" not in result:
        model_type = CONFIG_MAPPING[kind].model_type  # of gpt-sw3 it is gpt2
        for part in (f" is a {model_type} model", "pagedlab runs models built like Qwen2", "Name one of these"):
            assert part in result, "found, supported, what to do"
    if row in EQUAL:
        assert result == "equal"
    if row in REFUSED:
        assert REFUSED[row] in result
