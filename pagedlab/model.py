"""Qwen and friends: finding a checkpoint, loading it, and the hook through which its attention runs on pages.

The stock transformers module stays as it is. It lets an attention function be chosen by name and passes it
the keyword arguments of the forward call; ours takes `pages` from there, stores the new keys and values by
slot, and attends through the block tables. All tokens of all requests travel as one row of length T.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pagedlab.batch import Batch
from pagedlab.kv_cache import KVCache
from pagedlab.shipped import data_folder

if TYPE_CHECKING:
    from pagedlab.attention import PagedAttention

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
TINY_MODEL = data_folder("tiny-qwen2")
HUB_SECONDS = 3.0  # how long a hub may take to answer before the shipped model is taken instead


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
        """Tokens that end a text: the generation config's, else the tokenizer's."""
        eos = self.module.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None else eos
        return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)

    def kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """A cache of this model's shape, dtype and device."""
        config = self.module.config
        num_kv_heads = config.num_key_value_heads // self.num_ranks
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return self.new_cache(
            config.num_hidden_layers, num_blocks, block_size, num_kv_heads, head_dim, self.module.dtype, self.device
        )

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
        if isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt):
            if not self.tokenizer.chat_template:
                raise ValueError(f"{self.name} has no chat template: pass the prompt as a text instead of messages")
            text = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return prompt  # type: ignore[return-value]

    def checked_ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt that this model can continue; `ValueError` says what is wrong with any other."""
        try:
            ids = [operator.index(i) for i in self.encode(prompt)]
        except TypeError:
            raise ValueError(
                "a prompt is a text, a list of whole numbers (token ids), or a list of chat messages "
                f"({{'role': ..., 'content': ...}}), got {str(prompt)[:60]!r}"
            ) from None
        if not ids:
            raise ValueError("the prompt is empty: give at least one token to continue")
        size = self.vocab_size
        if min(ids) < 0 or max(ids) >= size:
            outside = next(i for i in ids if not 0 <= i < size)
            raise ValueError(f"token id {outside} is not in the vocabulary: ids go from 0 to {size - 1}")
        if len(ids) >= self.max_length:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and {self.name} takes {self.max_length}, "
                "new ones included: shorten it"
            )
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens, without special ones."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def close(self) -> None:
        """Nothing to end: this model runs in this process alone."""


def is_one_prompt(prompts: Any) -> bool:
    """A text, a list of ids and a list of messages are one prompt; a list of any of these is several."""
    if not isinstance(prompts, (list, tuple, np.ndarray)):
        return True
    return len(prompts) > 0 and isinstance(prompts[0], (dict, int, np.integer))


def choose_model(name: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Return which checkpoint to load and why.

    The argument first, then the environment variable PAGEDLAB_MODEL, then Qwen2.5-0.5B-Instruct if it is
    cached or the hub answers within seconds, then the tiny model shipped with pagedlab.
    """
    if name is not None:
        return os.fspath(name), "you asked for it"
    if os.environ.get("PAGEDLAB_MODEL"):
        return os.environ["PAGEDLAB_MODEL"], "PAGEDLAB_MODEL says so"
    if _is_cached(DEFAULT_MODEL):
        return DEFAULT_MODEL, "it is in the local Hugging Face cache"
    problem = _hub_problem(DEFAULT_MODEL)
    if problem is None:
        return DEFAULT_MODEL, "the Hugging Face hub has it"
    return str(TINY_MODEL), f"{DEFAULT_MODEL} is not cached and {problem}"


def load_model(
    name: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    verbose: bool = True,
    prepare: Callable[[Any], None] | None = None,
) -> Model:
    """Load a Qwen2-, Qwen3- or Llama-shaped checkpoint by hub id, folder or .gguf file, and say which and why.

    device "auto": the GPU if there is one. dtype "auto": bfloat16 on a GPU, float32 on a CPU. `ValueError` if
    the name leads to no usable checkpoint. Weights are safetensors or GGUF; no code from the hub is run.
    prepare: what to do with the transformers module before it is moved to the device.
    """
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    AttentionInterface.register("pagedlab", paged_hook)
    source, reason = choose_model(name)
    target = _device(device)
    kind = _dtype(dtype, target)
    where = _locate(source)
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            **where,
            dtype=kind,
            attn_implementation="pagedlab",
            use_safetensors=None if "gguf_file" in where else True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers, safetensors, tokenizers and gguf each raise kinds of their own
        raise ValueError(f"cannot load {source!r}: {_first_sentence(error)}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    module, report = loaded
    if report["missing_keys"]:  # transformers would run it, with random numbers in their place
        names = sorted(report["missing_keys"])
        raise ValueError(f"{source!r} lacks {len(names)} of the model's weights, the first is {names[0]}")
    _refuse_other_attention(module.config, source)
    if prepare:
        prepare(module)
    module.to(target).eval()
    model = Model(module, tokenizer, _short_name(source), reason)
    if verbose:
        print(f"model: {model.name} on {target} in {str(kind).removeprefix('torch.')} ({reason})")
    return model


def _locate(source: str) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained` for a hub id, folder or .gguf file; `ValueError` if it is none."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"there is no GGUF file {source!r}")
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{source!r} holds no config.json: name a folder saved by save_pretrained")
        if not any(path.glob("*.safetensors")):
            raise ValueError(f"{source!r} holds no weights: a *.safetensors file must lie beside config.json")
        if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
            raise ValueError(f"{source!r} holds no tokenizer: tokenizer.json must lie beside config.json")
        return {"pretrained_model_name_or_path": str(path)}
    if source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise ValueError(
            f"there is no folder {source!r}: name a folder, a .gguf file or a hub id such as {DEFAULT_MODEL}"
        )
    cached = _is_cached(source)
    problem = None if cached else _hub_problem(source)
    if problem:
        raise ValueError(f"{source!r} is no folder here, is not in the local Hugging Face cache, and {problem}")
    return {"pretrained_model_name_or_path": source, "local_files_only": cached}


def read_config(source: str) -> Any:
    """The config of a checkpoint, without its weights; `ValueError` if there is none."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(**_locate(source))
    except OSError as error:
        raise ValueError(f"cannot read the config of {source!r}: {_first_sentence(error)}") from error


def _is_cached(hub_id: str) -> bool:
    """Whether the weights, not just the config, lie in the local Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache

    names = ("model.safetensors", "model.safetensors.index.json")
    return any(isinstance(try_to_load_from_cache(hub_id, name), str) for name in names)


def _hub_problem(hub_id: str) -> str | None:
    """Why the hub cannot serve this model, in a few words; None if it can. Takes a few seconds at most."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids asking the hub"
    try:
        HfApi().model_info(hub_id, timeout=HUB_SECONDS)
    except RepositoryNotFoundError:
        return "the hub has no public model of that name"
    except Exception as error:  # whatever keeps it from answering, the reader is better served without it
        return f"the hub did not answer ({type(error).__name__})"
    return None


def _refuse_other_attention(config: Any, source: str) -> None:
    """Raise `ValueError` for a model whose attention is not the plain causal one that `paged_hook` computes."""
    if getattr(config, "num_key_value_heads", None) is None:
        raise ValueError(f"{source!r} is a {config.model_type} model; pagedlab runs those built like Qwen2, 3 or Llama")
    layers = getattr(config, "layer_types", None) or ["sliding" if getattr(config, "sliding_window", None) else "full"]
    if any(not kind.startswith("full") for kind in layers):
        raise ValueError(f"{source!r} has layers with a sliding window; pagedlab runs models that attend to everything")


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and "role" in message and "content" in message


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ValueError(f"there is no device {device!r}: use 'auto', 'cpu' or 'cuda'") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' but torch sees no GPU: use 'cpu' or 'auto'")
    return target


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if kind not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"there is no dtype {dtype!r} to run in: use 'auto', 'float32', 'float16' or 'bfloat16'")
    return kind


def _short_name(source: str) -> str:
    return Path(source).name if Path(source).expanduser().exists() else source


def _first_sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
