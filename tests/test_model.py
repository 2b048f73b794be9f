"""Finding, loading and refusing checkpoints, and other architectures than the shipped one on the same pages."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedlab import LLM, SamplingParams
from pagedlab.attention import BACKENDS
from pagedlab.model import DEFAULT_MODEL, TINY_MODEL, Model, choose_model, load_model

if TYPE_CHECKING:
    from conftest import Generate


# Where the model comes from ---------------------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[tuple[str, list[socket.socket]]]:
    """A hub that takes every connection and never says a word: its address, and who has called."""
    server, callers = socket.create_server(("127.0.0.1", 0)), []

    def accept() -> None:
        while True:
            try:
                callers.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", callers
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for caller in callers:
            caller.close()
        thread.join(5)


@contextmanager
def answering(status: int, body: dict[str, Any], **headers: str) -> Iterator[str]:
    """A hub that gives everybody the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            payload = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(payload)),
                **headers,
            }.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """An empty cache, nothing in the environment, and a function that says where the hub is."""
    from huggingface_hub import constants

    monkeypatch.delenv("PAGEDLAB_MODEL", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def at(endpoint: str) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)

    return at


def cache_file(cache: Path, hub_id: str, name: str) -> None:
    """Put an empty file where the Hugging Face cache keeps it."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text("0123")
    (repository / "snapshots" / "0123").mkdir(parents=True, exist_ok=True)
    (repository / "snapshots" / "0123" / name).touch()


def test_the_argument_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDLAB_MODEL", "somebody/else")
    assert choose_model("some/model") == ("some/model", "you asked for it")
    assert choose_model(Path("a") / "folder") == (str(Path("a") / "folder"), "you asked for it")


def test_the_environment_comes_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDLAB_MODEL", "somebody/else")
    assert choose_model() == ("somebody/else", "PAGEDLAB_MODEL says so")


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_the_cache_comes_third(hub: Callable[[str], None], tmp_path: Path, name: str) -> None:
    cache_file(tmp_path / "cache", DEFAULT_MODEL, name)
    with listening() as (endpoint, callers):
        hub(endpoint)
        assert choose_model() == (DEFAULT_MODEL, "it is in the local Hugging Face cache")
        assert not callers, "the hub was asked for what is cached"


def test_a_config_alone_is_no_cached_model(hub: Callable[[str], None], tmp_path: Path) -> None:
    cache_file(tmp_path / "cache", DEFAULT_MODEL, "config.json")
    assert choose_model()[0] == str(TINY_MODEL)


def test_the_hub_comes_fourth(hub: Callable[[str], None]) -> None:
    with answering(200, {"id": DEFAULT_MODEL, "siblings": []}) as endpoint:
        hub(endpoint)
        assert choose_model() == (DEFAULT_MODEL, "the Hugging Face hub has it")


def test_a_silent_hub_costs_seconds(hub: Callable[[str], None]) -> None:
    with listening() as (endpoint, callers):
        hub(endpoint)
        began = time.perf_counter()
        name, reason = choose_model()
        seconds = time.perf_counter() - began
        assert callers, "the hub was not asked at all"
    print(f"a silent hub cost {seconds:.1f} s")
    assert name == str(TINY_MODEL)
    assert "is not cached and the hub did not answer" in reason
    assert seconds < 10


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [(404, "RepoNotFound", "no public model"), (401, "RepoNotFound", "no public model"), (503, "", "did not answer")],
)
def test_a_hub_that_says_no(hub: Callable[[str], None], status: int, error: str, said: str) -> None:
    with answering(status, {"error": "no"}, X_Error_Code=error) as endpoint:
        hub(endpoint)
        assert choose_model()[0] == str(TINY_MODEL)
        assert said in choose_model()[1]
        with pytest.raises(ValueError, match=said):
            load_model("some/model")


def test_nobody_at_the_address(hub: Callable[[str], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hub(f"http://127.0.0.1:{port}")
    assert choose_model()[0] == str(TINY_MODEL)


def test_offline_means_offline(hub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with listening() as (endpoint, callers):
        hub(endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert choose_model() == (
            str(TINY_MODEL),
            f"{DEFAULT_MODEL} is not cached and HF_HUB_OFFLINE forbids asking the hub",
        )
        with pytest.raises(ValueError, match=r"'some/model' is no folder here, is not in .* cache, and HF_HUB_OFFLINE"):
            load_model("some/model")
        assert not callers


def test_the_whole_way_behind_a_silent_hub(tmp_path: Path) -> None:
    """From the environment to the printed line, in a process of its own: no library underneath waits any longer."""
    with listening() as (endpoint, callers):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PAGEDLAB_"))}
        environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "no_proxy": "*"}
        code = f"import pagedlab.model as m; m.TINY_MODEL = m.Path({str(_tiny_folder())!r}); m.load_model(device='cpu')"
        out = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
        ).stdout
        assert out.startswith(
            f"model: {_tiny_folder().name} on cpu in float32 ({DEFAULT_MODEL} is not cached and the hub"
        )
        assert out.count("\n") == 1
        # One question of ours; huggingface_hub asks another, once a process, before its first.
        assert len(callers) <= 2, "a question for every file would cost minutes"


def _tiny_folder() -> Path:
    import pagedlab.model

    return pagedlab.model.TINY_MODEL


def test_one_line_says_which_and_why(tiny: Model, capsys: pytest.CaptureFixture[str]) -> None:
    load_model(_tiny_folder(), device="cpu")
    assert capsys.readouterr().out == f"model: {tiny.name} on cpu in float32 (you asked for it)\n"
    load_model(_tiny_folder(), device="cpu", dtype="bfloat16", verbose=False)
    assert capsys.readouterr().out == ""


# What is refused, each in one line that helps --------------------------------------------------------------------


def edit(folder: Path, **changes: Any) -> None:
    """Change the config; None takes an entry out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_pickles_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def with_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": ')


def with_nonsense(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nonsense" * 100)


def cut_short(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def with_an_empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def with_a_weight_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("layers.1.self_attn.q_proj.weight"))]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_a_wrong_shape(folder: Path) -> None:
    edit(folder, intermediate_size=48)


def with_a_damaged_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def of_an_unknown_type(folder: Path) -> None:
    edit(folder, model_type="frobnicator", architectures=None)


def with_a_sliding_window(folder: Path) -> None:
    edit(folder, use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=None)


def with_a_window_as_mistral_has_it(folder: Path) -> None:
    edit(folder, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=8, layer_types=None)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_weights, r"holds no weights: a \*\.safetensors file must lie beside config\.json"),
        (with_pickles_only, "holds no weights"),
        (without_config, r"holds no config\.json: name a folder saved by save_pretrained"),
        (without_tokenizer, r"holds no tokenizer: tokenizer\.json must lie beside"),
        (with_a_damaged_tokenizer, "cannot load"),
        (with_nonsense, "cannot load .*header"),
        (cut_short, "cannot load"),
        (with_an_empty_file, "cannot load"),
        (with_a_weight_missing, r"lacks 1 of the model's weights, the first is model\.layers\.1\.self_attn\.q_proj"),
        (with_a_wrong_shape, "cannot load"),
        (with_a_damaged_config, "cannot load .*not a valid JSON"),
        (of_an_unknown_type, "cannot load .*frobnicator"),
        (with_a_sliding_window, "layers with a sliding window; pagedlab runs models that attend to everything"),
        (with_a_window_as_mistral_has_it, "layers with a sliding window"),
    ],
)
def test_folders_that_are_no_model(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    folder = tmp_path / "spoilt"
    shutil.copytree(_tiny_folder(), folder)
    spoil(folder)
    with pytest.raises(ValueError, match=said) as caught:
        load_model(folder, device="cpu", verbose=False)
    assert "\n" not in str(caught.value)
    assert "spoilt" in str(caught.value), "the message must name the folder"


def test_other_kinds_of_attention(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt"
    shutil.copytree(_tiny_folder(), folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=8, n_layer=1, n_head=2)).save_pretrained(folder)
    with pytest.raises(ValueError, match="is a gpt2 model; pagedlab runs those built like Qwen2, 3 or Llama"):
        load_model(folder, device="cpu", verbose=False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./no/such/folder", "there is no folder './no/such/folder': name a folder, a .gguf file or a hub id such as"),
        ("/no/such/folder", "there is no folder"),
        ("~/no/such/folder", "there is no folder"),
        ("no/such/folder", "there is no folder"),
        ("no-such.gguf", "there is no GGUF file 'no-such.gguf'"),
        ("some/model", "is no folder here, is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids"),
        ("no such model", "no such model"),
        ("", "holds no config.json"),
    ],
)
def test_names_that_lead_nowhere(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 100, b"GGUF" + bytes(100)])
def test_gguf_files_that_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot load '.*broken\.gguf'") as caught:
        load_model(tmp_path / "broken.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"device": "gpu"}, "there is no device 'gpu': use 'auto', 'cpu' or 'cuda'"),
        ({"dtype": "int8"}, "there is no dtype 'int8'"),
        ({"dtype": "fp32"}, "use 'auto', 'float32', 'float16' or 'bfloat16'"),
        ({"dtype": torch.int64}, "there is no dtype"),
        ({"dtype": None}, "there is no dtype"),
    ],
)
def test_devices_and_dtypes(argument: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_model(_tiny_folder(), verbose=False, **argument)


def test_no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU: use 'cpu' or 'auto'"):
        load_model(_tiny_folder(), device="cuda")
    assert load_model(_tiny_folder(), verbose=False).device.type == "cpu"


# What a model is asked --------------------------------------------------------------------------------------------


def test_prompts_of_three_kinds(tiny: Model) -> None:
    assert tiny.encode("a cat") == tiny.tokenizer("a cat")["input_ids"]
    assert tiny.encode([5, 6, 7]) == [5, 6, 7]
    messages = [{"role": "user", "content": "hello"}]
    text = tiny.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert "hello" in text
    assert tiny.encode(messages) == tiny.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_messages_need_a_template(tiny: Model) -> None:
    tokenizer = type("NoTemplate", (), {"chat_template": None})()
    with pytest.raises(ValueError, match="has no chat template: pass the prompt as a text"):
        Model(tiny.module, tokenizer, tiny.name, "").encode([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(("eos", "expected"), [(3, {3}), ([3, 5], {3, 5}), (None, {9})])
def test_end_of_text_tokens(tiny: Model, eos: Any, expected: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = type("Tokenizer", (), {"eos_token_id": 9})()
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", eos)
    assert Model(tiny.module, tokenizer, "", "").eos_token_ids == expected
    monkeypatch.setattr(tokenizer, "eos_token_id", None, raising=False)
    assert Model(tiny.module, tokenizer, "", "").eos_token_ids == (expected if eos else frozenset())


def test_the_module_wants_its_pages(tiny: Model) -> None:
    with pytest.raises(ValueError, match=r"call it with pages=\.\.\., as pagedlab\.LLM does"):
        tiny.module(torch.tensor([[1, 2]]))


def test_stock_attention_ends_with_its_block(tiny: Model) -> None:
    with tiny.stock_attention() as module:
        assert module(torch.tensor([[1, 2]])).logits.shape == (1, 2, tiny.vocab_size)
    with pytest.raises(RuntimeError, match="inside"), tiny.stock_attention():
        raise RuntimeError("inside")
    with pytest.raises(ValueError, match="pages"):
        tiny.module(torch.tensor([[1, 2]]))


# Other architectures, small and random -----------------------------------------------------------------------------


def random_checkpoint(folder: Path, kind: str, **changes: Any) -> None:
    """A small model with random weights, large enough that what it says depends on what it attends to."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from pagedlab.model import load_model

    tokenizer = load_model(_tiny_folder(), device="cpu", verbose=False).tokenizer
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "initializer_range": 0.3,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": None,
            **changes,
        },
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {}),
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
        ("llama", {"num_key_value_heads": 1, "attention_bias": True}),
        ("qwen2", {"num_key_value_heads": 3}),
        ("mistral", {"sliding_window": None}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
    ],
)
def test_the_same_tokens_as_generate(
    kind: str, changes: dict[str, Any], tmp_path: Path, hugging_face: Generate
) -> None:
    random_checkpoint(tmp_path, kind, **changes)
    model = load_model(tmp_path, device="cpu", verbose=False)
    prompts = [[7, 8, 9], list(range(20, 51)), [11] * 16]
    expected = [hugging_face(model, prompt, 16) for prompt in prompts]
    assert len({tuple(ids) for ids in expected}) == 3, "what this model says does not depend on its prompt"
    for backend in BACKENDS:
        llm = LLM(model, block_size=8, num_blocks=32, attention_backend=backend)
        outputs = [c.outputs[0].token_ids for c in llm.generate(prompts, SamplingParams(max_tokens=16))]
        assert outputs == expected, backend


def test_weights_in_several_files(tmp_path: Path, tiny: Model) -> None:
    with tiny.stock_attention() as module:
        module.save_pretrained(tmp_path, max_shard_size="1MB")
    tiny.tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = load_model(tmp_path, device="cpu", dtype="float32", verbose=False)
    for name, weight in again.module.state_dict().items():
        assert torch.equal(weight, tiny.module.state_dict()[name])
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match="cannot load"):
        load_model(tmp_path, device="cpu", verbose=False)


def write_gguf(path: Path, model: Model) -> None:
    """The model as a GGUF file, in fp32 and with the names that llama.cpp gives to Qwen2's parts."""
    gguf = pytest.importorskip("gguf")
    config, tokenizer = model.module.config, json.loads(model.tokenizer.backend_tokenizer.to_str())
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = model.tokenizer.convert_ids_to_tokens(list(range(len(model.tokenizer))))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(model.tokenizer.eos_token_id)
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.layers": "blk",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
    }
    for name, weight in model.module.state_dict().items():
        if name != "lm_head.weight":  # tied
            for ours, theirs in parts.items():
                name = name.replace(ours, theirs)
            writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_the_same_model(tmp_path: Path, tiny: Model, hugging_face: Generate) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny)
    model = load_model(path, device="cpu", dtype="float32", verbose=False)
    assert model.name == "tiny.gguf"
    weights = model.module.state_dict()
    for name, weight in tiny.module.state_dict().items():
        assert torch.equal(weights[name], weight), name
    text = "Once upon a time there was a library."
    assert model.encode(text) == tiny.encode(text)
    output = LLM(model, num_blocks=16).generate(text, SamplingParams(max_tokens=16, ignore_eos=True))[0].outputs[0]
    assert output.token_ids == hugging_face(tiny, tiny.encode(text), 16)[:16]


# Real Qwen ---------------------------------------------------------------------------------------------------------


@pytest.mark.qwen
def test_real_qwen_is_what_spec_says(qwen: Model) -> None:
    cache = qwen.kv_cache(1, 16)
    assert cache.keys.shape == (24, 1, 16, 2, 64)
    assert cache.bytes_per_block == 2 * 192 * 1024  # in fp32; bf16 takes half
    assert qwen.eos_token_ids
    assert qwen.decode(qwen.encode("Why is the sky blue?")) == "Why is the sky blue?"
    assert qwen.encode([{"role": "user", "content": "hi"}])[-3:] == qwen.encode("<|im_start|>assistant\n")


@pytest.mark.qwen
@pytest.mark.timeout(900)
def test_a_real_gguf_file(qwen_folder: str) -> None:
    """Unpacking half a gigabyte takes a minute or more, so it must be asked for."""
    path = os.environ.get("PAGEDLAB_TEST_GGUF")
    if not path:
        pytest.skip("PAGEDLAB_TEST_GGUF names no .gguf file")
    model = load_model(path, device="cpu", verbose=False)
    prompt = "The capital of France is"
    output = LLM(model, num_blocks=16).generate(prompt, SamplingParams(max_tokens=8))[0].outputs[0]
    print(f"{model.name}: {prompt}{output.text}")
    assert "Paris" in output.text
    assert model.eos_token_ids
