"""What the Triton kernels can be asked only on a GPU: bf16 at full size, graphs, and more than 2^31 elements.

    python -m pytest tests/kernels

test_attention_kernels.py runs compiled where there is a GPU, in bf16 too.
"""

import random

import pytest
import torch
import torch.nn.functional as F

from pagedlab.attention import fastest_backend, paged_attention, paged_decode
from support.attention_cases import make

pytestmark = pytest.mark.gpu
QWEN, LLAMA = (14, 2, 64), (32, 8, 128)


def batch(seed, lengths, heads=QWEN, dtype=torch.bfloat16):
    """(queries, length) for every sequence; shuffled pages of 16, NaN in every slot that nobody has written."""
    num_heads, kv_heads, dim = heads
    return make(seed, lengths, (num_heads, kv_heads), dim, dtype=dtype).arguments("cuda")


def dense(args, dtype):
    """torch's own attention in `dtype`, sequence by sequence and without pages."""
    q, k, v, table, lens, starts = args
    parts = []
    for b, length in enumerate(lens.tolist()):
        first, stop = int(starts[b]), int(starts[b + 1])
        pages = table[b, : -(-length // 16)].long()
        keys, values = (x[pages].flatten(0, 1)[:length].to(dtype).transpose(0, 1)[None] for x in (k, v))
        n = stop - first
        mask = torch.ones(n, length, dtype=torch.bool, device="cuda").tril(length - n)
        rows = q[first:stop].to(dtype).transpose(0, 1)[None]
        parts.append(F.scaled_dot_product_attention(rows, keys, values, mask, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(parts)


def assert_as_good_as_torch(args, out):
    """Error against fp64 at most twice that of torch's attention in the same dtype, in fp32 three times.

    There torch's matrix-vector product adds in a tree, and the kernel in a chain over head_dim.
    """
    truth = dense(args, torch.float64)

    def error(values):
        return float((values.double() - truth).norm() / truth.norm())

    mine, torchs = error(out), error(dense(args, out.dtype))
    print(f"{out.dtype}: error {mine:.2e}, torch's {torchs:.2e}")
    assert mine <= (3 if out.dtype == torch.float32 else 2) * torchs  # NaN fails too


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("heads", [QWEN, LLAMA])
def test_errors_at_full_size(heads, dtype, seed):
    dice = random.Random(seed)
    for lengths in (
        [(1, 4096)],
        [(1, dice.randint(1, 3000)) for _ in range(40)],
        [(1, 16000), *((1, 20) for _ in range(30))],
        [(700, 700), (64, 3000), *((1, dice.randint(1, 2000)) for _ in range(20))],
        [(n, n) for n in (dice.randint(100, 1024) for _ in range(6))],
    ):
        args = batch(seed, lengths, heads, dtype)
        assert_as_good_as_torch(args, paged_attention(*args, backend="triton"))


@pytest.mark.parametrize(
    "lengths",
    [[(1, 900)], [(1, length) for length in range(1, 400)], [(1, 300), (200, 200), (1, 17), (30, 500)]],
    ids=["split", "decode", "mixed"],
)
def test_a_graph_follows_its_inputs(lengths, seed):
    """Captured once, replayed with other tokens, tables and lengths: what an eager call gives, bit for bit."""
    dice = random.Random(seed)
    args = batch(seed, lengths)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        paged_attention(*args, backend="triton")
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = paged_attention(*args, backend="triton")
    for _ in range(3):
        shorter = [(n, dice.randint(n, length)) for n, length in lengths]
        q, k, v, table, lens, starts = batch(dice.randrange(1 << 30), shorter)
        pad = torch.full_like(args[3], -1)
        pad[:, : table.shape[1]] = table[:, : pad.shape[1]]
        for name, new in (("q", q), ("table", pad), ("lens", lens), ("starts", starts)):
            args[{"q": 0, "table": 3, "lens": 4, "starts": 5}[name]].copy_(new)
        for target, new in ((args[1], k), (args[2], v)):
            target.fill_(torch.nan)
            target[: len(new)] = new
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, paged_attention(*args, backend="triton"))
        assert_as_good_as_torch(args, out)


def test_a_captured_call_waits_for_nothing(seed):
    """Any look at a value on the device would be an error while a graph is captured, and here as well."""
    args = batch(seed, [(1, 300), (20, 20), (1, 900)])
    paged_attention(*args, backend="triton")
    torch.cuda.set_sync_debug_mode("error")
    try:
        paged_attention(*args, backend="triton")
        paged_decode(args[0][:3], *args[1:5], backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")


def needs(gigabytes):
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < gigabytes << 30:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory")


def check_against_a_copy(move, args):
    expected = paged_attention(*args, backend="triton")
    assert torch.equal(paged_attention(*move(args), backend="triton"), expected)


def test_pages_behind_two_to_the_31_elements(seed):
    """The same pages at the end of a cache of 2^31 + elements give the same bits."""
    needs(12)
    args = batch(seed, [(1, 300), (40, 90)], LLAMA)
    small = args[1].shape[0]
    num_blocks = 2**31 // (16 * 8 * 128) + small

    def far(args):
        q, k, v, table, lens, starts = args
        caches = [torch.empty((num_blocks, *k.shape[1:]), dtype=k.dtype, device="cuda") for _ in range(2)]
        for cache, old in zip(caches, (k, v), strict=True):
            cache[-small:] = old
        assert caches[0][: -small + 1].numel() > 2**31
        return q, *caches, torch.where(table < 0, table, table + num_blocks - small), lens, starts

    check_against_a_copy(far, args)
    q, k, v, table, lens, _ = args
    check_against_a_copy(far, (q[:2], k, v, table, lens, torch.arange(3, device="cuda").int()))


def test_a_table_of_more_than_two_to_the_31_entries(seed):
    needs(20)
    args = batch(seed, [(1, 300), (40, 90), (1, 20)])

    def wide(args):
        q, k, v, table, lens, starts = args
        huge = torch.empty(len(table), 2**30 + 8, dtype=torch.int32, device="cuda")
        huge[:, : table.shape[1]] = table
        return q, k, v, huge, lens, starts

    check_against_a_copy(wide, args)


def test_queries_behind_two_to_the_31_elements(seed):
    """So many sequences of one token that the last query lies behind 2^31 elements: its output is its V."""
    needs(24)
    num_heads, kv_heads, dim = LLAMA
    sequences = 2**31 // (num_heads * dim) + 3
    q = torch.zeros(sequences, num_heads, dim, dtype=torch.bfloat16, device="cuda")
    k, v = torch.randn(2, 4, 16, kv_heads, dim, dtype=torch.bfloat16, device="cuda")
    table = (torch.arange(sequences, device="cuda") % 4).int()[:, None].contiguous()
    out = paged_decode(q, k, v, table, torch.ones(sequences, device="cuda").int(), backend="triton")
    for i in (0, 1, sequences - 2, sequences - 1):
        assert torch.equal(out[i], v[i % 4, 0].repeat_interleave(num_heads // kv_heads, 0))


def test_auto_takes_triton_and_says_so_once(seed, capsys):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("Triton needs compute capability 8.0")
    fastest_backend.cache_clear()
    args = batch(seed, [(1, 30), (5, 5)])
    capsys.readouterr()
    outs = [paged_attention(*args) for _ in range(2)]
    assert capsys.readouterr().out.count("attention: Triton (") == 1
    assert torch.equal(outs[0], paged_attention(*args, backend="triton"))
