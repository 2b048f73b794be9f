"""KV arithmetic, address spaces, the four allocators and their simulation."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedlab_lessons.memory import (
    ALLOCATORS,
    GIB,
    MODELS,
    Buddy,
    FirstFit,
    KVShape,
    OutOfMemory,
    make_allocator,
    padding_waste,
)
from pagedlab_lessons.simulation import simulate
from pagedlab_lessons.traces import synthetic

from pagedlab.blocks import OutOfBlocks

PLACEMENTS = ("buddy", "first-fit")

# Arithmetic ---------------------------------------------------------------------------------------------------


def test_kv_bytes_of_known_models():
    kib = {name: shape.bytes_per_token / 1024 for name, shape in MODELS.items()}
    assert kib == {"OPT-13B": 800, "LLaMA-2-7B": 512, "LLaMA-3-8B": 128, "Qwen2.5-0.5B": 12, "Qwen3-0.6B": 112}
    assert MODELS["OPT-13B"].slots_in(12 * GIB) == 15_728


def test_from_config_reads_what_transformers_writes():
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "hidden_size": 896,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    for given_as in (config, {"model_type": "sees_too", "text_config": config}):
        shape = KVShape.from_config(given_as)
        assert (shape.name, shape.bytes_per_token, shape.max_length) == ("qwen2", 12 * 1024, 32768)
    assert KVShape.from_config(config | {"dtype": "float32"}).bytes_per_token == 24 * 1024
    assert KVShape.from_config(config | {"head_dim": 128}).head_dim == 128
    del config["num_key_value_heads"]
    assert KVShape.from_config(config).num_kv_heads == 14


@pytest.mark.parametrize("change", [{"hidden_size": None}, {"dtype": "int3"}, {"kv_lora_rank": 512}])
def test_from_config_says_what_is_missing(change):
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 128}
    changed = {key: value for key, value in (config | change).items() if value is not None}
    with pytest.raises(ValueError, match=r"hidden_size|int3|compressed"):
        KVShape.from_config(changed)


def test_padding_of_four_sequences():
    slots, scores = padding_waste([128, 64, 32, 8])
    assert (round(100 * slots, 1), round(100 * scores, 1)) == (54.7, 67.1)


# Address spaces -----------------------------------------------------------------------------------------------


def slots(region):
    return set(range(region.start, region.start + region.size))


@pytest.mark.parametrize("space_type", [FirstFit, Buddy])
@given(seed=st.integers(0, 2**32), num_slots=st.integers(1, 300))
def test_regions_never_overlap_and_come_back_whole(space_type, seed, num_slots):
    chance, space = random.Random(seed), space_type(num_slots)
    at_first, held, free = list(space.holes), [], set(range(num_slots))
    for _ in range(60):
        if held and chance.random() < 0.45:
            region = held.pop(chance.randrange(len(held)))
            space.release(region)
            free |= slots(region)
            continue
        want = size = chance.randint(1, max(1, num_slots // 3))
        if space_type is Buddy:
            want = 1 << (size - 1).bit_length()
        before = list(space.holes)
        fits = [(hole.start, hole.size) for hole in before if hole.size >= want]
        if not fits:
            with pytest.raises(OutOfMemory):
                space.allocate(size)
            assert space.holes == before
            continue
        region = space.allocate(size)
        assert region.start == (min(fits) if space_type is FirstFit else min(fits, key=lambda hole: hole[::-1]))[0]
        assert slots(region) <= free
        assert region.size >= want
        assert space_type is FirstFit or region.start % region.size == 0
        held.append(region)
        free -= slots(region)
        assert [i for hole in space.holes for i in sorted(slots(hole))] == sorted(free)
        assert space.num_free == len(free)
    for region in held:
        space.release(region)
    assert space.holes == at_first


# Allocators and simulation ------------------------------------------------------------------------------------


def lengths(max_total):
    one = st.tuples(st.integers(1, max_total // 2), st.integers(1, max_total // 2))
    return st.lists(one, min_size=1, max_size=12)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ALLOCATORS)
@given(requests=lengths(32), num_slots=st.integers(64, 200), block_size=st.integers(1, 8))
def test_every_slot_is_one_kind_and_everybody_finishes(name, placement, requests, num_slots, block_size):
    allocator = make_allocator(name, num_slots, max_length=32, block_size=block_size, placement=placement)
    run = simulate(requests, allocator, places=True)
    assert allocator.num_free == num_slots, "everything comes back"
    for sample in run.samples:
        assert sum(sample.slots.values()) == num_slots
        assert min(sample.slots.values()) >= 0
        assert sample.slots["used"] == sum(place.tokens for place in sample.places)
        mine = [i for place in sample.places for start, size in place.regions for i in range(start, start + size)]
        assert len(mine) == len(set(mine)), "no slot belongs to two requests"
        assert all(sum(r.size for r in place.regions) >= place.tokens for place in sample.places)
        if name == "oracle":
            assert sample.slots["internal"] == 0
        if name == "paged":  # less than one block a request
            assert sample.slots["reserved"] + sample.slots["internal"] <= (block_size - 1) * sample.running
    assert name == "paged" or run.preempted == 0


def test_one_request_by_hand():
    run = simulate([(3, 4)], make_allocator("pow2", 16))
    # asks for 3 + 4, is given 8; three tokens at first, one more each step, gone after the seventh
    by_kind = {kind: [sample.slots[kind] for sample in run.samples] for kind in ("used", "reserved", "external")}
    assert by_kind == {"used": [3, 4, 5, 6, 0], "reserved": [4, 3, 2, 1, 0], "external": [1, 1, 1, 1, 0]}


def test_preemption_takes_the_last_and_loses_nothing():
    run = simulate([(2, 4), (2, 4)], make_allocator("paged", 8, block_size=1), places=True)
    assert run.preempted == 1
    alone = next(sample for sample in run.samples if sample.running == 1)
    assert [place.request for place in alone.places] == [0]


def test_at_most_so_many_run_at_once():
    run = simulate([(4, 8)] * 6, make_allocator("paged", 1024), max_running=2)
    assert max(s.running for s in run.samples) == 2


@pytest.mark.parametrize(
    ("request_", "allocator"),
    [
        ((2000, 100), {"name": "max", "num_slots": 4096, "max_length": 2048}),
        ((60, 5), {"name": "paged", "num_slots": 70, "block_size": 16}),
    ],
)
def test_a_request_that_does_not_fit_alone_ends_the_run(request_, allocator):
    with pytest.raises((OutOfMemory, OutOfBlocks)):
        simulate([(1, 1), request_], make_allocator(**allocator))


def test_the_papers_setting_gives_nearly_the_papers_figures():
    """OPT-13B, 12 GiB, 2,048 tokens, lengths with ShareGPT's means; Kwon et al., 2023, figures 2 and 13."""
    requests = synthetic("sharegpt", 400).at_most(2048).requests()
    runs = {
        name: simulate(requests, make_allocator(name, 15_728, max_length=2048), sample_every=20) for name in ALLOCATORS
    }
    used = {name: run.shares()["used"] for name, run in runs.items()}
    for name, theirs in (("max", 0.204), ("oracle", 0.382), ("paged", 0.963)):
        assert used[name] == pytest.approx(theirs, abs=0.03), name
    assert used["max"] < used["pow2"] < used["oracle"] < used["paged"]
    assert runs["max"].mean_running() == 7
    assert runs["max"].shares()["external"] == pytest.approx(1 - 7 * 2048 / 15_728, abs=1e-3)
