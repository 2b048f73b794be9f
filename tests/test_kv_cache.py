"""The tensors behind the blocks: writes by slot, copies as if one after the other."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import BlockCopy, BlockPool, BlockTable, KVCache
from support.refused import refused


@pytest.fixture(params=[False, True], ids=["torch", "triton"], autouse=True)
def in_triton(request):
    """Every test with torch's indexing and with the kernels, which run in Triton's interpreter where no GPU is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pagedlab.kv_cache.compiles_for", lambda device: request.param)
        yield


LAYERS, BLOCKS, SIZE, HEADS, DIM = 3, 8, 4, 2, 5
BLOCK = st.integers(0, BLOCKS - 1)


def numbered_cache():
    """A cache in which every number is another one, keys positive and values negative."""
    cache = KVCache(LAYERS, BLOCKS, SIZE, HEADS, DIM)
    cache.keys.copy_(torch.arange(1, cache.keys.numel() + 1).view(cache.keys.shape))
    cache.values.copy_(-cache.keys)
    return cache


@given(copies=st.lists(st.builds(BlockCopy, BLOCK, BLOCK), max_size=20))
def test_copies_give_what_one_after_the_other_gives(copies):
    cache, plain = numbered_cache(), numbered_cache()
    for source, destination in copies:
        plain.keys[:, destination] = plain.keys[:, source].clone()
        plain.values[:, destination] = plain.values[:, source].clone()
    cache.copy_blocks(copies)
    assert torch.equal(cache.keys, plain.keys)
    assert torch.equal(cache.values, plain.values)


@settings(max_examples=20)
@given(data=st.data(), length=st.integers(1, BLOCKS * SIZE))
def test_writes_land_in_the_slots_of_the_table_and_nowhere_else(data, length):
    pool = BlockPool(BLOCKS, SIZE)
    ids = [pool.allocate() for _ in range(BLOCKS)]
    for block_id in data.draw(st.permutations(ids)):
        pool.release(block_id)
    table = BlockTable(pool)
    table.append(length)
    k, v = torch.randn(2, length, HEADS, DIM)
    cache, before = numbered_cache(), numbered_cache()
    cache.write(1, k, v, torch.tensor(table.slots(0, length)))
    position = torch.arange(length)
    blocks, offsets = torch.tensor(table.block_ids)[position // SIZE], position % SIZE
    before.keys[1, blocks, offsets], before.values[1, blocks, offsets] = k, v
    assert torch.equal(cache.keys, before.keys)
    assert torch.equal(cache.values, before.values)


THREE, TWO, SLOTS = torch.ones(3, HEADS, DIM), torch.ones(2, HEADS, DIM), torch.tensor([0, 1, 2])
LAST = BLOCKS * SIZE - 1
WANTED = r"^k and v must be \[T, 2, 5\] in torch.float32, and slots \[T\] in torch.int64, got "


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("write", [0, THREE, TWO, SLOTS], WANTED + r"\[3, 2, 5\] in torch.float32, \[2, 2, 5\]"),
        ("write", [0, THREE, THREE.double(), SLOTS], WANTED + r".* \[3, 2, 5\] in torch.float64 and"),
        ("write", [0, THREE[..., :4], THREE[..., :4], SLOTS], WANTED + r"\[3, 2, 4\]"),
        ("write", [0, THREE, THREE, SLOTS[:2]], WANTED + r".* and \[2\] in torch.int64$"),
        ("write", [0, THREE, THREE, [0, 1, 2]], WANTED + ".* and a list$"),
        ("write", [0, THREE, THREE, SLOTS.double()], WANTED + r".* and \[3\] in torch.float64$"),
        ("write", [0, 3, THREE, SLOTS], WANTED + "a int, "),
        ("write", [0, THREE, THREE, torch.tensor([0, 1, 99])], f"^slots must be from 0 to {LAST}, or .* 99$"),
        ("write", [0, THREE, THREE, torch.tensor([0, -2, 1])], f"^slots must be from 0 to {LAST}, or .* -2$"),
        ("write", [3, THREE, THREE, SLOTS], "^layer must be a whole number from 0 to 2, got 3$"),
        ("write", [-1, THREE, THREE, SLOTS], "^layer must be a whole number from 0 to 2, got -1$"),
        ("write", ["0", THREE, THREE, SLOTS], "^layer must be a whole number from 0 to 2, got '0'$"),
        ("copy_blocks", [[BlockCopy(0, 1), BlockCopy(0, 8)]], "^a block id must be .* from 0 to 7, got 8$"),
        ("copy_blocks", [[BlockCopy(-1, 1)]], "^a block id must be .* from 0 to 7, got -1$"),
        ("copy_blocks", [[3]], r"^copies must be a list of BlockCopy\(source, destination\), got \[3\]$"),
        ("copy_blocks", [[(0, 1), (2,)]], r"^copies must be a list of BlockCopy.*, got \[\(0, 1\), \(2,\)\]$"),
        ("copy_blocks", [[(0, 1, 2)]], r"^copies must be a list of BlockCopy.*, got \[\(0, 1, 2\)\]$"),
        ("copy_blocks", [3], "^copies must be a list of BlockCopy.*, got 3$"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_stored(method, arguments, said):
    cache, before = numbered_cache(), numbered_cache()
    with refused(said):
        getattr(cache, method)(*arguments)
    assert torch.equal(cache.keys, before.keys)
    assert torch.equal(cache.values, before.values)


def test_no_tokens_store_nothing():
    cache = numbered_cache()
    cache.write(0, THREE[:0], THREE[:0], SLOTS[:0])
    assert torch.equal(cache.keys, numbered_cache().keys)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "tpu"}, "^there is no device 'tpu': choose 'cpu'"),
        ({"device": "cuda:99"}, "^there is no device 'cuda:99': choose 'cpu'"),
        ({"dtype": torch.int32}, "^dtype must be one of torch.float32, .*, got torch.int32$"),
        ({"dtype": "float32"}, "^dtype must be one of torch.float32, .*, got 'float32'$"),
    ],
)
def test_a_cache_is_on_a_device_that_exists_and_in_a_float_dtype(options, said):
    with refused(said):
        KVCache(1, 1, 1, 1, 1, **options)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
def test_bytes_of_a_block(dtype, size):
    cache = KVCache(24, 2, 16, 2, 64, dtype)
    assert cache.bytes_per_block == 2 * 24 * 16 * 2 * 64 * size
    assert cache.bytes_per_block * 2 == cache.keys.nbytes + cache.values.nbytes


@pytest.fixture
def no_memory(monkeypatch):
    """Asking for memory is an error."""

    def asked(*args, **how):
        raise MemoryError("memory was asked for")

    monkeypatch.setattr("pagedlab.kv_cache.torch.empty", asked)


def pretend(patch, memory):
    """A machine with so many bytes, in pages of 64."""
    patch.setattr("os.sysconf", {"SC_PHYS_PAGES": memory // 64, "SC_PAGE_SIZE": 64}.__getitem__)


@pytest.mark.usefixtures("no_memory")
def test_what_the_machine_cannot_hold_is_refused_with_the_arithmetic(monkeypatch):
    has = r"this machine has [\d,]+\.\d GiB: lower num_blocks$"
    with refused(rf"^{2**50:,} blocks of 192 KiB take 206,158,430,208 GiB, and {has}"):
        KVCache(24, 2**50, 16, 2, 64, torch.bfloat16)
    with refused(rf"^{2**70:,} blocks of 0.0625 KiB take [\d,]+ GiB, and {has}"):
        KVCache(1, 2**70, 1, 1, 8)
    with refused(r"^1 block of 268,435,456 KiB takes 256 GiB, and this machine has 23.4 GiB: lower block_size$"):
        pretend(monkeypatch, 25125558682)
        KVCache(1, 1, 2**32, 1, 8)
    with refused(r"^200,000 blocks of 192 KiB take 37 GiB, and this machine has 23.4 GiB:"):
        KVCache(24, 200_000, 16, 2, 64, torch.bfloat16)


def test_what_just_fits_is_not_refused(monkeypatch):
    pretend(monkeypatch, 1 << 20)
    assert KVCache(2, 128, 16, 2, 16).keys.nbytes == 1 << 19
    with refused(r"^129 blocks of 8 KiB take 1 GiB"):
        KVCache(2, 129, 16, 2, 16)


@pytest.mark.usefixtures("no_memory")
def test_a_system_that_does_not_tell_its_memory_is_believed(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(MemoryError, match="asked for"):
        KVCache(24, 2**50, 16, 2, 64)


@pytest.mark.usefixtures("no_memory")
def test_on_a_gpu_its_free_memory_counts_and_what_torch_holds_in_reserve(monkeypatch):
    for name, told in (
        ("is_available", True),
        ("device_count", 1),
        ("mem_get_info", (3 << 30, 80 << 30)),
        ("memory_reserved", 9 << 30),
        ("memory_allocated", 8 << 30),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *device, told=told: told)
    with pytest.raises(MemoryError, match="asked for"):
        KVCache(1, 1 << 16, 16, 2, 256, device="cuda")  # 4 GiB
    with refused(r"blocks of 64 KiB take 5 GiB, and free on this GPU are 4\.0 GiB: lower"):
        KVCache(1, (1 << 16) + 1000, 16, 2, 256, device="cuda:0")
