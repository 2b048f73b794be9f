"""KV arithmetic, address spaces, the four allocators and their simulation."""

import json
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
    Paged,
    Region,
    Request,
    make_allocator,
    padding_waste,
)
from pagedlab_lessons.simulation import KINDS, simulate
from pagedlab_lessons.traces import synthetic

from pagedlab import BlockPool, OutOfBlocks

PLACEMENTS = ("buddy", "first-fit")

# Arithmetic ---------------------------------------------------------------------------------------------------


def test_kv_bytes_of_known_models():
    kib = {name: shape.bytes_per_token / 1024 for name, shape in MODELS.items()}
    assert kib == {"OPT-13B": 800, "LLaMA-2-7B": 512, "LLaMA-3-8B": 128, "Qwen2.5-0.5B": 12, "Qwen3-0.6B": 112}
    llama = MODELS["LLaMA-2-7B"].bytes_per_token
    assert (4096 * llama, 4 * 4096 * llama, 64 * 16 * llama) == (2 * GIB, 8 * GIB, 512 * 2**20)
    assert 16 * MODELS["Qwen2.5-0.5B"].bytes_per_token == 192 * 1024
    assert MODELS["OPT-13B"].slots_in(12 * GIB) == 15_728


def test_from_config_reads_what_transformers_writes(tmp_path):
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "hidden_size": 896,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    for given_as in (config, file, str(file), {"model_type": "sees_too", "text_config": config}):
        shape = KVShape.from_config(given_as)
        assert (shape.name, shape.bytes_per_token, shape.max_length) == ("qwen2", 12 * 1024, 32768)
    assert KVShape.from_config(config | {"dtype": "float32"}).bytes_per_token == 24 * 1024
    assert KVShape.from_config(config | {"head_dim": 128}).head_dim == 128
    without_gqa = {key: value for key, value in config.items() if key != "num_key_value_heads"}
    assert KVShape.from_config(without_gqa).num_kv_heads == 14


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"dtype": "int3"}, "int3"),
        ({"kv_lora_rank": 512}, "compressed"),
    ],
)
def test_from_config_says_what_is_missing(change, says):
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 128}
    changed = {key: value for key, value in (config | change).items() if value is not None}
    with pytest.raises(ValueError, match=says):
        KVShape.from_config(changed)


def test_padding_of_four_sequences():
    slots, scores = padding_waste([128, 64, 32, 8])
    assert (round(100 * slots, 1), round(100 * scores, 1)) == (54.7, 67.1)


# Address spaces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space_type", [FirstFit, Buddy])
@given(seed=st.integers(0, 2**32), num_slots=st.integers(1, 300))
def test_regions_never_overlap_and_come_back_whole(space_type, seed, num_slots):
    chance, space = random.Random(seed), space_type(num_slots)
    at_first, held = list(space.holes), {}
    owner = [-1] * num_slots
    for key in range(60):
        if held and chance.random() < 0.45:
            victim = chance.choice(list(held))
            region = held.pop(victim)
            space.release(region)
            owner[region.start : region.start + region.size] = [-1] * region.size
            continue
        size, before = chance.randint(1, max(1, num_slots // 3)), list(space.holes)
        try:
            region = space.allocate(size)
        except OutOfMemory:
            want = size if space_type is FirstFit else 1 << (size - 1).bit_length()
            assert all(hole.size < want for hole in before)
            assert space.holes == before
            continue
        assert region.size >= size
        assert set(owner[region.start : region.start + region.size]) == {-1}
        owner[region.start : region.start + region.size] = [key] * region.size
        held[key] = region
        free = [i for i in range(num_slots) if owner[i] == -1]
        assert [i for hole in space.holes for i in range(hole.start, hole.start + hole.size)] == free
        assert space.num_free == len(free)
        if space_type is Buddy:
            assert region.size == 1 << (size - 1).bit_length()
            assert region.start % region.size == 0
    for region in held.values():
        space.release(region)
    assert space.holes == at_first


def test_first_fit_joins_holes_and_takes_the_lowest():
    space = FirstFit(30)
    a, b, c = (space.allocate(10) for _ in range(3))
    space.release(a)
    space.release(c)
    with pytest.raises(OutOfMemory, match=r"no hole of 11 slots: 20 of 30 are free, the largest hole has 10"):
        space.allocate(11)
    space.release(b)
    assert space.holes == [Region(0, 30)]


def test_a_buddy_joins_its_other_half_only():
    space = Buddy(8)
    regions = [space.allocate(2) for _ in range(4)]
    space.release(regions[1])
    space.release(regions[2])  # neighbours, but halves of different fours
    with pytest.raises(OutOfMemory):
        space.allocate(3)
    space.release(regions[0])
    assert space.allocate(3) == Region(0, 4)


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
    assert run.finished == len(requests)
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


@given(requests=lengths(32))
def test_the_oracle_and_pages_agree_when_a_block_is_one_token_and_nobody_waits(requests):
    oracle, paged = (simulate(requests, make_allocator(name, 4096, block_size=1)) for name in ("oracle", "paged"))
    assert [s.slots["used"] for s in oracle.samples] == [s.slots["used"] for s in paged.samples]
    assert oracle.steps == paged.steps == max(output for _, output in requests) + 1


def test_one_request_by_hand():
    run = simulate([(3, 4)], make_allocator("pow2", 16))
    # asks for 3 + 4, is given 8; three tokens at first, one more each step, gone after the seventh
    assert [s.slots["used"] for s in run.samples] == [3, 4, 5, 6, 0]
    assert [s.slots["reserved"] for s in run.samples] == [4, 3, 2, 1, 0]
    assert [s.slots["external"] for s in run.samples] == [1, 1, 1, 1, 0]
    run = simulate([(3, 5)], make_allocator("pow2", 16, placement="first-fit"))
    assert [s.slots["internal"] for s in run.samples][:-1] == [3] * 5  # 5 outputs reserve 8


def test_preemption_takes_the_last_and_loses_nothing():
    allocator = make_allocator("paged", 8, block_size=1)
    run = simulate([(2, 4), (2, 4)], allocator, places=True)
    assert run.preempted == 1
    assert run.finished == 2
    first_out = next(s for s in run.samples if s.running == 1)
    assert [place.request for place in first_out.places] == [0]
    assert allocator.num_free == 8


def test_at_most_so_many_run_at_once():
    requests = [(4, 8)] * 6
    run = simulate(requests, make_allocator("paged", 1024), max_running=2)
    assert max(s.running for s in run.samples) == 2
    assert all(s.slots["external"] == 0 for s in run.samples), "nobody is refused for lack of memory"


@pytest.mark.parametrize(
    ("requests", "allocator", "says"),
    [
        ([(4, 0)], lambda: make_allocator("paged", 64), "at least one token"),
        ([(1, 1), (0, 4)], lambda: make_allocator("max", 4096), "request 1"),
        ([(2000, 100)], lambda: make_allocator("max", 4096, max_length=2048), "max_length"),
        ([(2, 2)], lambda: make_allocator("max", 1024, max_length=2048), "never fit"),
        ([(60, 5)], lambda: make_allocator("paged", 70, block_size=16), "never fit"),
        ([(33, 1)], lambda: make_allocator("oracle", 63), "never fit"),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_first_step(requests, allocator, says):
    memory = allocator()
    with pytest.raises(ValueError, match=says):
        simulate(requests, memory)
    assert memory.num_free == memory.num_slots


def test_memory_held_by_somebody_else_is_an_error_not_a_wait():
    allocator = make_allocator("paged", 16, block_size=16)
    allocator.admit(99, Request(1, 1))
    with pytest.raises(OutOfBlocks):
        simulate([(1, 1)], allocator)


@pytest.mark.parametrize(
    ("name", "placement", "known"),
    [
        ("best", "buddy", "name must be one of 'max', 'pow2', 'oracle', 'paged', got 'best'"),
        ("max", "best-fit", "placement must be one of 'buddy', 'first-fit', got 'best-fit'"),
    ],
)
def test_an_unknown_allocator_names_the_known(name, placement, known):
    with pytest.raises(ValueError, match=known):
        make_allocator(name, 64, placement=placement)


def test_paged_is_the_real_pool():
    assert type(Paged(64, 16).pool) is BlockPool


def four(num_slots, requests, max_length):
    allocators = {name: make_allocator(name, num_slots, max_length=max_length) for name in ALLOCATORS}
    return {name: simulate(requests, allocator, sample_every=20) for name, allocator in allocators.items()}


def test_the_papers_setting_gives_nearly_the_papers_figures():
    """OPT-13B, 12 GiB, 2,048 tokens, lengths with ShareGPT's means; Kwon et al., 2023, figures 2 and 13."""
    runs = four(15_728, synthetic("sharegpt", 400).at_most(2048).requests(), 2048)
    used = {name: run.shares()["used"] for name, run in runs.items()}
    for name, theirs in (("max", 0.204), ("oracle", 0.382), ("paged", 0.963)):
        assert used[name] == pytest.approx(theirs, abs=0.03), name
    assert used["max"] < used["pow2"] < used["oracle"] < used["paged"]
    assert runs["max"].mean_running() == 7
    assert runs["max"].shares()["external"] == pytest.approx(1 - 7 * 2048 / 15_728, abs=1e-3)
    assert sum(runs["max"].shares()[kind] for kind in KINDS) == pytest.approx(1)
