"""A loaded model, and the hook that makes a stock transformers model attend through block tables.

The transformers module stays as it is. It takes an attention function by name, and passes on the
keyword arguments of its forward call. Ours takes `pages` from there, stores the new keys and values
by slot, and attends through the block tables. The tokens of all requests are one row of length T.
"""

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
from pagedlab.load_trial import NEEDS_PAGES, why_not_on_pages
from pagedlab.loading import (
    DEFAULT_MODEL,
    TINY_MODEL,
    choose_model,
    no_collections,
    read,
    read_config,
    where_to_run,
)
from pagedlab.validation import in_short, integer, shown

__all__ = [
    "DEFAULT_MODEL",
    "TINY_MODEL",
    "Model",
    "Pages",
    "is_one_prompt",
    "load_model",
    "paged_hook",
]

# Arguments that transformers passes to every attention function and that change nothing here:
# positions are in the keys already, and the others say what the module returns.
IGNORED = {
    "cache_position",
    "dropout",  # 0 in a model that is not trained
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "use_cache",
}


@dataclass(frozen=True)
class Pages:
    """What the attention hook needs beside q, k and v.

    Args:
        cache: where keys and values are.
        batch: whose tokens these are.
        attend: the attention function.
    """

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
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer on pages.

    Args:
        module: the layer's attention module.
        query: [1, Hq, T, D].
        key, value: [1, Hkv, T, D].
        attention_mask: must be None: the batch says which token sees which.
        scaling: factor of the scores.
        pages: what `Model.forward` passes on.
        others: other arguments of transformers.

    Returns:
        The output, [1, T, Hq, D], and None in place of attention weights.

    Raises:
        ValueError: For an argument that would change the result.
    """
    if pages is None:
        raise ValueError(NEEDS_PAGES)
    refuse_unknown(module, attention_mask, others)
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    batch = pages.batch
    pages.cache.write(layer, k, v, batch.slots)
    keys = pages.cache.keys[layer]
    values = pages.cache.values[layer]
    out = pages.attend(
        q, keys, values, batch.block_tables, batch.seq_lens, batch.query_starts, scaling
    )
    return out.unsqueeze(0), None


def refuse_unknown(
    module: torch.nn.Module, attention_mask: torch.Tensor | None, others: dict[str, Any]
) -> None:
    """Raise `ValueError` for an argument of an attention call that paged attention does not
    compute.
    """
    if attention_mask is not None:
        raise ValueError("its attention has a mask of its own, and paged attention is causal")
    is_causal = others.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal:
        raise ValueError("its attention is not causal, and paged attention is")
    for name, value in others.items():
        if value is not None and name not in IGNORED and name != "is_causal":
            raise ValueError(f"its attention takes {name}, which paged attention does not compute")


@dataclass
class Model:
    """A checkpoint in memory.

    Args:
        module: the transformers module.
        tokenizer: of transformers.
        name: the hub id, or the folder's name.
        reason: why this one was chosen.
        num_ranks: ranks that share its heads, see distributed/.
        new_cache: makes a KV cache.
    """

    module: Any
    tokenizer: Any
    name: str
    reason: str
    num_ranks: int = 1
    new_cache: Callable[..., KVCache] = KVCache

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def vocab_size(self) -> int:
        return self.module.config.vocab_size

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together that the model was trained for."""
        return self.module.config.max_position_embeddings

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text: the generation config's, else the tokenizer's.

        `ValueError` if they are no tokens.
        """
        eos = self.module.generation_config.eos_token_id
        ids = (
            eos if isinstance(eos, list) else [self.tokenizer.eos_token_id if eos is None else eos]
        )
        return frozenset(
            integer(f"eos_token_id in {self.name}/generation_config.json", i)
            for i in ids
            if i is not None
        )

    def kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """Return a cache of this model's shape, dtype and device."""
        config = self.module.config
        return self.new_cache(
            config.num_hidden_layers,
            num_blocks,
            block_size,
            config.num_key_value_heads // self.num_ranks,
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            self.module.dtype,
            self.device,
        )

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """Run the model over a ragged batch and store its keys and values in the cache.

        Args:
            batch: T tokens of B sequences.
            cache: where keys and values are.
            attend: the attention function.

        Returns:
            The logits [R, V] of the batch's `last_rows`.
        """
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
        """The transformers module with its own attention and cache, for `generate`; paged again
        afterwards.
        """
        self.module.set_attn_implementation("sdpa")
        try:
            yield self.module
        finally:
            self.module.set_attn_implementation("pagedlab")

    def encode(self, prompt: str | list[int] | list[dict[str, str]]) -> list[int]:
        """Token ids of a text, of chat messages (through the model's chat template), or ids as they
        are.
        """
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        messages = isinstance(prompt, list) and all(
            isinstance(m, dict) and {"role", "content"} <= {*m} for m in prompt
        )
        if messages and prompt:
            try:
                text = self.tokenizer.apply_chat_template(
                    prompt, add_generation_prompt=True, tokenize=False
                )
            except (
                Exception
            ) as error:  # jinja's, the template's own, or transformers' where there is no template
                lacks = (
                    f"{self.name} has no chat template that takes these messages "
                    f"({in_short(error)})"
                )
                raise ValueError(
                    f"{lacks}: give each a text as content, or pass a text as the prompt"
                ) from None
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return prompt  # type: ignore[return-value]

    def checked_ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt that this model can continue; `ValueError` says what is wrong with
        any other.
        """
        try:
            if isinstance(prompt, (set, frozenset, bytes, bytearray)):
                raise TypeError("no order, or no token ids")
            ids: list[Any] = list(self.encode(prompt))
            if [*map(type, ids)].count(int) != len(ids):
                ids = [operator.index(None if isinstance(i, bool) else i) for i in ids]  # type: ignore[arg-type]
        except TypeError:
            kinds = (
                "a text, a list of whole numbers (token ids), or a list of chat messages (role and "
                "content)"
            )
            raise ValueError(f"a prompt is {kinds}, got {shown(prompt)}") from None
        if not ids:
            raise ValueError("the prompt is empty: give at least one token to continue")
        with suppress(
            struct.error
        ):  # at one of more than 64 bits; without signs, one below 0 is among the largest
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
    """A text, a list of ids and a list of messages are one prompt; a list of any of these is
    several.
    """
    several = isinstance(prompts, (list, tuple, np.ndarray))
    return not several or (len(prompts) > 0 and isinstance(prompts[0], (dict, int, np.integer)))


@no_collections()
def load_model(
    name: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    verbose: bool = True,
    prepare: Callable[[Any], None] | None = None,
) -> Model:
    """Load a checkpoint built like Qwen2, Qwen3 or Llama, and print which one and why.

    Args:
        name: a hub id, folder or .gguf file; None for what `choose_model` says.
        device: "auto" is the GPU if there is one.
        dtype: "auto" is bfloat16 on a GPU, float32 on a CPU.
        verbose: print.
        prepare: changes the transformers module before it is moved to the device. The trial on
            pages is then left out.

    Raises:
        ValueError: Of one line, if there is no such checkpoint, or if it would not give its own
            tokens on pages. Weights are safetensors or GGUF. Nothing is downloaded, and no code
            from the hub is run.
    """
    import transformers

    transformers.AttentionInterface.register("pagedlab", paged_hook)
    source, reason = choose_model(name)
    target, kind = where_to_run(device, dtype)
    problem = why_not_built_alike(read_config(source))
    if problem:
        raise ValueError(f"{source!r} {problem}")
    module, report = read(
        "ModelForCausalLM",
        source,
        bar=verbose,
        dtype=kind,
        attn_implementation="pagedlab",
        use_safetensors=Path(source).suffix != ".gguf" or None,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    tokenizer = read("Tokenizer", source)  # after the weights: no bar tells of it
    short = Path(source).name if os.path.exists(os.path.expanduser(source)) else source
    model = Model(module, tokenizer, short, reason)
    problem = _damage(model, report)
    if problem:
        raise ValueError(f"{source!r} {problem}")
    if prepare:
        prepare(module)
    module.to(target).eval()
    if not prepare:
        problem = why_not_on_pages(model)
        if problem:
            raise ValueError(f"{source!r} {problem}")
    if verbose:
        print(f"model: {model.name} on {target} in {str(kind).removeprefix('torch.')} ({reason})")
    return model


def why_not_built_alike(config: Any) -> str | None:
    """What a config asks for that paged attention does not compute; None if nothing is known."""
    kinds = getattr(config, "layer_types", None) or []
    if not kinds and getattr(config, "sliding_window", None):
        kinds = ["sliding_attention"]
    others = [kind for kind in kinds if not kind.startswith("full")]
    if any(kind.startswith("sliding") for kind in others):
        return "has layers with a sliding window; pagedlab runs models that attend to everything"
    if others:
        return (
            f"has layers of the kind {others[0]}; pagedlab runs models whose layers all have full "
            "attention"
        )
    if getattr(config, "num_key_value_heads", None) is None:
        return f"is a {config.model_type} model; pagedlab runs those built like Qwen2, 3 or Llama"
    if getattr(config, "kv_lora_rank", None):
        return "has multi-head latent attention; pagedlab's blocks hold plain keys and values"
    if _rope_type(config) == "longrope":
        return (
            "has longrope position embeddings, with which a long neighbour would change a short "
            "prompt's tokens"
        )
    if getattr(config, "attn_temperature_tuning", None):
        return (
            "scales attention by the position in the row; pagedlab puts many sequences into one row"
        )
    return None


def _rope_type(config: Any) -> str:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(rope.get("rope_type", rope.get("type", "default")))


def _damage(model: Model, report: dict[str, Any]) -> str | None:
    """What keeps a model that transformers has loaded from being what its files say."""
    config = model.module.config
    for fault in (
        "missing",
        "unexpected",
        "mismatched",
    ):  # transformers would draw random numbers, or ignore it
        keys = sorted(str(key).replace("torch.Size", "") for key in report[f"{fault}_keys"])
        if keys:
            return (
                f"has {fault} weights, {len(keys)} in all, first {keys[0]}: fetch config.json and "
                "weights again"
            )
    for (
        name,
        weight,
    ) in model.module.named_parameters():  # a sum is one quick pass, and float16's own may overflow
        if not (weight.sum().isfinite() or weight.isfinite().all()):
            return f"has NaN or infinite weights, the first in {name}: fetch them again"
    largest = max([len(model.tokenizer) - 1, *model.eos_token_ids])
    if largest >= config.vocab_size:
        return (
            f"has a token id {largest} and {config.vocab_size} embeddings: its tokenizer or "
            "eos_token_id does not fit"
        )
    return None
