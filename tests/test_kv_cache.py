"""The tensors behind the blocks: writes by slot, copies of whole blocks."""

from types import SimpleNamespace

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


@given(copies=st.lists(st.builds(BlockCopy, BLOCK, BLOCK), max_size=20, unique_by=lambda copy: copy.destination))
def test_every_copy_is_of_what_the_source_held_before(copies):
    cache, before = numbered_cache(), numbered_cache()
    cache.copy_blocks(copies)
    origin = {copy.destination: copy.source for copy in copies}
    for block_id in range(BLOCKS):
        source = origin.get(block_id, block_id)
        assert torch.equal(cache.keys[:, block_id], before.keys[:, source])
        assert torch.equal(cache.values[:, block_id], before.values[:, source])


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


def test_a_token_without_a_slot_is_not_stored():
    k, v = torch.randn(2, 3, HEADS, DIM)
    for stored in ([], [0, 2]):
        slots = torch.full((3,), -1)
        slots[stored] = torch.tensor(stored, dtype=torch.int64)
        cache, expected = numbered_cache(), numbered_cache()
        expected.keys[0, 0, stored], expected.values[0, 0, stored] = k[stored], v[stored]
        cache.write(0, k, v, slots)
        assert torch.equal(cache.keys, expected.keys)
        assert torch.equal(cache.values, expected.values)


@pytest.mark.parametrize("dtype", [torch.int32, "float32"])
def test_a_cache_has_a_float_dtype(dtype):
    with refused("^dtype must be one of torch.float32, "):
        KVCache(1, 1, 1, 1, 1, dtype=dtype)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
def test_bytes_of_a_block(dtype, size):
    cache = KVCache(24, 2, 16, 2, 64, dtype)
    assert cache.bytes_per_block == 2 * 24 * 16 * 2 * 64 * size
    assert cache.bytes_per_block * 2 == cache.keys.nbytes + cache.values.nbytes


@pytest.mark.parametrize("num_blocks", [2**40, 2**50, 2**70])
def test_what_the_machine_cannot_hold_is_refused(num_blocks):
    with refused(rf"^{num_blocks:,} blocks take [\d,.]+ GiB, and 'cpu' does not have them: lower num_blocks$"):
        KVCache(24, num_blocks, 16, 2, 64)


def test_on_a_gpu_its_free_memory_counts_and_what_torch_holds_in_reserve(monkeypatch):
    for name, told in (
        ("mem_get_info", (3 << 30, 80 << 30)),
        ("memory_reserved", 9 << 30),
        ("memory_allocated", 8 << 30),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *device, told=told: told)
    cache = KVCache(1, 1, 1, 1, 1)
    assert cache.free_bytes() == 1 << 30
    cache.keys = SimpleNamespace(device=torch.device("cuda"))
    assert cache.free_bytes() == 4 << 30
