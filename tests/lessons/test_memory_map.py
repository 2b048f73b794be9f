"""Notebook 01's moving picture shows the slots that the simulation counts."""

import re

import pytest
from pagedlab_lessons.colors import MEMORY_LOOKS
from pagedlab_lessons.drawing import fill
from pagedlab_lessons.memory import ALLOCATORS, make_allocator
from pagedlab_lessons.memory_map import LEFT, PITCH, TOP, WIDTH, memory_map
from pagedlab_lessons.simulation import simulate

REQUESTS = [(20, 40), (60, 20), (10, 90), (30, 30), (50, 50), (12, 20)]
BOX = re.compile(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="[\d.]+" rx="3" fill="([^"]+)"')


def drawn_slots(picture, look, row):
    """Slots under the boxes of a look, those of the legend left out."""
    boxes = [(float(y), float(width)) for _, y, width, fill in BOX.findall(picture) if fill == look]
    return sum(round(width * row / WIDTH) for y, width in boxes if y >= TOP)


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("step", [0, 7, 40])
def test_the_boxes_are_as_wide_as_the_counts(name, step):
    run = simulate(REQUESTS, make_allocator(name, 256, max_length=128, placement="first-fit"), places=True)
    sample = run.samples[step]
    picture = memory_map(name, run, step, row=128)
    for kind in ("used", "reserved", "internal"):
        assert drawn_slots(picture, fill(MEMORY_LOOKS[kind]), 128) == sample.slots[kind], kind
    assert f"{name}, step {step}" in picture
    assert f"{sample.running} requests running, {sample.waiting} waiting" in picture


def test_after_the_last_step_the_last_one_is_shown():
    run = simulate(REQUESTS[:1], make_allocator("max", 256, max_length=128), places=True)
    assert memory_map("max", run, 10_000, row=128) == memory_map("max", run, len(run.samples) - 1, row=128)


def test_all_of_memory_is_in_its_frame():
    run = simulate(REQUESTS, make_allocator("paged", 256, max_length=128), places=True)
    for x, y, width, _ in BOX.findall(memory_map("paged", run, 12, row=128)):
        assert LEFT - 0.1 <= float(x) <= float(x) + float(width) < LEFT + WIDTH + 0.1
        assert float(y) < TOP + 2 * PITCH
