"""The tensors behind the blocks: writes by slot, copies as if one after the other, blocks swapped and brought back."""

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


@given(out=st.lists(BLOCK, unique=True), data=st.data())
def test_swapped_blocks_come_back_wherever_they_are_put(out, data):
    back = data.draw(st.permutations(range(BLOCKS)).map(lambda ids: ids[: len(out)]))
    cache, before = numbered_cache(), numbered_cache()
    swapped = cache.swap_out(out)
    cache.keys.fill_(torch.nan)  # what is swapped must be a copy
    cache.values.fill_(torch.nan)
    cache.swap_in(swapped, back)
    assert swapped.keys.shape == (LAYERS, len(out), SIZE, HEADS, DIM)
    assert torch.equal(cache.keys[:, back], before.keys[:, out])
    assert torch.equal(cache.values[:, back], before.values[:, out])
    others = [b for b in range(BLOCKS) if b not in back]
    assert cache.keys[:, others].isnan().all()


def test_swapped_blocks_need_as_many_places():
    cache = numbered_cache()
    swapped, before = cache.swap_out([0, 1]), cache.keys.clone()
    with refused("2 blocks were swapped out, and 3 ids"):
        cache.swap_in(swapped, [2, 3, 4])
    assert torch.equal(cache.keys, before)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
def test_bytes_of_a_block(dtype, size):
    cache = KVCache(24, 2, 16, 2, 64, dtype)
    assert cache.bytes_per_block == 2 * 24 * 16 * 2 * 64 * size
    assert cache.bytes_per_block * 2 == cache.keys.nbytes + cache.values.nbytes


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "4", None])
def test_sizes_are_whole_numbers_of_at_least_1(at, bad):
    sizes = [1] * 5
    sizes[at] = bad
    name = ("num_layers", "num_blocks", "block_size", "num_kv_heads", "head_dim")[at]
    with refused(f"^{name} must be a whole number of at least 1, got {bad!r}$"):
        KVCache(*sizes)


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
        ("mem_get_info", (3 << 30, 80 << 30)),
        ("memory_reserved", 9 << 30),
        ("memory_allocated", 8 << 30),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda device, told=told: told)
    with pytest.raises(MemoryError, match="asked for"):
        KVCache(1, 1 << 16, 16, 2, 256, device="cuda")  # 4 GiB
    with refused(r"blocks of 64 KiB take 5 GiB, and free on this GPU are 4\.0 GiB: lower"):
        KVCache(1, (1 << 16) + 1000, 16, 2, 256, device="cuda:0")
