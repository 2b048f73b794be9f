"""Notebook 07: what the watch notes is what kernels load, the pictures show that, and a page quotes a kernel truly."""

import html
import inspect
import re
import sys

import matplotlib
import pytest

pytest.importorskip("triton", reason="kernels run in Triton's interpreter")
from pagedlab_lessons.kernels07 import ladder, loads, speeds
from pagedlab_lessons.kernels07 import watch as watching
from pagedlab_lessons.kernels07.loads import bench, opening, watch
from pagedlab_lessons.kernels07.watch import define, loads_of_rungs, trace_ragged
from pagedlab_lessons.plots import draw_tiles, figure

from pagedlab.kernels import attention
from pagedlab.kernels.runtime import INTERPRETED
from support.exercises import edited_answer as answer
from support.paths import ROOT

matplotlib.use("Agg")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton compiles here")
HEADS, KV_HEADS, SIZE = 4, 2, 16  # of what is traced
ONE_PAGE, SHARED, SPLIT = "rung 1, one page at a time", "rung 3, heads share a load", "rung 8, splits and their merge"
STUB = """@triton.jit
def my_decode(out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale, SIZE: tl.constexpr,
              GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr):
    ...
"""


# What is noted ------------------------------------------------------------------------------------------------------


def expected(rung, tables, lengths):
    """From the formulas alone: (sequence, head, split, step) -> the rows of keys loaded."""
    found = {}
    for b, length in enumerate(lengths):
        splits = 4 if rung[5] == "8" else 1
        tile = {"1": SIZE, "7": 64}.get(rung[5], 32)
        tiles = -(-length // tile)
        for head in range(HEADS if rung[5] in "12" else KV_HEADS):
            kv_head = head * KV_HEADS // HEADS if rung[5] in "12" else head
            for split in range(splits):
                for step, i in enumerate(range(split * tiles // splits, (split + 1) * tiles // splits)):
                    positions = range(i * tile, min((i + 1) * tile, length))
                    rows = {(tables[b][p // SIZE] * SIZE + p % SIZE) * KV_HEADS + kv_head for p in positions}
                    found[b, head, split, step] = rows
    return found


def test_kernels_load_what_the_formulas_say(rng):
    lengths = (rng.randint(200, 400), rng.randint(1, 60), SIZE * rng.randint(1, 4))
    watched = loads_of_rungs(lengths)
    assert list(watched) == list(speeds.RUNGS)
    for rung, (given, of, stopped) in watched.items():
        dim = given["q"].shape[-1]
        found = {(*load.program, load.step): set((load.elements // dim).tolist()) for load in of["k_cache"]}
        assert not stopped
        assert found == expected(rung, given["tables"].tolist(), lengths), rung


def test_ragged_tiles_cover_every_query_once_and_all_that_it_sees(rng):
    lengths = [40, *(rng.randint(1, 50) for _ in range(4))]
    queries = [40, *(rng.choice([1, rng.randint(1, length)]) for length in lengths[1:])]
    _, ax = figure()
    draw_tiles(ax, trace_ragged(lengths, queries=queries))
    bars = [(round(bar.get_y() + 0.5), bar.get_width(), bar.get_alpha()) for bar in ax.patches]
    solid = {row: width for row, width, alpha in bars if alpha is None}
    loaded = {row: width for row, width, alpha in bars if alpha}
    last = [n - new + i for n, new in zip(lengths, queries, strict=True) for i in range(new)]
    assert len(bars) == 2 * len(last), "each query is in one tile"
    assert solid == {row: at + 1 for row, at in enumerate(last)}
    assert all(loaded[row] >= solid[row] for row in solid)
    with pytest.raises(ValueError, match="1 to all of its tokens new"):
        trace_ragged((4, 4), (5, 1))


def two_splits(batch, kv_heads, tokens, processors):
    return 2


@interpreted
def test_where_triton_compiles_another_process_interprets(tmp_path, monkeypatch):
    """And it does not run again the script that asks for it."""
    own = {**ladder.SPLIT, "my_splits": two_splits}
    here = loads_of_rungs((70, 5), own)
    (script := tmp_path / "script.py").write_text(f"open({str(tmp_path / 'again')!r}, 'w')")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(watching, "INTERPRETED", False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    there = loads_of_rungs((70, 5), own)
    assert list(there) == ["yours", *speeds.RUNGS]
    for name, found in there.items():
        assert repr(found.of["k_cache"]) == repr(here[name].of["k_cache"])
    programs = {load.program for load in there["yours"].of["k_cache"]}
    assert len(programs) == 6, "two sequences on two KV heads, the longer one split"
    assert list(tmp_path.iterdir()) == [script]


# The pictures -------------------------------------------------------------------------------------------------------


def page(shown):
    return shown.drawn["html"]


def says(shown):
    return re.findall(r'data-say="([^"]*)"', page(shown))


@pytest.fixture(scope="module")
def first_picture():
    return opening()


@pytest.mark.parametrize(
    ("rung", "progress", "said"),
    [
        (ONE_PAGE, 0, "Step 1 of 13: 12 of 12 programs at work, each key loaded 2 x"),
        (SHARED, 17, "Step 2 of 7: 6 of 6 programs at work, each key loaded 1 x"),
        (SPLIT, 100, "Step 2 of 2: 6 of 20 programs"),
    ],
)
def test_the_first_picture_follows_its_controls(first_picture, rung, progress, said):
    first_picture.set(rung=rung, progress=progress)
    assert said in page(first_picture)
    names = re.findall(r"<text [^>]*>\(\d,\d[^<]*", page(first_picture))
    assert names
    assert not any("textLength" in name for name in names), "they are not squeezed on a page that is loaded in part"


def test_the_ladder_is_what_was_measured():
    assert list(speeds.METHODS)[:8] == list(ladder.RUNGS)
    for shape, case in speeds.SHAPES.items():
        text = html.unescape(speeds.draw_speeds(shape))
        assert all(f"{name}: {speed:,.0f} GB/s" in text for name, speed in speeds.speeds_of(case).items())


@interpreted
def test_a_readers_loads_are_drawn_as_they_were():
    assert "needed 40 bytes, loaded 40: 1 x" in page(watch.weights(answer("weights")))
    right = says(watch.scores(answer("scores")))
    assert "token 5, head 1, numbers 0-3: loaded 1 x, by (1)" in right
    wrong = says(watch.scores(answer("scores", "(j * HEADS + head)", "(j + head)")))
    assert "token 5, head 1, numbers 0-3: not loaded" in wrong
    twice = watch.decode(answer("decode"))
    assert "needed 3,584 bytes, loaded 7,168: 2 x" in page(twice)
    twice.set(step=1)
    assert sum(bool(re.search("slots? [^:]*: not loaded", said)) for said in says(twice)) == 2 * 2 * (2 + 1)


@interpreted
def test_a_stub_loads_nothing_and_a_kernel_that_stops_says_where():
    unwritten = page(watch.decode(define(STUB)["my_decode"]))
    assert "Nothing loaded yet." in unwritten
    assert "A smaller case, solved" in unwritten
    stopped = page(watch.weights(answer("weights", "i < n", "i <= n")))
    assert "Stopped: program (2, 0, 0) loads element 10 of s." in stopped
    broken = page(watch.weights(answer("weights", "score - m", "score - absent")))
    assert "name &#x27;absent&#x27; is not defined" in broken


@interpreted
@pytest.mark.parametrize("name", loads.SHOWN)
def test_a_solved_case_is_what_a_right_kernel_loads(name):
    """The programs of the small case load what is needed, each as often as those of the puzzle's solution do."""
    loaded = [int(access.elements) for access in loads.solved(name)[1]]
    shown = page(getattr(watch, name)(answer(name)))
    times = float(re.search(r"loaded [\d,]+: ([\d.]+) x", shown)[1])
    assert len(loaded) / len(set(loaded)) == times
    assert "A smaller case, solved" not in shown


@interpreted
def test_without_a_gpu_the_bench_counts_bytes():
    said = says(bench(answer("decode")))
    assert "yours: 2 x, 200.0% of the floor" in said
    assert "rung 3, heads share a load: 1 x, 100.0% of the floor" in said
    assert "No kernel of yours yet" in page(bench()), "nothing is measured, and no guess given away"


@pytest.mark.gpu
def test_on_a_gpu_the_bench_draws_the_readers_kernel_into_the_ladder():
    for kernel, cut in (answer("decode"), {"tile": 32}), (answer("split"), {"num_warps": 2, "num_stages": 5}):
        found = dict(
            re.findall(r'data-say="([^":]+): ([\d,]+) GB/s, ', page(bench(kernel, **cut)).replace("&#x27;", "'"))
        )
        assert found.keys() == {"yours", *speeds.RUNGS, speeds.PEERS["pagedlab"]}
        assert all(float(speed.replace(",", "")) > 10 for speed in found.values())
    wrong = page(bench(answer("decode", "h // GROUP", "h % KV_HEADS")))
    assert "Not measured: it differs from attention by" in wrong


SECTIONS = re.split(r"^## `(\w+)`$", (ROOT / "docs" / "kernel.md").read_text(), flags=re.MULTILINE)[1:]


def test_the_page_on_the_kernel_names_every_function_of_the_file():
    file = (ROOT / "pagedlab" / "kernels" / "attention.py").read_text()
    assert SECTIONS[::2] == re.findall(r"^def (\w+)", file, re.MULTILINE)


@pytest.mark.parametrize(("name", "text"), zip(SECTIONS[::2], SECTIONS[1::2], strict=True), ids=SECTIONS[::2])
def test_the_page_on_the_kernel_quotes_it_truly(name, text):
    parts = re.split(r"```python\n|```", text)
    function = getattr(attention, name)
    source = inspect.getsource(getattr(function, "fn", function))
    assert all(quoted in source for quoted in re.split(r"(?m)^ *\.{3}\n", "".join(parts[1::2])))
    assert all(note.strip() for note in parts[2::2]), "a note behind every few lines"
