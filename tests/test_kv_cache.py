"""The tensors behind the blocks: writes by slot, copies of whole blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import BlockCopy, KVCache
from support.refused import refused


@pytest.fixture(params=[False, True], ids=["torch", "triton"], autouse=True)
def in_triton(request):
    """Every test with torch's indexing and with the kernels, which run in Triton's interpreter where no GPU is."""
    if request.param and torch.cuda.is_available():
        pytest.skip("a compiled kernel takes tensors of the GPU alone")
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
@given(data=st.data(), length=st.integers(0, BLOCKS * SIZE))
def test_writes_land_in_their_slots_and_nowhere_else(data, length):
    """A token with the slot -1 is not stored."""
    slots = torch.tensor(data.draw(st.permutations(range(BLOCKS * SIZE)))[:length], dtype=torch.int64)
    slots[data.draw(st.integers(0, length)) :: 5] = -1
    k, v = torch.randn(2, HEADS, length, DIM).transpose(1, 2)  # as a model's hook hands them over
    cache, expected = numbered_cache(), numbered_cache()
    cache.write(1, k, v, slots)
    stored = slots >= 0
    expected.keys[1].flatten(0, 1)[slots[stored]] = k[stored]
    expected.values[1].flatten(0, 1)[slots[stored]] = v[stored]
    assert torch.equal(cache.keys, expected.keys)
    assert torch.equal(cache.values, expected.values)


@pytest.mark.parametrize("dtype", [torch.int32, "float32"])
def test_a_cache_has_a_float_dtype(dtype):
    with refused("^dtype must be one of torch.float32, "):
        KVCache(1, 1, 1, 1, 1, dtype=dtype)
