"""The race of 09 and 08's rectangle: what they say of a step is what the runs were at it."""

import re
from xml.etree import ElementTree

import pytest
from pagedlab_lessons.pictures.n08 import rectangle
from pagedlab_lessons.pictures.n09 import race, steps_of

from pagedlab import LLM
from pagedlab.recipes.trace import moments, record
from pagedlab.scheduler import Scheduler
from support.engines import exactly

LENGTHS, SIZE, BLOCKS = [12, 3, 5, 4], 4, 24


class StaticBatch(Scheduler):
    def may_admit(self, request):
        return len(self.plan.admitted) == len(self.running) and super().may_admit(request)


def run(tiny, scheduler, places):
    options = {"num_blocks": BLOCKS, "block_size": SIZE, "max_sequences": places, "prefix_caching": False}
    llm = LLM(tiny, scheduler=scheduler, verbose=False, **options)
    params = [exactly(n) for n in LENGTHS]
    prompts = [f"Once upon a time there was a {name}" for name in ("cat", "dog", "fox", "owl")]
    return moments(record(llm, prompts, params))


@pytest.fixture(scope="module")
def runs(tiny):
    return {"Static: a batch": run(tiny, StaticBatch, 2), "Continuous: at once": run(tiny, Scheduler, 2)}


def words(picture):
    """All that is written in it; the picture is XML."""
    return [part.text or "" for part in ElementTree.fromstring(picture).iter() if part.tag.endswith("text")]  # noqa: S314


def test_a_race_ends_first_where_who_is_done_leaves(runs):
    static, continuous = (steps_of(run) for run in runs.values())
    assert [end - start + 1 for start, end in continuous.values()] == LENGTHS
    assert max(end for _, end in continuous.values()) == sum(LENGTHS[1:]) == 12
    assert max(end for _, end in static.values()) == 12 + 5  # the second batch waits for the longest of the first
    for step in (0, 3, 12, 30):
        text = "\n".join(words(race(runs, step, places=2, blocks=BLOCKS, size=SIZE)))
        done = [sum(end <= step for _, end in steps.values()) for steps in (static, continuous)]
        assert f"finished answers: static {done[0]} of 4, continuous {done[1]} of 4." in text
        for run in runs.values():
            held = {block for one in run[min(step, len(run) - 1)].values() for block in one.blocks}
            assert f"{len(held)} of {BLOCKS} blocks are in use" in text


def test_a_rectangle_counts_padding_and_blocks(tiny):
    together = run(tiny, Scheduler, 4)
    prompts, step, kib = [sequence.prompt for sequence in together[0].values()], 6, 1024.0
    text = "\n".join(words(rectangle(together, step, ["Who? One. Two."] * 4, SIZE, kib)))
    columns = max(prompts) + step - 1
    blocks = sum(len(one.blocks) for one in together[step].values())
    assert f"the rectangle takes {4 * columns} KiB, the blocks take {blocks * SIZE} KiB" in text
    assert len(re.findall(r"ended with step \d", text)) == sum(n <= step for n in LENGTHS)
