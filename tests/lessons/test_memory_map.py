"""Notebook 01's moving picture shows the slots that the simulation counts."""

import re

import pytest
from pagedlab_lessons.colors import MEMORY_LOOKS
from pagedlab_lessons.drawing import NARROW, fill
from pagedlab_lessons.memory import ALLOCATORS, make_allocator
from pagedlab_lessons.pictures.n01 import memory_maps
from pagedlab_lessons.simulation import simulate

REQUESTS = [(20, 40), (60, 20), (10, 90), (30, 30), (50, 50), (12, 20)]
BOX = re.compile(
    r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="26" rx="3" fill="([^"]+)"'
)  # 26: not the legend's


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("step", [0, 7, 40])
def test_the_boxes_are_as_wide_as_the_counts(name, step):
    run = simulate(REQUESTS, make_allocator(name, 256, max_length=128, placement="first-fit"), places=True)
    sample = run.samples[step]
    picture = memory_maps({name: run}, step)
    for width, row, drawing in ((1080, 192, str(picture)), (NARROW, 96, picture.narrow)):
        boxes = [(float(x), float(size), look) for x, size, look in BOX.findall(drawing)]
        for kind in ("used", "reserved", "internal"):
            look = fill(MEMORY_LOOKS[kind])
            slots = sum(round(size * row / width) for _, size, drawn in boxes if drawn == look)
            assert slots == sample.slots[kind], kind
        assert all(x + size < width + 0.2 for x, size, _ in boxes), "all of memory is in its frame"
    assert f"{sample.running} running, {sample.waiting} waiting" in picture
