"""The model, and the hook that lets a transformers model attend through block tables.

The transformers module is not changed. It looks its attention function up by name, and passes the
keyword arguments of `forward` on to it. Our function finds `pages` among them, stores the new keys
and values in their slots, and attends through the block tables. The tokens of all requests form one
row of length T.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from pagedlab.arguments import in_short, token_id_list, valid_text
from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kernels import choose_interpreter
from pagedlab.kv_cache import KVCache
from pagedlab.loading import TINY_MODEL as TINY_MODEL
from pagedlab.loading import (
    choose_model,
    locate,
    no_collections,
    read,
    read_config,
    where_to_run,
)

# Arguments of every attention call that change nothing here. Positions are part of the keys
# already, and the others choose what the module returns.
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
# Names of buffers that old checkpoints stored, and that a model computes itself.
COMPUTED = re.compile(r"\.(rotary_emb\.\w+|causal_mask|position_ids)$")


@dataclass(frozen=True)
class Pages:
    """The argument through which `Model.forward` reaches the attention hook.

    Args:
        cache: the KV cache.
        batch: the batch that the model runs on.
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
    """Compute the attention of one layer on pages.

    Args:
        module: the layer's attention module.
        query: [1, Hq, T, D].
        key: [1, Hkv, T, D].
        value: [1, Hkv, T, D].
        attention_mask: None, because the batch defines which token sees which.
        scaling: the factor of the scores; None for 1 / sqrt(D).
        pages: the pages that `Model.forward` passed.
        others: further arguments of transformers.

    Returns:
        The output, [1, T, Hq, D], and None in place of attention weights.

    Raises:
        ValueError: If an argument asks for an attention that is not computed here.
    """
    if pages is None:
        raise ValueError("this model attends through blocks: pass pages=..., as LLM does")
    refuse_unknown(attention_mask=attention_mask, **others)
    if not module.is_causal:
        raise ValueError("this model's attention is not causal, and paged attention is")
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


def refuse_unknown(**arguments: Any) -> None:
    """Raise `ValueError` if an argument asks for more than causal attention."""
    for name, value in arguments.items():
        is_harmless = value is None or name in IGNORED or (name == "is_causal" and value)
        if not is_harmless:
            raise ValueError(f"this model's attention takes {name}, which is not computed here")


@dataclass
class Model:
    """A checkpoint in memory.

    Args:
        module: the transformers module.
        tokenizer: the transformers tokenizer.
        name: the hub id, or the name of the folder.
        num_ranks: processes that share its heads, see recipes/ranks/.
        new_cache: makes a KV cache.
    """

    module: Any
    tokenizer: Any
    name: str
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
        """Tokens of prompt and answer together, at most."""
        return self.module.config.max_position_embeddings

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text, as the generation config says, else the tokenizer."""
        eos = self.module.generation_config.eos_token_id
        if eos is None:
            eos = self.tokenizer.eos_token_id
        ids = eos if isinstance(eos, list) else [eos]
        return frozenset(ids) - {None}

    def kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """Return a KV cache for this model, on its device and of its dtype."""
        config = self.module.config
        usual = config.hidden_size // config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or usual
        return self.new_cache(
            config.num_hidden_layers,
            num_blocks,
            block_size,
            config.num_key_value_heads // self.num_ranks,
            head_dim,
            self.module.dtype,
            self.device,
        )

    def working_bytes(self, num_tokens: int, num_rows: int) -> int:
        """Estimate the memory of a step on a GPU, beside the weights and the KV cache.

        The largest tensors are the gates, the values that they multiply, and the products, of all
        tokens in one layer; and the logits, which sampling has twice more in fp32. Twice their
        bytes are counted, because torch's allocator holds freed memory, and CUDA graphs hold
        theirs. `benchmarks/NOTES.md` has what was measured. Requests with penalties need a count
        for each logit, too.

        Args:
            num_tokens: tokens of the step.
            num_rows: rows that have logits.
        """
        config = self.module.config
        width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        item = self.module.dtype.itemsize
        activations = 3 * width * num_tokens * item
        logits = self.vocab_size * num_rows * (item + 2 * torch.float32.itemsize)
        counts = self.vocab_size * num_rows * torch.int32.itemsize
        return 2 * (activations + logits) + counts

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """Run the model on a ragged batch, and store its keys and values in the cache.

        Args:
            batch: T tokens of B sequences.
            cache: the KV cache.
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
        """Yield the transformers module with its own attention and cache, to call `generate`.

        Afterwards it attends through block tables again.
        """
        self.module.set_attn_implementation("sdpa")
        try:
            yield self.module
        finally:
            self.module.set_attn_implementation("pagedlab")

    def encode(self, prompt: Any) -> list[int]:
        """Return the token ids of a prompt.

        Args:
            prompt: a text, a list of token ids, or a list of chat messages, which go through the
                model's chat template.

        Raises:
            ValueError: If it is none of these, or has an id that is not in the vocabulary.
        """
        is_chat = isinstance(prompt, list) and prompt and isinstance(prompt[0], dict)
        if is_chat:
            prompt = self._apply_chat_template(prompt)
        if isinstance(prompt, str):
            text = valid_text("the prompt", prompt)
            # A chat has its special tokens already. A prompt that is too long gets our error, and
            # with verbose=False no warning of transformers.
            encoded = self.tokenizer(text, add_special_tokens=not is_chat, verbose=False)
            prompt = encoded["input_ids"]
        last = self.vocab_size - 1
        return token_id_list("the prompt", prompt, last, "a text, a list of chat messages or ")

    def _apply_chat_template(self, messages: list[Any]) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template may raise anything, and there may be none
            raise ValueError(
                f"the chat template of {self.name} cannot take these messages ({in_short(error)}): "
                "give each a role and a content that is a text, or pass a text"
            ) from None

    def checked_ids(self, prompt: Any) -> list[int]:
        """Return the token ids of a prompt that this model can continue.

        Args:
            prompt: a text, a list of token ids, or a list of chat messages.

        Raises:
            ValueError: If it is none of these, is empty or too long, or has an unknown token id.
        """
        ids = self.encode(prompt)
        if not ids:
            raise ValueError("the prompt is empty: give at least one token to continue")
        if len(ids) >= self.max_length:
            takes = f"{self.name} takes {self.max_length}, new ones included"
            raise ValueError(f"the prompt has {len(ids)} tokens and {takes}: shorten it")
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of these tokens, without special tokens."""
        return self.tokenizer.backend_tokenizer.decode(token_ids)


def is_one_prompt(prompts: Any) -> bool:
    """Whether the argument of `generate` is one prompt: a text, token ids or chat messages.

    A list of these is several prompts.
    """
    if not isinstance(prompts, (list, tuple)):
        return True
    return len(prompts) > 0 and isinstance(prompts[0], (dict, Integral))


@no_collections()
def load_model(
    name: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    verbose: bool = True,
    prepare: Callable[[Any], None] | None = None,
) -> Model:
    """Load a checkpoint whose model_type is in `loading.MODEL_TYPES`.

    The weights are safetensors or GGUF. Nothing is downloaded, and no code from the hub is run.

    Args:
        name: a hub id, a folder or a .gguf file; None for the one that `choose_model` chooses.
        device: "auto" is the GPU if there is one, else the CPU.
        dtype: "auto" is bfloat16 on a GPU and float32 on a CPU.
        verbose: print which model runs on which device, and why.
        prepare: changes the transformers module before it is moved to the device.

    Raises:
        ValueError: If there is no such checkpoint, or if pagedlab does not run it. The message has
            one line.
    """
    source, reason = choose_model(name)
    target, kind = where_to_run(device, dtype)
    locate(source)  # a wrong name raises before the slow imports
    choose_interpreter()  # transformers imports torch's compiler, and this imports Triton
    import transformers  # slow to import: only loading needs it

    transformers.AttentionInterface.register("pagedlab", paged_hook)
    read_config(source)  # raises ValueError if pagedlab does not run this model
    module, report = read(
        "ModelForCausalLM",
        source,
        dtype=kind,
        attn_implementation="pagedlab",
        use_safetensors=Path(source).suffix != ".gguf" or None,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    _check_weights(source, report)
    is_path = os.path.exists(os.path.expanduser(source))
    name = Path(source).name if is_path else source
    model = Model(module, read("Tokenizer", source), name)
    if prepare:
        prepare(module)
    module.to(target).eval()
    if verbose:
        print(f"model: {name} on {target} in {str(kind).removeprefix('torch.')} ({reason})")
    return model


def _check_weights(source: str, report: dict[str, Any]) -> None:
    """Raise `ValueError` if weights are missing, too many, or of another shape.

    Transformers would fill missing weights with random numbers, and ignore unexpected ones. Only
    those that a model computes itself may be ignored.

    Args:
        source: what was loaded.
        report: the loading report of transformers.
    """
    for fault in ("missing", "unexpected", "mismatched"):
        keys = [key for key in map(str, report[f"{fault}_keys"]) if not COMPUTED.search(key)]
        if keys:
            first = f"{fault} weights, {len(keys)} in all, first {min(keys)}"
            raise ValueError(f"{source!r} has {first}: fetch config.json and weights again")
