"""The address tracer: what it notes is what the kernels load, and the pictures show just that."""

from __future__ import annotations

import os
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

pytest.importorskip("triton", reason="the tracer asks Triton's interpreter")

from pagedlab_lessons import fence, ladder, tracer
from pagedlab_lessons.fence import Memory
from pagedlab_lessons.plots import draw_tiles, figure
from pagedlab_lessons.tracer import RUNGS, trace_own, trace_ragged, trace_rungs

from pagedlab.kernels.runtime import INTERPRETED
from support.paths import ROOT

matplotlib.use("Agg")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton compiles here")
HEADS, KV_HEADS, SIZE = 4, 2, 16  # of tracer.Batch
LENGTHS = (150, 5, 33)


@interpreted
def test_the_interpreter_is_left_as_it_was():
    from triton.runtime.interpreter import interpreter_builder

    with pytest.raises(ZeroDivisionError):
        Memory().run(lambda: 1 // 0)
    assert not {"create_masked_load", "create_masked_store"} & set(vars(interpreter_builder))


def expected(rung, lengths):
    """From the formulas alone: (sequence, head, split, step) -> the rows of keys loaded."""
    tables, loads = tracer.Batch(lengths, [1] * len(lengths)).tables(), {}
    for b, length in enumerate(lengths):
        splits = 4 if rung[0] == "7" else 1
        tile = SIZE if rung[0] == "1" else 32
        tiles = -(-length // tile)
        for head in range(HEADS if rung[0] in "12" else KV_HEADS):
            kv_head = head * KV_HEADS // HEADS if rung[0] in "12" else head
            for split in range(splits):
                for step, i in enumerate(range(split * tiles // splits, (split + 1) * tiles // splits)):
                    positions = range(i * tile, min((i + 1) * tile, length))
                    rows = {(tables[b][p // SIZE] * SIZE + p % SIZE) * KV_HEADS + kv_head for p in positions}
                    loads[b, head, split, step] = rows
    return loads


@pytest.mark.parametrize("rung", RUNGS)
def test_kernels_load_what_the_formulas_say(rung, rng):
    lengths = (rng.randint(200, 400), rng.randint(1, 60), SIZE * rng.randint(1, 4))
    trace = trace_rungs(lengths)[rung]
    found = {(*program, step): rows for step, programs in enumerate(trace.steps) for program, rows in programs.items()}
    assert {key: set(rows.tolist()) for key, rows in found.items()} == expected(rung, lengths)
    assert trace.rows_stored == sum(lengths) * KV_HEADS
    assert trace.rows_loaded == trace.rows_stored * (HEADS // KV_HEADS if rung[0] in "12" else 1)


def test_ragged_tiles_cover_every_query_once_and_all_that_it_sees(rng):
    lengths = [40, *(rng.randint(1, 50) for _ in range(4))]
    queries = [40, *(rng.choice([1, rng.randint(1, length)]) for length in lengths[1:])]
    trace = trace_ragged(lengths, queries)
    starts = np.cumsum([0, *queries])
    for kv_head in range(KV_HEADS):
        tiles = [rows for program, rows in trace.queries.items() if program[0] % KV_HEADS == kv_head]
        assert sorted(np.concatenate(tiles)) == list(range(sum(queries)))
    for program, rows in trace.queries.items():
        b = int(np.searchsorted(starts, rows[0], side="right")) - 1
        assert rows[-1] < starts[b + 1], "a tile belongs to one sequence"
        last = lengths[b] - (starts[b + 1] - rows[-1])  # position of the tile's last query
        assert trace.keys[program].tolist() == list(range(last + 1))


def two_splits(batch, kv_heads, tokens, processors):
    return 2


@interpreted
def test_where_triton_compiles_another_process_interprets(monkeypatch):
    here = trace_rungs((20,))["3 heads share a load"]
    monkeypatch.setattr(tracer, "INTERPRETED", False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    there = trace_rungs((20,))["3 heads share a load"]
    assert [{p: rows.tolist() for p, rows in step.items()} for step in there.steps] == [
        {p: rows.tolist() for p, rows in step.items()} for step in here.steps
    ]
    own = trace_own({**ladder.SPLIT, "my_splits": two_splits}, (70, 5))
    assert own.programs == 6, "two sequences on two KV heads, the longer one split"
    monkeypatch.setattr(fence, "INTERPRETED", False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET"):
        Memory().run(lambda: None)


SCRIPT = """
from pagedlab_lessons import tracer
tracer.INTERPRETED = False
print(tracer.trace_rungs((20,))["3 heads share a load"].programs)
"""


@interpreted
def test_a_script_is_not_run_again_in_the_other_process(tmp_path):
    (script := tmp_path / "script.py").write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


@pytest.mark.parametrize(
    "call", [lambda: trace_rungs((0,)), lambda: trace_rungs((641,)), lambda: trace_ragged((4, 4), (5, 1))]
)
def test_what_cannot_be_drawn_is_refused(call):
    with pytest.raises(ValueError, match=r"one query or more|40 pages of 16|no more than its length"):
        call()


def test_tiles_are_solid_where_a_query_sees_a_key():
    _, ax = figure()
    draw_tiles(ax, trace_ragged((20, 30), (20, 1)))
    picture = np.asarray(ax.images[0].get_array())
    solid = picture[..., 3] == 1
    assert solid[:20].tolist() == np.tri(20, 30, dtype=bool).tolist()
    assert solid[20].all()
    assert len({tuple(row[0][:3]) for row in picture}) == 3, "two tiles of the prompt, one of the new token"
