"""Find a checkpoint and read it: a hub id, a folder or a .gguf file.

No network is asked, and no code from a hub is run.
"""

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from pagedlab.shipped import data_folder
from pagedlab.validation import in_short, one_of

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
TINY_MODEL = data_folder("tiny-qwen2")
# what a checkpoint has on the hub
FILES = [
    "model*.safetensors",
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
]
PROGRESS_BAR_ABOVE = 100_000_000  # bytes of weights


def choose_model(name: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Return which checkpoint to load, and why.

    Args:
        name: the checkpoint; None for the one that PAGEDLAB_MODEL names, else Qwen2.5-0.5B-Instruct
            if it is complete in the local Hugging Face cache, else the tiny model shipped with
            pagedlab.
    """
    if name is not None:
        return os.fspath(name) if isinstance(name, os.PathLike) else str(name), "you asked for it"
    if os.environ.get("PAGEDLAB_MODEL"):
        return os.environ["PAGEDLAB_MODEL"], "PAGEDLAB_MODEL says so"
    with suppress(ValueError):
        locate(DEFAULT_MODEL)
        return DEFAULT_MODEL, "it is in the local Hugging Face cache"
    fetch = "python -m pagedlab --download or pagedlab.hub.download() fetches it"
    return str(TINY_MODEL), f"{DEFAULT_MODEL} is not on this machine: {fetch}"


@contextmanager
def no_collections() -> Iterator[None]:
    """Switch the garbage collector off: an import of transformers leaves none, and takes a quarter
    longer with it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def where_to_run(device: str, dtype: str | torch.dtype) -> tuple[torch.device, torch.dtype]:
    """What "auto" means: the GPU in bfloat16 if there is one, else the CPU in float32."""
    gpus = (
        ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.cuda.is_available()
        else []
    )
    name = "device" if gpus else "device, where torch sees no GPU,"
    place = one_of(name, str(device), ("auto", "cpu", *gpus)).replace("auto", [*gpus, "cpu"][0])
    kind = one_of(
        "dtype",
        str(dtype).removeprefix("torch."),
        ("auto", "float32", "float16", "bfloat16", "float64"),
    )
    return torch.device(place), getattr(
        torch, kind.replace("auto", "float32" if place == "cpu" else "bfloat16")
    )


def read_config(source: str) -> Any:
    """The config of a checkpoint, without its weights; `ValueError` if there is none."""
    return read("Config", source)


def read(kind: str, source: str, bar: bool = False, **options: Any) -> Any:
    """Call `from_pretrained` of one of transformers' Auto classes, without its reports.

    Args:
        kind: "Config", "Tokenizer" or "ModelForCausalLM".
        source: a hub id, folder or .gguf file.
        bar: show a progress bar if the weights are large and the output is a terminal.
        options: of `from_pretrained`.

    Raises:
        ValueError: Of one line, for whatever it raises.
    """
    import transformers
    from transformers.utils import logging

    where = locate(source)
    weights = Path(where["pretrained_model_name_or_path"]).glob("*.safetensors")
    size = sum(file.stat().st_size for file in weights if file.is_file())
    look = {"leave": False, "disable": None if bar and size > PROGRESS_BAR_ABOVE else True}
    hook = logging.set_tqdm_hook(lambda new_bar, args, named: new_bar(*args, **named | look))
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        return getattr(transformers, f"Auto{kind}").from_pretrained(**where, **options)
    except (
        Exception
    ) as error:  # transformers, safetensors, tokenizers and gguf each raise kinds of their own
        if error.args == (
            "pagedlab",
        ):  # an architecture that looks attention up in a table of its own
            alike = "pagedlab runs models built like Qwen2, 3 or Llama"
            raise ValueError(
                f"{source!r} has an attention that cannot be replaced; {alike}"
            ) from None
        what = f"the {kind.partition('For')[0].lower()} of {source!r}"
        raise ValueError(
            f"cannot load {what}, fetch it again or name another: {in_short(error)}"
        ) from None
    finally:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)


def locate(source: str) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained` for a hub id, folder or .gguf file; `ValueError` if it
    is none.
    """
    from huggingface_hub import snapshot_download

    path, hint = Path(os.path.expanduser(source)), "name a folder saved by save_pretrained"
    if path.suffix == ".gguf" and path.is_file():
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if not os.path.isdir(path) or path.suffix == ".gguf":
        if path.suffix == ".gguf" or source.count("/") > 1 or source.startswith((".", "/", "~")):
            raise ValueError(
                f"there is no {source!r}: name a folder, a .gguf file or a hub id like "
                f"{DEFAULT_MODEL}"
            )
        hint = f"python -m pagedlab --download {source} fetches it"
        try:
            path = Path(
                snapshot_download(
                    source, allow_patterns=FILES, ignore_patterns="*/*", local_files_only=True
                )
            )
        except FileNotFoundError:
            raise ValueError(
                f"{source!r} is no folder and not in the local Hugging Face cache: {hint}"
            ) from None
    for kind, name in (
        ("config", "config.json"),
        ("weights", "*.safetensors"),
        ("tokenizer", "tokenizer.*"),
    ):
        if not any(file.is_file() for file in path.glob(name)):
            raise ValueError(f"{source!r} holds no {kind} ({name}): {hint}")
    for file in path.glob("*config.json"):
        try:
            dict(**json.loads(file.read_bytes()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"{source!r} has a damaged {file.name}, fetch it again: {in_short(error)}"
            ) from None
    return {"pretrained_model_name_or_path": str(path)}
