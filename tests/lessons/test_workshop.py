"""The workshop's pictures say what was measured and traced, and the page on the library's kernel quotes it truly."""

import html
import inspect
import re

import pytest

pytest.importorskip("triton", reason="kernels run in Triton's interpreter")
from pagedlab_lessons import ladder, workshop
from pagedlab_lessons.drawing.flow import page as page_of
from pagedlab_lessons.fence import define
from pagedlab_lessons.widgets.workshop import bench, opening, watch

from pagedlab.kernels import attention
from pagedlab.kernels.runtime import INTERPRETED
from support.exercises import edited_answer as answer
from support.paths import ROOT

interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton compiles here")
STUB = """@triton.jit
def my_decode(out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale, SIZE: tl.constexpr,
              GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr):
    ...
"""


def page(shown):
    return shown.drawn["html"]


def says(shown):
    return re.findall(r'data-say="([^"]*)"', page(shown))


@pytest.fixture(scope="module")
def first_picture():
    return opening()


ONE_PAGE, SHARED, SPLIT = "1 one page at a time", "3 heads share a load", "7 splits and their merge"


@pytest.mark.parametrize(
    ("rung", "progress", "said"),
    [
        (ONE_PAGE, 0, "Step 1 of 13: 12 of 12 programs at work, each key loaded 2 x"),
        (ONE_PAGE, 17, "Step 3 of 13: 12 of 12 programs at work, each key loaded 2 x"),
        (SHARED, 17, "Step 2 of 7: 6 of 6 programs at work, each key loaded 1 x"),
        (SPLIT, 0, "Step 1 of 2: 20 of 20 programs"),
        (SPLIT, 100, "Step 2 of 2"),
    ],
)
def test_the_first_picture_follows_its_controls(first_picture, rung, progress, said):
    first_picture.set(rung=rung, progress=progress)
    assert said in page(first_picture)
    names = re.findall(r"<text [^>]*>\(\d,\d[^<]*", page(first_picture))
    assert names
    assert not any("textLength" in name for name in names), "they are not squeezed on a page that is loaded in part"


def test_the_first_picture_hides_the_speeds_of_later_rungs(first_picture):
    """They are asked for below. The last rung shows all."""
    speeds = workshop.speeds_of(workshop.SHAPES["Llama-3-8B, 32 x 4,096"])
    written = [f">{speed:,.0f}<" for speed in speeds.values()]
    first_picture.set(rung=ONE_PAGE)
    assert [speed in page(first_picture) for speed in written] == [True, *[False] * (len(written) - 1)]
    first_picture.set(rung=SPLIT)
    assert all(speed in page(first_picture) for speed in written)


def test_the_ladder_is_what_was_measured():
    assert [f"rung {name.replace(' ', ', ', 1)}" for name in workshop.RUNGS] == list(ladder.RUNGS)
    found = workshop.recorded()
    for shape, case in workshop.SHAPES.items():
        speeds = workshop.speeds_of(case)
        rows = {row["method"]: row["GB/s"] for row in found["rows"] if row["case"] == case and "GB/s" in row}
        assert set(speeds.values()) <= set(rows.values()), shape
        assert speeds["the library's kernel"] == rows["pagedlab"]
        text = page_of("GB/s", workshop.ladder(speeds, found["roofs"]["copy"] / 1e9))
        assert all(f">{speed:,.0f}<" in text for speed in speeds.values())


@interpreted
def test_a_readers_loads_are_drawn_as_they_were():
    assert "needed 40 bytes, loaded 40: 1 x" in page(watch.weights(answer("weights")))
    right = says(watch.scores(answer("scores")))
    assert "token 5, head 1, number 3: loaded by (1,0,0)" in right
    wrong = says(watch.scores(answer("scores", "(j * HEADS + head)", "(j + head)")))
    assert "token 5, head 1, number 3: not loaded" in wrong
    twice = watch.decode(answer("decode"))
    assert "needed 3,584 bytes, loaded 7,168: 2 x" in page(twice)
    twice.set(step=1)
    assert sum("not loaded" in said and "holds nothing" not in said for said in says(twice)) == 2 * (5 + 1)


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
@pytest.mark.parametrize("name", workshop.SHOWN)
def test_a_solved_case_is_what_a_right_kernel_loads(name):
    """The programs of the small case load what is needed, each as often as those of the puzzle's solution do."""
    case = workshop.SHOWN[name]
    loaded = [element for access in case.accesses() for element in access.elements.tolist()]
    shown = page(getattr(watch, name)(answer(name)))
    times = float(re.search(r"loaded [\d,]+: ([\d.]+) x", shown)[1])
    assert len(loaded) / len(set(loaded)) == times
    assert "A smaller case, solved" not in shown


@interpreted
def test_without_a_gpu_the_bench_counts_bytes():
    assert page(bench(answer("decode"))).count("2 x, 12 programs, at most 7 steps") == 2, "yours, and rung 2"
    assert "No kernel of yours yet" in page(bench()), "nothing is measured, and no guess given away"


@pytest.mark.gpu
@pytest.mark.skipif(bool(INTERPRETED), reason="Triton does not compile here")
def test_on_a_gpu_the_bench_draws_the_readers_kernel_into_the_ladder():
    shape = "Qwen2.5-0.5B, 256 x 1,024"
    for kernel, cut in (answer("decode"), {"tile": 32}), (answer("split"), {"num_warps": 2, "num_stages": 5}):
        shown = html.unescape(page(bench(kernel, shape, **cut)))
        speeds = dict(re.findall(r'data-say="([^:"]+): ([\d,]+) GB/s', shown))
        assert {"yours", *workshop.RUNGS} <= speeds.keys() <= {"yours", *workshop.METHODS.values()}
        assert all(float(speed.replace(",", "")) > 10 for speed in speeds.values())
    wrong = page(bench(answer("decode", "h // GROUP", "h % KV_HEADS"), shape))
    assert "Not measured: it differs from attention by" in wrong
    with pytest.raises(ValueError, match="shape must be one of 'Llama-3-8B, 32 x 4,096'"):
        bench(answer("decode"), "Llama")


SECTIONS = re.split(r"^## `(\w+)`$", (ROOT / "docs" / "kernel.md").read_text(), flags=re.MULTILINE)[1:]


def test_the_page_on_the_kernel_names_every_function_of_the_file():
    file = (ROOT / "pagedlab" / "kernels" / "attention.py").read_text()
    assert SECTIONS[::2] == re.findall(r"^def (\w+)", file, re.MULTILINE)


@pytest.mark.parametrize(("name", "text"), zip(SECTIONS[::2], SECTIONS[1::2], strict=True), ids=SECTIONS[::2])
def test_the_page_on_the_kernel_quotes_it_truly(name, text):
    notes, quoted = re.split(r"```python\n|```", text)[2::2], re.split(r"```python\n|```", text)[1::2]
    function = getattr(attention, name)
    assert "".join(quoted).rstrip() == inspect.getsource(getattr(function, "fn", function)).rstrip()
    assert all(note.strip() for note in notes), "a note behind every few lines"
