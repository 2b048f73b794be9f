"""Loading: find a checkpoint and read it. It is a hub id, a folder or a .gguf file.

Nothing here uses the network or runs code from a hub.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from pagedlab.arguments import in_short, one_of, shown
from pagedlab.extras import require
from pagedlab.shipped import DEFAULT_MODEL, data_folder

TINY_MODEL = data_folder("tiny-qwen2")
MODELS = f"a folder, a .gguf file or a hub id like {DEFAULT_MODEL}"  # what names a model
HINT = f"name {MODELS}; `pagedlab download` fetches a hub id"
FILES = ["model*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]  # of a hub's checkpoint
PARTS = {"config": "config.json", "weights": "*.safetensors", "tokenizer": "tokenizer.*"}
DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")
# What runs. tests/test_architectures.py compares the tokens of each with those of transformers.
MODEL_TYPES = frozenset({
    "afmoe", "apertus", "arcee", "aria_text", "beam", "bitnet", "cohere", "cohere2",
    "cohere2_moe", "cwm", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo",
    "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "granite", "granitemoe",
    "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax",
    "internlm3", "iquestcoder", "jais2", "kolibri1", "laguna", "llama", "mellum", "mimo_v2_flash",
    "minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mixtral",
    "nanochat", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "starcoder2",
})  # fmt: skip


def choose_model(name: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Choose a checkpoint.

    Args:
        name: the checkpoint. None is the one that PAGEDLAB_MODEL names. Without that variable it is
            Qwen2.5-0.5B-Instruct if the local Hugging Face cache has it, else the tiny model that
            pagedlab ships.

    Returns:
        The checkpoint, and why it was chosen.

    Raises:
        ValueError: If the name is no text and no path.
    """
    if name is not None:
        if not isinstance(name, (str, os.PathLike)) or not str(name):
            raise ValueError(f"model must be {MODELS}, got {shown(name)}")
        return str(os.fspath(name)), "you asked for it"
    if os.environ.get("PAGEDLAB_MODEL"):
        return os.environ["PAGEDLAB_MODEL"], "PAGEDLAB_MODEL says so"
    with suppress(ValueError):
        locate(DEFAULT_MODEL)
        return DEFAULT_MODEL, "it is in the local Hugging Face cache"
    fetch = "`pagedlab download` fetches it"
    return str(TINY_MODEL), f"the real Qwen is not on this machine; {fetch}"


@contextmanager
def no_collections() -> Iterator[None]:
    """Switch the garbage collector off: it looks at all objects again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def where_to_run(device: str, dtype: str | torch.dtype) -> tuple[torch.device, torch.dtype]:
    """Return the device and the dtype.

    Args:
        device: "auto" is the GPU if there is one, else the CPU.
        dtype: "auto" is bfloat16 on a GPU and float32 on a CPU.

    Raises:
        ValueError: If there is no such device or dtype.
    """
    numbered = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    gpus = ["cuda", *numbered] if numbered else []
    name = "device" if gpus else "device (torch sees no GPU)"
    place = one_of(name, str(device), ("auto", "cpu", *gpus))
    kind = one_of("dtype", str(dtype).removeprefix("torch."), DTYPES)
    if place == "auto":
        place = "cuda" if gpus else "cpu"
    if kind == "auto":
        kind = "float32" if place == "cpu" else "bfloat16"
    return torch.device(place), getattr(torch, kind)


def read_config(source: str) -> Any:
    """Return the config of a checkpoint. No weights are read.

    Raises:
        ValueError: If there is none, or if pagedlab does not run its model.
    """
    config = read("Config", source)
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"{source!r} is a {config.model_type} model; pagedlab runs llama, mistral, qwen2, "
            f"qwen3 and others in pagedlab.loading.MODEL_TYPES, for instance {DEFAULT_MODEL}"
        )
    _check_attention(source, config.to_dict())
    return config


def _check_attention(source: str, config: dict[str, Any]) -> None:
    """Raise `ValueError` if a layer does not see all tokens, or if RoPE depends on other rows."""
    kinds = set(config.get("layer_types") or ())
    if not kinds and config.get("sliding_window"):
        kinds = {"sliding_attention"}
    if "longrope" in str(config.get("rope_parameters")):
        kinds.add("longrope position embeddings")  # which depend on the longest prompt in a batch
    kinds.discard("full_attention")
    if kinds:
        raise ValueError(
            f"{source!r} has layers with {', '.join(sorted(kinds))}; pagedlab runs models with "
            f"full attention and other positions in every layer, for instance {DEFAULT_MODEL}"
        )


def read(kind: str, source: str, **options: Any) -> Any:
    """Call `from_pretrained` of one of the Auto classes of transformers, without its log messages.

    Args:
        kind: "Config", "Tokenizer" or "ModelForCausalLM".
        source: a hub id, a folder or a .gguf file.
        options: further arguments of `from_pretrained`.

    Raises:
        ValueError: If the checkpoint cannot be read. The message has one line.
    """
    import transformers  # slow to import: only loading needs it

    arguments = locate(source)
    auto_class = getattr(transformers, f"Auto{kind}")
    with _quiet_transformers():
        try:
            return auto_class.from_pretrained(**arguments, trust_remote_code=False, **options)
        except Exception as error:  # each library under transformers has errors of other classes
            reason = in_short(error)
    what = f"the {kind.partition('For')[0].lower()} of {source!r}"
    raise ValueError(f"cannot load {what}, fetch it again or name another: {reason}")


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Switch the log messages and progress bars of transformers off."""
    from transformers.utils import logging  # slow to import: only loading needs it

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def locate(source: str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a hub id, a folder or a .gguf file.

    Raises:
        ValueError: If there is no such checkpoint, or if parts of it are missing.
        MissingExtra: If it is a .gguf file, and the package that reads these is not installed.
    """
    path = Path(os.path.expanduser(source))
    if path.suffix == ".gguf" and os.path.isfile(path):
        require("gguf", "gguf", "accelerate")
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    # `path.is_dir` raises if the name is too long
    if path.suffix == ".gguf" or not os.path.isdir(path):
        path = _cached_folder(source)
    for part, name in PARTS.items():
        if not any(file.is_file() for file in path.glob(name)):
            raise ValueError(f"{source!r} holds no {part} ({name}): {HINT}")
    return {"pretrained_model_name_or_path": str(path)}


def _cached_folder(name: str) -> Path:
    """Return the folder of a hub id in the local Hugging Face cache."""
    from huggingface_hub import snapshot_download  # slow to import: only loading needs it

    try:
        folder = snapshot_download(
            name, allow_patterns=FILES, ignore_patterns="*/*", local_files_only=True
        )
    except (FileNotFoundError, ValueError):  # it is not there, or no hub id at all
        raise ValueError(
            f"{name!r} is no folder, no .gguf file and not in the local Hugging Face cache: " + HINT
        ) from None
    return Path(folder)
