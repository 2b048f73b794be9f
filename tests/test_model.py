"""Finding, loading and refusing checkpoints, and the same logits and tokens on pages as in transformers."""

import gc
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from pagedlab import model as model_module
from pagedlab.attention import get_backend
from pagedlab.loading import DEFAULT_MODEL, TINY_MODEL, choose_model
from pagedlab.model import Model, load_model
from pagedlab_serve import hub
from support.faults import raising_at
from support.refused import refused

COMMIT = "0123456789abcdef" * 2 + "01234567"
CACHED = "it is in the local Hugging Face cache"
FALLBACK = "the real Qwen is not on this machine; `pagedlab download` fetches it"
QUERY = "model.layers.1.self_attn.q_proj.weight"


def load(folder, **options):
    return load_model(folder, device="cpu", verbose=False, **options)


def assert_same_weights(model, expected):
    weights = model.module.state_dict()
    for name, weight in expected.module.state_dict().items():
        assert torch.equal(weights[name], weight), name


# Where the model comes from ---------------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The Hugging Face cache, empty, and nothing in the environment."""
    monkeypatch.delenv("PAGEDLAB_MODEL", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put_into(cache, patterns=None, hub_id=DEFAULT_MODEL):
    """The tiny model where the Hugging Face cache keeps this one, or those of its files that match: its folder."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    files = [path.name for path in TINY_MODEL.iterdir() if path.is_file()]
    for name in filter_repo_objects(files, allow_patterns=patterns):
        shutil.copy(TINY_MODEL / name, folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return folder


def test_the_argument_comes_first_and_the_environment_second(monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", "somebody/else")
    assert choose_model("some/model") == ("some/model", "you asked for it")
    assert choose_model(Path("a") / "folder") == (str(Path("a") / "folder"), "you asked for it")
    assert choose_model() == ("somebody/else", "PAGEDLAB_MODEL says so")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_the_cache_comes_third_and_a_model_in_part_is_none(cache, name):
    folder = put_into(cache)
    assert choose_model() == (DEFAULT_MODEL, CACHED)
    (folder / name).unlink()
    (folder / name).symlink_to(cache / "no" / "such" / "blob")
    assert choose_model() == (str(TINY_MODEL), FALLBACK)
    with refused("holds no .*`pagedlab download` fetches a hub id"):
        load_model(DEFAULT_MODEL)


def test_no_hub_is_asked_and_one_line_says_which_model_and_why(tmp_path):
    """In a process of its own, where no library is told to stay offline."""
    put_into(tmp_path / "hub", hub_id="some/cached")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PAGEDLAB_"))}
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "no_proxy": "*"}
        code = "from pagedlab.model import *; load_model(device='cpu'); load_model('some/cached', device='cpu')"
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert run.stdout.splitlines() == [
            f"model: {TINY_MODEL.name} on cpu in float32 ({FALLBACK})",
            "model: some/cached on cpu in float32 (you asked for it)",
        ]
        assert run.stderr == ""
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):  # nobody has called
            silent.accept()


def test_what_is_downloaded_is_the_model(cache, tiny, monkeypatch):
    def snapshot(name, allow_patterns, **_):
        return put_into(cache, allow_patterns, name)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    hub.download()
    (folder,) = cache.glob("*/snapshots/*")
    assert not (folder / "README.md").exists()
    assert (folder / "chat_template.jinja").exists()
    model = load_model(device="cpu", dtype="float32", verbose=False)
    assert model.name == DEFAULT_MODEL
    assert_same_weights(model, tiny)


def test_a_download_that_fails_says_so_in_one_line(cache, monkeypatch):
    errors = {
        r" \(503 Service Unavailable\): try again": ConnectionError("503\nService Unavailable"),
        ": huggingface.co does not answer": hub.LocalEntryNotFoundError("Got: ConnectError: [Errno -2]"),
    }
    for said, error in errors.items():
        monkeypatch.setattr(hub, "snapshot_download", raising_at(0, None, error))
        with refused(f"^some/model was not fetched{said}") as caught:
            hub.download("some/model")
        assert caught.value.__suppress_context__, "a reader sees no other traceback"
    assert choose_model() == (str(TINY_MODEL), FALLBACK)


# What is refused, each in one line that helps --------------------------------------------------------------------


@pytest.fixture
def spoilt(tmp_path):
    """A copy of the tiny model that a test may spoil."""
    return shutil.copytree(TINY_MODEL, tmp_path / "spoilt")


def edit(folder, file="config.json", **changes):
    """Change a JSON file; None takes an entry out."""
    content = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


DEEP = '{"a": ' * 10_000 + "1" + "}" * 10_000


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text(DEEP), "cannot load the tokenizer"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "cannot load the config"),
        (lambda folder: edit(folder, model_type=["qwen2"]), "cannot load the config"),
        (lambda folder: change_weights(folder, lambda w: w.pop(QUERY)), f"missing weights, 1 in all, first {QUERY}"),
        (
            lambda folder: change_weights(folder, lambda w: w.update(more=w[QUERY].clone())),
            "unexpected weights, 1 in all",
        ),
        (lambda folder: edit(folder, intermediate_size=48), "has mismatched weights, 15 in all"),
    ],
)
def test_folders_that_are_no_model(spoilt, spoil, said, capfd):
    spoil(spoilt)
    with refused(said) as caught:
        load(spoilt)
    assert "spoilt" in str(caught.value), "the message must name the folder"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback of others above it"
    assert capfd.readouterr() == ("", ""), "a report of others above it"


@pytest.mark.parametrize("kind", ["frobnicator", "qwen2"])
def test_code_in_a_folder_is_never_run(spoilt, kind, monkeypatch):
    """Nobody is asked whether to run it, and a type that pagedlab runs loads without it."""
    (spoilt / "own.py").write_text('import os\nos.environ["FROBNICATOR"] = "ran"\n')
    edit(spoilt, model_type=kind, architectures=None, auto_map={"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B"})
    edit(spoilt, "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "own.C"]})
    monkeypatch.setenv("FROBNICATOR", "did not run")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with nullcontext() if kind == "qwen2" else refused("cannot load the config"):
        load(spoilt)
    assert os.environ["FROBNICATOR"] == "did not run"


@pytest.mark.parametrize("name", ["folder", "folder.gguf"])
def test_pickles_are_never_opened(name, tmp_path, monkeypatch):
    """Not even where a file of another kind makes the folder look right."""
    folder = shutil.copytree(TINY_MODEL, tmp_path / name)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with refused(r"cannot load the model|folder\.gguf' is no folder"):
        load(folder)


def test_weights_that_are_loaded_all_the_same(spoilt, tiny):
    """A sum that is too large for float16, and numbers of old checkpoints that a model computes itself."""
    change_weights(spoilt, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert_same_weights(load(spoilt), tiny)
    change_weights(spoilt, lambda w: w[QUERY].fill_(1.5))
    load(spoilt, dtype="float16")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"softcap": 30.0}, "takes softcap"),
        ({"is_causal": False}, "takes is_causal"),
        ({"attention_mask": torch.ones(1, 1, 2, 2)}, "takes attention_mask"),
    ],
)
def test_an_argument_that_would_change_the_result_is_refused(tiny, options, said):
    cache = tiny.kv_cache(2, 4)
    before = cache.keys.zero_().clone()  # unwritten memory may hold NaN, which equals nothing
    q = torch.zeros(1, 4, 2, cache.keys.shape[-1])
    kv = torch.zeros(1, cache.keys.shape[-2], 2, cache.keys.shape[-1])
    pages = model_module.Pages(cache, None, get_backend("torch"))
    arguments = {"attention_mask": None, "dropout": 0.0, "position_ids": None} | options
    with refused(said):
        model_module.paged_hook(tiny.module.model.layers[0].self_attn, q, kv, kv, pages=pages, **arguments)
    assert torch.equal(cache.keys, before)


@pytest.mark.parametrize("collects", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(collects):
    try:
        (gc.enable if collects else gc.disable)()
        with refused("is no folder"):
            load_model("no/such/folder")
        assert gc.isenabled() == collects
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["./no/such/folder", "~nobody/no", "no-such.gguf", "some/model", "x" * 5000])
def test_names_that_lead_nowhere(name):
    with refused("is no folder, no .gguf file and not in the local Hugging Face cache"):
        load_model(name)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 100, b"GGUF" + bytes(100)])
def test_gguf_files_that_are_none(content, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(content)
    with refused(r"cannot load the \w+ of '.*broken\.gguf'"):
        load_model(tmp_path / "broken.gguf")


# What a model is asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, "{{ raise_exception('first line\nsecond') }}", "{{ 1 // 0 }}"])
def test_templates_that_do_not_work(template, spoilt):
    (spoilt / "chat_template.jinja").unlink()
    if template:
        (spoilt / "chat_template.jinja").write_text(template)
    model = load(spoilt)
    assert model.checked_ids("a text needs no template")
    with refused(
        r"^the chat template of spoilt cannot take these messages \(.*\): give each a role and a content that is a text"
    ):
        model.checked_ids([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("config", "tokenizer", "expected"), [(3, 9, {3}), ([3, 5], 9, {3, 5}), (None, 9, {9}), (None, None, set())]
)
def test_end_of_text_tokens(tiny, config, tokenizer, expected, monkeypatch):
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", config)
    kind = type("Tokenizer", (), {"eos_token_id": tokenizer})
    assert Model(tiny.module, kind(), "").eos_token_ids == expected


def test_stock_attention_ends_with_its_block(tiny):
    with pytest.raises(RuntimeError, match="inside"), tiny.stock_attention():
        raise RuntimeError("inside")
    with refused(r"attends through blocks: pass pages=\.\.\., as LLM does"):
        tiny.module(torch.tensor([[1, 2]]))


def write_gguf(path, model):
    """The model as a GGUF file in fp32."""
    gguf = pytest.importorskip("gguf")
    config, tokenizer = model.module.config, json.loads(model.tokenizer.backend_tokenizer.to_str())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    entries = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": config.rope_parameters["rope_theta"],
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "qwen2",
        "token_list": model.tokenizer.convert_ids_to_tokens(list(range(len(model.tokenizer)))),
        "token_types": [3 if i in special else 1 for i in range(len(model.tokenizer))],
        "token_merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "eos_token_id": model.tokenizer.eos_token_id,
    }
    writer = gguf.GGUFWriter(str(path), "qwen2")
    for name, value in entries.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.module.state_dict().items():
        if name != "lm_head.weight":  # tied
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_the_same_model(tmp_path, tiny):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny)
    model = load(path, dtype="float32")
    assert model.name == "tiny.gguf"
    assert_same_weights(model, tiny)
    text = "Once upon a time there was a library."
    assert model.encode(text) == tiny.encode(text)
