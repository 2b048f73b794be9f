"""The batches that benchmarks/attention.py measures, their tensors, and the ways to compute attention over them."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from pagedlab_lessons.kernels07 import ladder
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from pagedlab.kernels.attention import triton_attention

Run = Callable[[], torch.Tensor]
HEADS = {"qwen2.5-0.5b": (14, 2, 64), "qwen2.5-7b": (28, 4, 128), "llama-3-8b": (32, 8, 128)}


@dataclass(frozen=True)
class Case:
    """A batch: sequence b has `lengths[b]` tokens, the last `queries[b]` of which are computed now."""

    name: str
    model: str
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    block_size: int = 16

    @property
    def is_decode(self) -> bool:
        return max(self.queries) == 1

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all tokens in bf16, each read once."""
        _, kv_heads, dim = HEADS[self.model]
        return 2 * 2 * sum(self.lengths) * kv_heads * dim

    @property
    def flops(self) -> int:
        """Two matrix products, a multiplication and an addition each, for every (query, key that it sees)."""
        heads, _, dim = HEADS[self.model]
        pairs = sum(n * (length - n) + n * (n + 1) // 2 for length, n in zip(self.lengths, self.queries, strict=True))
        return 4 * heads * dim * pairs


def decode_case(model: str, batch: int, context: int, block_size: int = 16) -> Case:
    name = f"{model} decode {batch} x {context}, block {block_size}"
    return Case(name, model, (context,) * batch, (1,) * batch, block_size)


def cases() -> list[Case]:
    rng = random.Random(0)
    prompts = tuple(rng.randint(100, 1024) for _ in range(32))
    skewed = tuple(rng.choice((64, 256, 512, 4096)) for _ in range(256))
    decodes = [
        ("llama-3-8b", 32, 4096),
        ("qwen2.5-7b", 64, 4096),
        ("qwen2.5-0.5b", 256, 1024),
        ("llama-3-8b", 1, 16384),
    ]
    return [
        *(decode_case(*shape) for shape in decodes),
        *(decode_case(*shape, block_size=64) for shape in decodes),
        Case("qwen2.5-0.5b decode 256 of 64-4096, skewed", "qwen2.5-0.5b", skewed, (1,) * 256),
        Case("llama-3-8b prefill 1 x 4096", "llama-3-8b", (4096,), (4096,)),
        Case("llama-3-8b prefill 32 of 100-1024", "llama-3-8b", prompts, prompts),
        Case("llama-3-8b chunks 4 x 512 on 4096", "llama-3-8b", (4608,) * 4, (512,) * 4),
        *(
            Case(f"{model} mixed 200 decodes at 1024 + prefill 512", model, (1024,) * 200 + (512,), (1,) * 200 + (512,))
            for model in ("qwen2.5-0.5b", "llama-3-8b")
        ),
    ]


class Inputs:
    """Tensors of a case in bf16, several sets of them, together larger than any cache."""

    def __init__(self, case: Case, seed: int, rotate_bytes: int = 1 << 28, device: str = "cuda") -> None:
        self.case = case
        self.heads, self.kv_heads, self.dim = HEADS[case.model]
        size, pages = case.block_size, [-(-length // case.block_size) for length in case.lengths]
        self.sets = 1 if rotate_bytes == 0 else 1 + -(-rotate_bytes // case.kv_bytes)
        self.num_blocks = sum(pages)
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device)

        self.q = [normal(sum(case.queries), self.heads, self.dim) for _ in range(self.sets)]
        shape = (self.num_blocks, size, self.kv_heads, self.dim)
        self.k = [normal(*shape) for _ in range(self.sets)]
        self.v = [normal(*shape) for _ in range(self.sets)]
        self.tables, self.page_lists = [], []
        for _ in range(self.sets):
            ids = torch.randperm(self.num_blocks, generator=generator, device=device).int()
            self.tables.append(pad_sequence(ids.split(pages), batch_first=True))
            self.page_lists.append(ids)
        self.pages = pages
        self.seq_lens = torch.tensor(case.lengths, dtype=torch.int32, device=device)
        self.starts = torch.tensor([0, *case.queries], device=device).cumsum(0).int()

    def paged(self, i: int) -> tuple[torch.Tensor, ...]:
        """Arguments of `paged_attention`, of set i."""
        return self.q[i], self.k[i], self.v[i], self.tables[i], self.seq_lens, self.starts

    def sequence(self, i: int, b: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sequence b of set i: q [n, Hq, D], k and v [length, Hkv, D]."""
        first, length = sum(self.case.queries[:b]), self.case.lengths[b]
        ids = self.tables[i][b, : self.pages[b]].long()
        k, v = (cache[i][ids].flatten(0, 1)[:length] for cache in (self.k, self.v))
        return self.q[i][first : first + self.case.queries[b]], k, v


def reference(inputs: Inputs) -> torch.Tensor:
    """Attention of set 0 in fp64, sequence by sequence."""
    parts = []
    for b, (length, n) in enumerate(zip(inputs.case.lengths, inputs.case.queries, strict=True)):
        q, k, v = (t.double().transpose(0, 1)[None] for t in inputs.sequence(0, b))
        seen = torch.ones(n, length, dtype=torch.bool, device=q.device).tril(length - n)
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


# ---------------------------------------------------------------------- methods: inputs -> one call per set


def for_each_set(inputs: Inputs, compute: Callable[[int], torch.Tensor]) -> list[Run]:
    """A call for each set of tensors."""
    return [partial(compute, i) for i in range(inputs.sets)]


def ours(inputs: Inputs) -> list[Run]:
    return for_each_set(inputs, lambda i: triton_attention(*inputs.paged(i)))


def rung(inputs: Inputs, kernel: Callable[..., torch.Tensor]) -> list[Run]:
    """A short kernel of notebook 07; the last is the solution of its last puzzle."""
    if not inputs.case.is_decode:
        raise NotImplementedError("decodes only")
    return for_each_set(inputs, lambda i: kernel(*inputs.paged(i)[:5]))


def _same_length(inputs: Inputs) -> None:
    if not inputs.case.is_decode or len(set(inputs.case.lengths)) > 1:
        raise NotImplementedError("needs decodes of one length")


def copied_together(inputs: Inputs, i: int) -> list[torch.Tensor]:
    """Keys and values of set i without pages: [B, Hkv, S, D] each."""
    table = inputs.tables[i].long()
    return [cache[i][table].flatten(1, 2).transpose(1, 2) for cache in (inputs.k, inputs.v)]


def unpaged_sdpa(inputs: Inputs) -> list[Run]:
    """The floor: KV contiguous, as if paging had never been thought of, by cuDNN, which is the fastest at that."""
    _same_length(inputs)
    together = [copied_together(inputs, i) for i in range(inputs.sets)]

    def run(i: int) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(inputs.q[i][:, :, None], *together[i], enable_gqa=True).flatten(1, 2)

    return for_each_set(inputs, run)


def gather_sdpa(inputs: Inputs) -> list[Run]:
    """What paging costs when the pages are copied together first."""
    _same_length(inputs)

    def run(i: int) -> torch.Tensor:
        q = inputs.q[i].unflatten(1, (inputs.kv_heads, -1))
        return F.scaled_dot_product_attention(q, *copied_together(inputs, i)).flatten(1, 2)

    return for_each_set(inputs, run)


def flashinfer(inputs: Inputs, backend: str) -> list[Run]:
    """FlashInfer's kernels over the same pages, planned outside the clock."""
    if inputs.case.is_decode != (backend == "decode"):
        raise NotImplementedError("decodes have a backend of their own")
    library = importlib.import_module("flashinfer")
    device = inputs.seq_lens.device
    indptr = torch.tensor([0, *inputs.pages], device=device).cumsum(0).int()
    last = (inputs.seq_lens - 1) % inputs.case.block_size + 1
    shape = (inputs.heads, inputs.kv_heads, inputs.dim, inputs.case.block_size)
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    space = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    runs = []
    for q, k, v, ids in zip(inputs.q, inputs.k, inputs.v, inputs.page_lists, strict=True):
        if backend == "decode":
            wrapper = library.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True)
            wrapper.plan(indptr, ids, last, *shape, **types)
        else:
            wrapper = library.BatchPrefillWithPagedKVCacheWrapper(space, "NHD", backend=backend)
            wrapper.plan(inputs.starts, indptr, ids, last, *shape, causal=True, **types)
        runs.append(partial(wrapper.run, q, (k, v)))
    return runs


def flash_attention(inputs: Inputs) -> list[Run]:
    """FlashAttention 3, for Hopper, over the same pages, in vLLM's build, which takes pages of any size."""
    function = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
    longest = {"max_seqlen_q": max(inputs.case.queries), "max_seqlen_k": max(inputs.case.lengths)}

    def run(i: int) -> torch.Tensor:
        q, k, v, table, lengths, starts = inputs.paged(i)
        return function(
            q, k, v, cu_seqlens_q=starts, seqused_k=lengths, block_table=table, softmax_scale=inputs.dim**-0.5,
            causal=True, fa_version=3, **longest,
        )  # fmt: skip

    return for_each_set(inputs, run)


METHODS: dict[str, Callable[[Inputs], list[Run]]] = {
    "pagedlab": ours,
    **{name: partial(rung, kernel=kernel) for name, kernel in ladder.RUNGS.items()},
    "unpaged SDPA (cudnn, token first)": unpaged_sdpa,
    "gather + SDPA": gather_sdpa,
    "FlashInfer decode": partial(flashinfer, backend="decode"),
    "FlashInfer fa2": partial(flashinfer, backend="fa2"),
    "FlashInfer fa3": partial(flashinfer, backend="fa3"),
    "FlashAttention paged, vLLM's build": flash_attention,
}
