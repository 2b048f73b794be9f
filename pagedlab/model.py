"""Qwen and friends: finding, fetching and loading a checkpoint, and the hook by which its attention runs on pages.

The stock transformers module stays as it is. It lets an attention function be chosen by name and passes it
the keyword arguments of the forward call; ours takes `pages` from there, stores the new keys and values by
slot, and attends through the block tables. All tokens of all requests travel as one row of length T.
"""

import gc
import json
import operator
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kv_cache import KVCache
from pagedlab.shipped import data_folder
from pagedlab.validation import integer, one_of, shown

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
TINY_MODEL = data_folder("tiny-qwen2")
FILES = ["model*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]  # what a checkpoint has on the hub
SILENT = 10**8  # bytes of weights that are read before anybody wonders


@dataclass(frozen=True)
class Pages:
    """What the attention hook needs beside q, k and v: where KV lives, for whom, and how to attend to it."""

    cache: KVCache
    batch: Batch
    attend: PagedAttention


def paged_hook(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    pages: Pages | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer on pages: query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, D]."""
    if pages is None:
        raise ValueError("this model attends through pagedlab's blocks: call it with pages=..., as pagedlab.LLM does")
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
    batch, layer = pages.batch, int(module.layer_idx)  # type: ignore[arg-type]
    pages.cache.write(layer, k, v, batch.slots)
    keys, values = pages.cache.keys[layer], pages.cache.values[layer]
    out = pages.attend(q, keys, values, batch.block_tables, batch.seq_lens, batch.query_starts, scaling)
    return out.unsqueeze(0), None


@dataclass
class Model:
    """A checkpoint in memory: the transformers module, its tokenizer, and which it is and why."""

    module: Any
    tokenizer: Any
    name: str
    reason: str
    num_ranks: int = 1  # that share its heads, see distributed/
    new_cache: Callable[..., KVCache] = KVCache

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def vocab_size(self) -> int:
        return self.module.config.vocab_size

    @property
    def max_length(self) -> int:
        """Positions that the model was made for: prompt and new tokens together."""
        return self.module.config.max_position_embeddings

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text: the generation config's, else the tokenizer's. `ValueError` if they are no tokens."""
        eos = self.module.generation_config.eos_token_id
        ids = eos if isinstance(eos, list) else [self.tokenizer.eos_token_id if eos is None else eos]
        return frozenset(
            integer(f"eos_token_id in {self.name}/generation_config.json", i) for i in ids if i is not None
        )

    def kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """A cache of this model's shape, dtype and device."""
        config, kind = self.module.config, (self.module.dtype, self.device)
        num_kv_heads = config.num_key_value_heads // self.num_ranks
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return self.new_cache(config.num_hidden_layers, num_blocks, block_size, num_kv_heads, head_dim, *kind)

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """Run the model over a ragged batch, storing KV in `cache`: logits [R, V] of the rows asked for."""
        with torch.inference_mode():
            return self.module(
                input_ids=batch.token_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.last_rows,
                pages=Pages(cache, batch, attend),
            ).logits[0]

    @contextmanager
    def stock_attention(self) -> Iterator[Any]:
        """The transformers module with its own attention and cache, for `generate`; paged again afterwards."""
        self.module.set_attn_implementation("sdpa")
        try:
            yield self.module
        finally:
            self.module.set_attn_implementation("pagedlab")

    def encode(self, prompt: str | list[int] | list[dict[str, str]]) -> list[int]:
        """Token ids of a text, of chat messages (through the model's chat template), or ids as they are."""
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        messages = isinstance(prompt, list) and all(isinstance(m, dict) and {"role", "content"} <= {*m} for m in prompt)
        if messages and prompt:
            try:
                text = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            except Exception as error:  # jinja's, the template's own, or transformers' where there is no template
                lacks = f"{self.name} has no chat template that takes these messages ({in_short(error)})"
                raise ValueError(f"{lacks}: give each a text as content, or pass a text as the prompt") from None
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return prompt  # type: ignore[return-value]

    def checked_ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt that this model can continue; `ValueError` says what is wrong with any other."""
        try:
            if isinstance(prompt, (set, frozenset, bytes, bytearray)):
                raise TypeError("no order, or no token ids")
            ids: list[Any] = list(self.encode(prompt))
            if [*map(type, ids)].count(int) != len(ids):
                ids = [operator.index(None if isinstance(i, bool) else i) for i in ids]  # type: ignore[arg-type]
        except TypeError:
            kinds = "a text, a list of whole numbers (token ids), or a list of chat messages (role and content)"
            raise ValueError(f"a prompt is {kinds}, got {shown(prompt)}") from None
        if not ids:
            raise ValueError("the prompt is empty: give at least one token to continue")
        with suppress(struct.error):  # at one of more than 64 bits; without signs, one below 0 is among the largest
            largest = np.frombuffer(struct.pack(f"{len(ids)}q", *ids), np.uint64).max()
            if largest < self.vocab_size and len(ids) < self.max_length:
                return ids
        if outside := [i for i in ids if not 0 <= i < self.vocab_size]:
            known = f"is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}"
            raise ValueError(f"token id {outside[0]} {known}")
        takes = f"{self.name} takes {self.max_length}, new ones included"
        raise ValueError(f"the prompt has {len(ids)} tokens and {takes}: shorten it")

    def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens, without special ones."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def close(self) -> None:
        """Nothing to end: this model runs in this process alone."""


def is_one_prompt(prompts: Any) -> bool:
    """A text, a list of ids and a list of messages are one prompt; a list of any of these is several."""
    several = isinstance(prompts, (list, tuple, np.ndarray))
    return not several or (len(prompts) > 0 and isinstance(prompts[0], (dict, int, np.integer)))


def choose_model(name: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Return which checkpoint to load and why: the argument, else what PAGEDLAB_MODEL names, else Qwen2.5-0.5B-Instruct
    if it lies whole in the local Hugging Face cache, else the tiny model shipped with pagedlab. No network is asked.
    """
    if name is not None:
        return os.fspath(name) if isinstance(name, os.PathLike) else str(name), "you asked for it"
    if os.environ.get("PAGEDLAB_MODEL"):
        return os.environ["PAGEDLAB_MODEL"], "PAGEDLAB_MODEL says so"
    with suppress(ValueError):
        _locate(DEFAULT_MODEL)
        return DEFAULT_MODEL, "it is in the local Hugging Face cache"
    fetch = "python -m pagedlab --download or pagedlab.model.download() fetches it"
    return str(TINY_MODEL), f"{DEFAULT_MODEL} is not on this machine: {fetch}"


def download(name: str = DEFAULT_MODEL) -> None:
    """Fetch a checkpoint from the Hugging Face hub into the local cache, saying first what it costs: see hub/."""
    from pagedlab.hub import fetch  # not before: the rest asks no network

    fetch(name)


@contextmanager
def no_collections() -> Iterator[None]:
    """While transformers is imported: what it brings stays, and to search it for garbage takes a quarter longer."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@no_collections()
def load_model(
    name: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    verbose: bool = True,
    prepare: Callable[[Any], None] | None = None,
) -> Model:
    """Load a Qwen2-, Qwen3- or Llama-shaped checkpoint by hub id, folder or .gguf file, and say which and why.

    device "auto": the GPU if there is one. dtype "auto": bfloat16 on a GPU, float32 on a CPU. `ValueError` if the name
    leads to no usable checkpoint. Weights are safetensors or GGUF; nothing is fetched, and no code from the hub is run.
    prepare: what to do with the transformers module before it is moved to the device.
    """
    import transformers

    transformers.AttentionInterface.register("pagedlab", paged_hook)
    source, reason = choose_model(name)
    target, kind = _where_to_run(device, dtype)
    how = {"dtype": kind, "attn_implementation": "pagedlab", "use_safetensors": Path(source).suffix != ".gguf" or None}
    how |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    module, report = _read("ModelForCausalLM", source, bar=verbose, **how)
    tokenizer = _read("Tokenizer", source)  # after the weights: no bar tells of it
    short = Path(source).name if os.path.exists(os.path.expanduser(source)) else source
    model = Model(module, tokenizer, short, reason)
    if problem := _misfit(model, report):
        raise ValueError(f"{source!r} {problem}")
    if prepare:
        prepare(module)
    module.to(target).eval()
    if verbose:
        print(f"model: {model.name} on {target} in {str(kind).removeprefix('torch.')} ({reason})")
    return model


def read_config(source: str) -> Any:
    """The config of a checkpoint, without its weights; `ValueError` if there is none."""
    return _read("Config", source)


def _read(kind: str, source: str, bar: bool = False, **options: Any) -> Any:
    """What one of transformers' Auto classes reads, without its reports; all that it raises becomes `ValueError`.

    bar: show its bar of the weights, if they are large and somebody looks; it goes when it is full.
    """
    import transformers
    from transformers.utils import logging

    where = _locate(source)
    weights = Path(where["pretrained_model_name_or_path"]).glob("*.safetensors")
    size = sum(file.stat().st_size for file in weights if file.is_file())
    look = {"leave": False, "disable": None if bar and size > SILENT else True}
    hook = logging.set_tqdm_hook(lambda new_bar, args, named: new_bar(*args, **named | look))
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        return getattr(transformers, f"Auto{kind}").from_pretrained(**where, **options)
    except Exception as error:  # transformers, safetensors, tokenizers and gguf each raise kinds of their own
        what = f"the {kind.partition('For')[0].lower()} of {source!r}"
        raise ValueError(f"cannot load {what}, fetch it again or name another: {in_short(error)}") from None
    finally:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)


def _locate(source: str) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained` for a hub id, folder or .gguf file; `ValueError` if it is none."""
    from huggingface_hub import snapshot_download

    path, hint = Path(os.path.expanduser(source)), "name a folder saved by save_pretrained"
    if path.suffix == ".gguf" and path.is_file():
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if not os.path.isdir(path) or path.suffix == ".gguf":
        if path.suffix == ".gguf" or source.count("/") > 1 or source.startswith((".", "/", "~")):
            raise ValueError(f"there is no {source!r}: name a folder, a .gguf file or a hub id like {DEFAULT_MODEL}")
        hint = f"python -m pagedlab --download {source} fetches it"
        try:
            path = Path(snapshot_download(source, allow_patterns=FILES, ignore_patterns="*/*", local_files_only=True))
        except FileNotFoundError:
            raise ValueError(f"{source!r} is no folder and not in the local Hugging Face cache: {hint}") from None
    for kind, name in (("config", "config.json"), ("weights", "*.safetensors"), ("tokenizer", "tokenizer.*")):
        if not any(file.is_file() for file in path.glob(name)):
            raise ValueError(f"{source!r} holds no {kind} ({name}): {hint}")
    for file in path.glob("*config.json"):
        try:
            dict(**json.loads(file.read_bytes()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{source!r} has a damaged {file.name}, fetch it again: {in_short(error)}") from None
    return {"pretrained_model_name_or_path": str(path)}


def _misfit(model: Model, report: dict[str, Any]) -> str | None:
    """What keeps a model that transformers has loaded from being what its files say, or from running on pages."""
    config = model.module.config
    layers = getattr(config, "layer_types", None) or ["sliding" if getattr(config, "sliding_window", None) else "full"]
    if getattr(config, "num_key_value_heads", None) is None:
        return f"is a {config.model_type} model; pagedlab runs those built like Qwen2, 3 or Llama"
    if any(not kind.startswith("full") for kind in layers):
        return "has layers with a sliding window; pagedlab runs models that attend to everything"
    for fault in ("missing", "unexpected", "mismatched"):  # transformers would draw random numbers, or look away
        if keys := sorted(str(key).replace("torch.Size", "") for key in report[f"{fault}_keys"]):
            return f"has {fault} weights, {len(keys)} in all, first {keys[0]}: fetch config.json and weights again"
    for name, weight in model.module.named_parameters():  # a sum is one quick pass, and float16's own may overflow
        if not (weight.sum().isfinite() or weight.isfinite().all()):
            return f"has NaN or infinite weights, the first in {name}: fetch them again"
    if (top := max([len(model.tokenizer) - 1, *model.eos_token_ids])) >= config.vocab_size:
        return f"has a token id {top} and {config.vocab_size} embeddings: its tokenizer or eos_token_id does not fit"
    return None


def _where_to_run(device: str, dtype: str | torch.dtype) -> tuple[torch.device, torch.dtype]:
    """What "auto" means: the GPU in bfloat16 if there is one, else the CPU in float32."""
    gpus = ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))] if torch.cuda.is_available() else []
    name = "device" if gpus else "device, where torch sees no GPU,"
    place = one_of(name, str(device), ("auto", "cpu", *gpus)).replace("auto", [*gpus, "cpu"][0])
    kind = one_of("dtype", str(dtype).removeprefix("torch."), ("auto", "float32", "float16", "bfloat16", "float64"))
    return torch.device(place), getattr(torch, kind.replace("auto", "float32" if place == "cpu" else "bfloat16"))


def in_short(error: BaseException) -> str:
    """What an error says, in a line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()).partition(". ")[0][:200]
