"""Finding, loading and refusing checkpoints, and the same logits and tokens on pages as in transformers."""

import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants as hub_constants
from safetensors.torch import load_file, save_file

from pagedlab import LLM, SamplingParams
from pagedlab import model as model_module
from pagedlab.attention import BACKENDS, get_backend
from pagedlab.loading import DEFAULT_MODEL, TINY_MODEL, choose_model, read_config
from pagedlab.model import Model, load_model
from pagedlab.outputs import NOT_FINITE
from pagedlab_serve.hub import download
from support.checkpoints import random_checkpoint
from support.engines import exactly, ids_of, output_of, paged_logits, plain_logits
from support.refused import refused


def load(folder, **options):
    return load_model(folder, device="cpu", verbose=False, **options)


# Where the model comes from ---------------------------------------------------------------------------------------


class Hub:
    """A Hugging Face hub on this machine that has one model, the tiny one, under every name; a test may spoil it."""

    commit = "0123456789abcdef" * 2 + "01234567"

    def __init__(self, folder):
        paths = sorted(folder.iterdir(), key=lambda path: -path.stat().st_size)  # the weights first
        self.files = {path.name: path.read_bytes() for path in paths if path.is_file()}
        self.status = 200
        self.dies_after = 10**9  # bytes of one file; the connection is closed then
        self.halfway = lambda: None  # called before that
        self.asked = []  # path, and the range if only a part was asked for
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815 - http.server's name

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a caller that hangs up
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request):
        path, said, code = request.path.partition("?")[0], request.headers.get("Range", ""), self.status
        self.asked.append(f"{path} {said}".strip())
        if path.startswith("/api/models/"):
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": f"{i}" * 40}
                for i, (name, data) in enumerate(self.files.items())
            ]
            body = json.dumps(files if "/tree/" in path else {"id": "some/model", "sha": self.commit}).encode()
        else:
            body = self.files.get(path.partition(f"/resolve/{self.commit}/")[2], b"")
        begin = int(said.removeprefix("bytes=").partition("-")[0] or 0)
        request.send_response(206 if said and code == 200 else code)
        if code in (401, 404):
            request.send_header("X-Error-Code", "RepoNotFound")
        if said:
            request.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        request.send_header("Content-Length", str(len(body) - begin))
        request.send_header("X-Repo-Commit", self.commit)
        request.send_header("ETag", f"{zlib.crc32(body)}")
        request.end_headers()
        if request.command == "HEAD":
            return
        request.wfile.write(body[begin : begin + self.dies_after])
        if len(body) - begin > self.dies_after:
            request.wfile.flush()
            self.halfway()

    def fetched(self):
        """What was asked for of files, in order."""
        return [asked.partition(f"/resolve/{self.commit}/")[2] for asked in self.asked if "/resolve/" in asked]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The Hugging Face cache, empty, and nothing in the environment."""
    from huggingface_hub import constants

    monkeypatch.delenv("PAGEDLAB_MODEL", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hub(cache, monkeypatch):
    """A hub that everybody asks from now on, and whom nobody waits for between two tries."""
    from huggingface_hub import constants, file_download

    hub = Hub(TINY_MODEL)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda _: None, time=time.time))
    threading.Thread(target=hub.server.serve_forever, args=(0.01,), daemon=True).start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def put_into(cache, hub_id=DEFAULT_MODEL, leave_out=""):
    """The tiny model where the Hugging Face cache keeps this one: its folder."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    folder = repository / "snapshots" / Hub.commit
    shutil.copytree(TINY_MODEL, folder, ignore=shutil.ignore_patterns(leave_out, "*.py", "*.txt", "source"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(Hub.commit)
    return folder


FALLBACK = "the real Qwen is not on this machine; `pagedlab download` fetches it"


def test_the_argument_comes_first_and_the_environment_second(monkeypatch):
    monkeypatch.setenv("PAGEDLAB_MODEL", "somebody/else")
    assert choose_model("some/model") == ("some/model", "you asked for it")
    assert choose_model(Path("a") / "folder") == (str(Path("a") / "folder"), "you asked for it")
    assert choose_model() == ("somebody/else", "PAGEDLAB_MODEL says so")


def test_the_cache_comes_third(cache, hub, tiny, capsys):
    put_into(cache)
    assert choose_model() == (DEFAULT_MODEL, "it is in the local Hugging Face cache")
    model = load_model(device="cpu")
    said = "it is in the local Hugging Face cache"
    assert capsys.readouterr() == (f"model: {DEFAULT_MODEL} on cpu in float32 ({said})\n", "")
    assert torch.equal(model.module.lm_head.weight, tiny.module.lm_head.weight)
    assert not hub.asked, "the hub was asked for what is cached"


def test_the_tiny_model_comes_last_and_no_hub_is_asked(cache, hub):
    assert choose_model() == (str(TINY_MODEL), FALLBACK)
    with refused("`pagedlab download` fetches a hub id") as caught:
        load_model("some/model")
    assert "is no folder, no .gguf file and not in the local Hugging Face cache" in str(caught.value)
    assert not hub.asked


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_in_part_is_none(cache, name):
    folder = put_into(cache, leave_out=name)
    assert choose_model() == (str(TINY_MODEL), FALLBACK)
    (folder / name).symlink_to(cache / "no" / "such" / "blob")
    assert choose_model() == (str(TINY_MODEL), FALLBACK)
    with refused("holds no .*`pagedlab download` fetches a hub id"):
        load_model(DEFAULT_MODEL)


def test_a_file_that_huggingface_hub_knows_of_is_missed(cache):
    """Its own download leaves a list of the files; an interrupted one may lack any of them."""
    put_into(cache, leave_out="tokenizer_config.json")
    assert choose_model()[0] == DEFAULT_MODEL
    listing = {"format_version": 1, "files": {"tokenizer_config.json": {"size": 1, "blob_id": "0"}}}
    trees = cache / f"models--{DEFAULT_MODEL.replace('/', '--')}" / "trees"
    trees.mkdir()
    (trees / f"{Hub.commit}.json").write_text(json.dumps(listing))
    assert choose_model()[0] == str(TINY_MODEL)


def test_the_whole_way_behind_a_silent_hub(tmp_path):
    """From the environment to the printed line, in a process of its own: no library underneath asks anybody."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PAGEDLAB_"))}
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "no_proxy": "*"}
        run = subprocess.run(
            [sys.executable, "-c", "import pagedlab.model as m; m.load_model(device='cpu')"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert run.stdout == f"model: {TINY_MODEL.name} on cpu in float32 ({FALLBACK})\n"
        assert run.stderr == ""
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):  # nobody has called
            silent.accept()


def test_one_line_says_which_and_why(tiny, capsys):
    load_model(TINY_MODEL, device="cpu")
    assert capsys.readouterr().out == f"model: {tiny.name} on cpu in float32 (you asked for it)\n"
    load(TINY_MODEL, dtype="bfloat16")
    assert capsys.readouterr().out == ""


# Fetching it ------------------------------------------------------------------------------------------------------


def fails(said, name=DEFAULT_MODEL):
    """The download says this in one line, and no half of a model is taken for one."""
    with refused(said) as caught:
        download(name)
    assert str(caught.value).startswith(f"{name} was not fetched (")
    assert choose_model() == (str(TINY_MODEL), FALLBACK)


def test_fetched_it_is_the_model(cache, hub, tiny):
    hub.files |= {"pytorch_model.bin": b"x", "onnx/config.json": b"{}", "consolidated.safetensors": b"x"}
    download()
    (folder,) = cache.glob("*/snapshots/*")
    wanted = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    fetched = {path.name for path in folder.iterdir()}
    assert wanted | {"chat_template.jinja"} <= fetched
    assert not {"pytorch_model.bin", "onnx", "consolidated.safetensors", "README.md"} & fetched
    assert choose_model() == (DEFAULT_MODEL, "it is in the local Hugging Face cache")
    model = load_model(device="cpu", dtype="float32", verbose=False)
    for name, weight in tiny.module.state_dict().items():
        assert torch.equal(weight, model.module.state_dict()[name])


def test_a_hub_that_dies_half_way(hub):
    def gone():
        hub.dies_after = 0

    hub.dies_after, hub.halfway = 300_000, gone
    fails("try again")
    hub.dies_after = 10**9
    download()
    assert choose_model()[0] == DEFAULT_MODEL


@pytest.mark.parametrize("status", [404, 401, 503])
def test_a_hub_that_says_no(hub, status):
    hub.status = status
    fails(str(status), "some/model" if status == 404 else DEFAULT_MODEL)


def test_a_hub_that_says_nothing(hub, monkeypatch):
    hub.server.shutdown()
    hub.server.server_close()
    fails("try again")
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    fails("try again")


# What is refused, each in one line that helps --------------------------------------------------------------------


@pytest.fixture
def spoilt(tmp_path):
    """A copy of the tiny model that a test may spoil."""
    return shutil.copytree(TINY_MODEL, tmp_path / "spoilt")


def edit(folder, **changes):
    """Change the config; None takes an entry out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def write(folder, name, said):
    """Another generation_config.json or the like."""
    (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_pickles_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def cut_short(folder):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def with_config(**changes):
    return lambda folder: edit(folder, **changes)


def with_file(name, said):
    return lambda folder: write(folder, name, said)


def without(name):
    return lambda folder: (folder / name).unlink()


def with_weights(change):
    return lambda folder: change_weights(folder, change)


DEEP = '{"a": ' * 10_000 + "1" + "}" * 10_000
CODE = """
import os
from transformers import PreTrainedConfig
os.environ["FROBNICATOR"] = "ran"
class Frobnicator(PreTrainedConfig):
    model_type = "frobnicator"
"""


def with_code_of_its_own(folder):
    """Its config, model and tokenizer name classes in Python files beside them."""
    write(folder, "own.py", CODE)
    names = {"AutoConfig": "own.Frobnicator", "AutoModelForCausalLM": "own.Model"}
    edit(folder, model_type="frobnicator", architectures=None, auto_map=names)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", tokenizer | {"auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]}})


QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            without("model.safetensors"),
            r"holds no weights \(\*\.safetensors\): name a folder",
        ),
        (with_pickles_only, "holds no weights"),
        (
            without("config.json"),
            r"holds no config .*: name a folder",
        ),
        (without_tokenizer, r"holds no tokenizer \(tokenizer\.\*\): name a folder"),
        (
            with_file("tokenizer.json", '{"model": '),
            "cannot load the tokenizer of .* fetch it again",
        ),
        (cut_short, "cannot load the model of .* fetch it again or name another: .* not fully covered"),
        (
            with_weights(lambda w: w.pop(QUERY)),
            f"has missing weights, 1 in all, first {QUERY}:",
        ),
        (
            with_weights(lambda w: w.update(more=torch.zeros(2))),
            "has unexpected weights, 1 in all, first more: fetch config.json and weights again",
        ),
        (
            with_weights(lambda w: w.update({QUERY: torch.zeros(2, 256)})),
            rf"has mismatched weights, 1 in all, first \('{QUERY}'",
        ),
        (with_config(intermediate_size=48), "has mismatched weights, 15 in all"),
        (with_config(num_hidden_layers=4, layer_types=None), "has unexpected weights, 12 in all"),
        (with_file("config.json", "[1]"), "cannot load the config of "),
        (with_config(model_type="gpt2", architectures=None), "is a gpt2 model; pagedlab runs llama, mistral, qwen2"),
        (with_config(model_type="frobnicator", architectures=None), "cannot load the config of .*frobnicator"),
        (with_config(model_type=["qwen2"]), "cannot load the config of "),
        (with_code_of_its_own, "cannot load the config of "),
        (with_file("config.json", DEEP), "cannot load the config of "),
        (with_file("tokenizer_config.json", DEEP), "cannot load the tokenizer of "),
        (with_file("tokenizer.json", DEEP), "cannot load the tokenizer of "),
        (with_file("special_tokens_map.json", DEEP), "cannot load the tokenizer of "),
        (
            with_config(use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=None),
            "has layers with full_attention, sliding_attention; pagedlab runs models with full attention",
        ),
    ],
)
def test_folders_that_are_no_model(spoilt, spoil, said, capfd):
    spoil(spoilt)
    with refused(said) as caught:
        load(spoilt)
    assert "spoilt" in str(caught.value), "the message must name the folder"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback of others above it"
    assert capfd.readouterr() == ("", ""), "a report of others above it"


@pytest.mark.parametrize("architecture", ["frobnicator", "qwen2"])
def test_code_in_a_folder_is_never_run(spoilt, architecture, monkeypatch):
    """Nobody is asked whether to run it, and a type that pagedlab runs loads without it."""
    with_code_of_its_own(spoilt)
    edit(spoilt, model_type=architecture)
    monkeypatch.setenv("FROBNICATOR", "did not run")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    refusal = refused("cannot load the config of ")
    with nullcontext() if architecture == "qwen2" else refusal:
        load(spoilt)
    assert os.environ["FROBNICATOR"] == "did not run"


@pytest.mark.parametrize("name", ["cos_cached", "sin_cached", "inv_freq"])
def test_rotations_that_old_checkpoints_stored_are_ignored(spoilt, name, tiny):
    """A model computes these numbers itself. Transformers ignores them, too."""
    key = f"model.layers.0.self_attn.rotary_emb.{name}"
    change_weights(spoilt, lambda weights: weights.update({key: torch.ones(4)}))
    of_both = [LLM(model, num_blocks=8, verbose=False) for model in (load(spoilt), tiny)]
    ours, expected = (output_of(llm, [7, 8, 9, 200], exactly(3)).token_ids for llm in of_both)
    assert ours == expected


def change_tokenizer(folder, change):
    said = json.loads((folder / "tokenizer.json").read_text())
    change(said)
    write(folder, "tokenizer.json", said)


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": float("nan")},
        {"rope_parameters": {"rope_theta": float("nan"), "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 0.0}},
    ],
    ids=str,
)
def test_a_config_without_finite_logits(spoilt, changes):
    edit(spoilt, **changes)
    output = output_of(LLM(load(spoilt), num_blocks=8, verbose=False), [7, 8, 9], exactly(3))
    assert (output.finish_reason, output.error) == ("error", NOT_FINITE)


def test_weights_whose_sum_is_too_large_for_float16(spoilt):
    change_weights(spoilt, lambda weights: weights[QUERY].fill_(1.5))
    load(spoilt, dtype="float16")


def test_a_config_alone(spoilt):
    assert read_config(str(spoilt)).num_hidden_layers == 5
    edit(spoilt, model_type="gpt2")
    with refused("spoilt' is a gpt2 model; pagedlab runs llama"):
        read_config(str(spoilt))


@pytest.mark.parametrize("name", ["folder", "folder.gguf"])
def test_pickles_are_never_opened(name, tmp_path, monkeypatch):
    """Not even where a file of another kind makes the folder look right."""
    folder = shutil.copytree(TINY_MODEL, tmp_path / name)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with refused(r"cannot load the model|folder\.gguf' is no folder"):
        load(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"softcap": 30.0}, "takes softcap"),
        ({"sliding_window": 8}, "takes sliding_window"),
        ({"s_aux": torch.zeros(4)}, "takes s_aux"),
        ({"is_causal": False}, "is not causal"),
        ({"attention_mask": torch.ones(1, 1, 2, 2)}, "its own mask"),
        ({"position_bias": torch.zeros(1, 4, 2, 2)}, "takes position_bias"),
        ({"something_new": 0}, "takes something_new"),
    ],
)
def test_an_argument_that_would_change_the_result_is_refused(tiny, options, said):
    cache = tiny.kv_cache(2, 4)
    before = cache.keys.zero_().clone()  # unwritten memory may hold NaN, which equals nothing
    q = torch.zeros(1, 4, 2, cache.keys.shape[-1])
    kv = torch.zeros(1, cache.keys.shape[-2], 2, cache.keys.shape[-1])
    pages = model_module.Pages(cache, None, get_backend("torch"))
    attention = tiny.module.model.layers[0].self_attn
    arguments = {"attention_mask": None, "dropout": 0.0, "position_ids": None} | options
    with refused(said):
        model_module.paged_hook(attention, q, kv, kv, pages=pages, **arguments)
    assert torch.equal(cache.keys, before)


def test_a_gguf_file_of_an_unknown_architecture(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "strange.gguf", "frobnicator")
    writer.add_tensor("token_embd.weight", torch.zeros(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with refused(r"cannot load the config of .*strange\.gguf.*frobnicator is not supported"):
        load(tmp_path / "strange.gguf")


@pytest.mark.parametrize("collects", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(collects):
    try:
        (gc.enable if collects else gc.disable)()
        load(TINY_MODEL)
        assert gc.isenabled() == collects
        with refused("is no folder"):
            load_model("no/such/folder")
        assert gc.isenabled() == collects
    finally:
        gc.enable()


NOWHERE = "is no folder, no .gguf file and not in the local Hugging Face cache"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./no/such/folder", f"'./no/such/folder' {NOWHERE}: name a folder, a .gguf file or a hub id like Qwen/"),
        *((name, f"{name}' {NOWHERE}") for name in ("/no/such", "~/no/such", "~nobody/no", "no/such/folder")),
        *((name, f"{name}' {NOWHERE}") for name in ("no-such.gguf", "some/model", "no such model", __file__[-40:])),
        ("x" * 5000, NOWHERE),
        (5, "model must be a folder, a .gguf file or a hub id like .*, got 5"),
        ("", "model must be a folder, a .gguf file or a hub id like .*, got ''"),
    ],
)
def test_names_that_lead_nowhere(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(said):
        load_model(name)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 100, b"GGUF" + bytes(100)])
def test_gguf_files_that_are_none(content, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(content)
    with refused(r"cannot load the \w+ of '.*broken\.gguf'"):
        load_model(tmp_path / "broken.gguf")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"device": "gpu"}, "device must be one of 'auto', 'cpu'.*, got 'gpu'"),
        ({"device": "cuda:99"}, "device must be one of 'auto', 'cpu'.*, got 'cuda:99'"),
        ({"device": None}, "device must be one of 'auto', 'cpu'.*, got 'None'"),
        ({"dtype": "int8"}, "dtype must be one of 'auto', 'float32', 'float16', 'bfloat16', 'float64', got 'int8'"),
        ({"dtype": "fp32"}, "dtype must be one of"),
        ({"dtype": torch.int64}, "dtype must be one of .* got 'int64'"),
        ({"dtype": None}, "dtype must be one of"),
    ],
)
def test_devices_and_dtypes(argument, said):
    with refused(said):
        load_model(TINY_MODEL, verbose=False, **argument)


def test_no_gpu_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused("device must be one of 'auto', 'cpu', got 'cuda'"):
        load_model(TINY_MODEL, device="cuda")
    assert load_model(TINY_MODEL, verbose=False).device.type == "cpu"


# What a model is asked --------------------------------------------------------------------------------------------


def test_prompts_of_three_kinds(tiny):
    assert tiny.encode("a cat") == tiny.tokenizer("a cat")["input_ids"]
    assert tiny.encode([5, 6, 7]) == [5, 6, 7]
    messages = [{"role": "user", "content": "hello"}]
    text = tiny.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert "hello" in text
    assert tiny.encode(messages) == tiny.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "Cannot use chat template functions"),
        ("{% for message in messages %}{{ message", "unexpected end of template"),
        ("{{ nothing.there.at.all }}", "'nothing' is undefined"),
        ("{{ raise_exception('first line\nsecond') }}", "first line second"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 // 0 }}", "division"),
    ],
)
def test_templates_that_do_not_work(template, said, spoilt):
    (spoilt / "chat_template.jinja").unlink()
    if template:
        write(spoilt, "chat_template.jinja", template)
    model = load(spoilt)
    assert model.checked_ids("a text needs no template")
    with refused(rf"spoilt has no chat template for these messages \(.*{said}") as caught:
        model.checked_ids([{"role": "user", "content": "hello"}])
    assert str(caught.value).endswith(": pass a text")
    assert caught.value.__suppress_context__


def test_messages_without_content(tiny, monkeypatch):
    messages = [{"role": "assistant", "content": None}, {"role": "user", "content": "hello"}]
    with refused("has no chat template for these messages"):
        tiny.checked_ids(messages)
    monkeypatch.setattr(
        tiny.tokenizer, "chat_template", "{% for m in messages %}{{ m.content or 'nothing' }}{% endfor %}"
    )
    assert tiny.checked_ids(messages) == tiny.encode("nothinghello")


@pytest.mark.parametrize(("eos", "expected"), [(3, {3}), ([3, 5], {3, 5}), (None, {9})])
def test_end_of_text_tokens(tiny, eos, expected, monkeypatch):
    tokenizer = type("Tokenizer", (), {"eos_token_id": 9})()
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", eos)
    assert Model(tiny.module, tokenizer, "", "").eos_token_ids == expected
    monkeypatch.setattr(tokenizer, "eos_token_id", None, raising=False)
    assert Model(tiny.module, tokenizer, "", "").eos_token_ids == (expected if eos else frozenset())


def test_the_module_wants_its_pages(tiny):
    with refused(r"call it with pages=\.\.\., as pagedlab\.LLM does"):
        tiny.module(torch.tensor([[1, 2]]))


def test_stock_attention_ends_with_its_block(tiny):
    with tiny.stock_attention() as module:
        assert module(torch.tensor([[1, 2]])).logits.shape == (1, 2, tiny.vocab_size)
    with pytest.raises(RuntimeError, match="inside"), tiny.stock_attention():
        raise RuntimeError("inside")
    with refused("pages"):
        tiny.module(torch.tensor([[1, 2]]))


# The same logits and tokens as transformers --------------------------------------------------------------------------


def error_on_pages(model):
    """The relative error of the logits on pages."""
    rows = [list(range(20, 37)), [7, 8, 9], [11] * 8]
    expected = [plain_logits(model, row) for row in rows]
    difference = torch.cat(paged_logits(model, rows)) - torch.cat(expected)
    return float(difference.norm() / torch.cat(expected).norm())


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 1e-5), ("bfloat16", 0.05)])
def test_the_same_logits_on_pages(dtype, bound):
    assert error_on_pages(load(TINY_MODEL, dtype=dtype)) < bound


@pytest.mark.qwen
def test_real_qwens_logits_on_pages(qwen):
    assert error_on_pages(qwen) < 1e-5


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"num_key_value_heads": 1, "attention_bias": True}),
    ],
)
def test_the_same_tokens_as_generate(kind, changes, tmp_path, hugging_face):
    random_checkpoint(tmp_path, kind, **changes)
    model = load(tmp_path)
    prompts = [[7, 8, 9], list(range(20, 51)), [11] * 16]
    expected = [hugging_face(model, prompt, 16) for prompt in prompts]
    assert len({tuple(ids) for ids in expected}) == 3, "what this model says does not depend on its prompt"
    for backend in BACKENDS:
        llm = LLM(model, block_size=8, num_blocks=32, attention_backend=backend)
        outputs = ids_of(llm.generate(prompts, SamplingParams(max_tokens=16)))
        assert outputs == expected, backend


def test_weights_in_several_files(tmp_path, tiny):
    with tiny.stock_attention() as module:
        module.save_pretrained(tmp_path, max_shard_size="1MB")
    tiny.tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = load(tmp_path, dtype="float32")
    for name, weight in again.module.state_dict().items():
        assert torch.equal(weight, tiny.module.state_dict()[name])
    next(tmp_path.glob("*.safetensors")).unlink()
    with refused("cannot load"):
        load(tmp_path)


def write_gguf(path, model):
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


def test_a_gguf_file_is_the_same_model(tmp_path, tiny, hugging_face):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny)
    model = load(path, dtype="float32")
    assert model.name == "tiny.gguf"
    weights = model.module.state_dict()
    for name, weight in tiny.module.state_dict().items():
        assert torch.equal(weights[name], weight), name
    text = "Once upon a time there was a library."
    assert model.encode(text) == tiny.encode(text)
    output = output_of(LLM(model, num_blocks=16), text, exactly(16))
    assert output.token_ids == hugging_face(tiny, tiny.encode(text), 16)[:16]


# Real Qwen ---------------------------------------------------------------------------------------------------------


@pytest.mark.qwen
def test_real_qwen_is_what_spec_says(qwen):
    cache = qwen.kv_cache(1, 16)
    assert cache.keys.shape == (24, 1, 16, 2, 64)
    assert cache.bytes_per_block == 2 * 192 * 1024  # in fp32; bf16 takes half
    assert qwen.eos_token_ids
    assert qwen.decode(qwen.encode("Why is the sky blue?")) == "Why is the sky blue?"
    assert qwen.encode([{"role": "user", "content": "hi"}])[-3:] == qwen.encode("<|im_start|>assistant\n")


@pytest.mark.qwen
@pytest.mark.timeout(900)
def test_a_real_gguf_file(qwen_folder):
    """Unpacking half a gigabyte takes a minute or more, so it must be asked for."""
    path = os.environ.get("PAGEDLAB_TEST_GGUF")
    if not path:
        pytest.skip("PAGEDLAB_TEST_GGUF names no .gguf file")
    model = load(path)
    prompt = "The capital of France is"
    output = output_of(LLM(model, num_blocks=16), prompt, SamplingParams(max_tokens=8))
    print(f"{model.name}: {prompt}{output.text}")
    assert "Paris" in output.text
    assert model.eos_token_ids
