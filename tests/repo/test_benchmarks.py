"""benchmarks/: each that needs no GPU runs in small, and writes a result that the reader prints."""

import json
import runpy
import sys

import pytest

from pagedlab.attention import paged_attention
from support import warm
from support.paths import ROOT

SMALL = {
    "parallel": "--shapes tiny --ranks 1 2 --device cpu --dtype float32",
    "peers": "--model data/tiny-qwen2 --vocabulary 2000 --engines pagedlab --workloads one --rates 0.3 --least 2 "
    "--rounds 1 --seed 978",  # requests that arrive soon and are short
    "serving": "--requests 2 --shortest 2 --longest 5 --rungs generate ragged",
    "soak": "--minutes 0.05 --kinds 4",
    "speculative": "--tokens 6",
}


def run(name, *options, monkeypatch):
    """Run its main program in this process, which has torch already."""
    program = str(ROOT / "benchmarks" / f"{name}.py")
    monkeypatch.setenv("PAGEDLAB_MODEL", str(ROOT / "data/tiny-qwen2"))
    monkeypatch.setattr(sys, "argv", [program, *options])
    runpy.run_path(program, run_name="__main__")


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_writes_a_result_that_the_reader_prints(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pagedlab.recipes.ranks.group.context", warm.processes())
    path = tmp_path / "result.json"
    run(name, *SMALL[name].split(), "--json", str(path), monkeypatch=monkeypatch)
    result = json.loads(path.read_text())
    assert {"about", "date", "machine", "versions", "rounds"} <= result.keys()
    assert f"benchmarks/{name}.py" in result["about"]
    entries = [entry for variants in result["rounds"].values() for rounds in variants.values() for entry in rounds]
    assert entries
    assert all(entry["figure"] >= 0 and entry["unit"] for entry in entries)
    capsys.readouterr()
    run("common", str(path), monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    assert all(workload in shown for workload in result["rounds"])


def test_the_reference_is_attention_over_shuffled_pages():
    pytest.importorskip("triton")
    from attention_methods import METHODS, Case, Inputs, reference

    inputs = Inputs(Case("decode", "qwen2.5-0.5b", (48, 48, 48), (1, 1, 1)), seed=3, rotate_bytes=0, device="cpu")
    exact = reference(inputs)
    (gathered,) = METHODS["gather + SDPA"](inputs)
    for out in (paged_attention(*inputs.paged(0), backend="concat"), gathered()):
        assert (out.double() - exact).norm() < 0.01 * exact.norm()
