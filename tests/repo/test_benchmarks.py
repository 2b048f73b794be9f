"""benchmarks/: each says how it is called and runs in small, what is compared computes the same, and results have one
form and reader."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

import pytest

import common
import peer_workloads
import serving
from pagedlab.attention import paged_attention
from support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
PARTS = ("peer_engines", "peer_traces", "peer_workloads", "attention_methods")  # other benchmarks import them
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in PARTS)
SMALL = {
    "parallel": "--shapes tiny --ranks 1 2 --device cpu --dtype float32",
    "peers": "--model data/tiny-qwen2 --engines pagedlab --workloads one --rounds 1 --vocabulary 2000 --rates 32",
    "serving": "--requests 2 --shortest 2 --longest 5 --rungs generate ragged",
    "soak": "--minutes 0.05 --kinds 4 --interrupts",
    "speculative": "--tokens 6 --k 2 --prompts story",
}


def in_a_process(name, *options):
    """Run it as a user does."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def run(name, *options, monkeypatch):
    """Run its main program in this process, which has torch already. One that sends SIGINT gets its own process."""
    monkeypatch.setenv("PAGEDLAB_MODEL", str(ROOT / "data/tiny-qwen2"))
    if "--interrupts" in options:
        in_a_process(name, *options)
        return
    monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", *options])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", NAMES)
def test_each_says_how_it_is_called(name):
    usage = ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text())) or ""
    assert f"benchmarks/{name}.py" in usage
    assert name == "common" or "--json" in usage


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(SMALL)))
def test_those_that_need_a_gpu_or_a_site_print_their_help(name, monkeypatch, capsys):
    if name == "attention" and not find_spec("triton"):
        pytest.skip("it measures Triton kernels")
    with suppress(SystemExit):  # by argparse
        run(name, "--help", monkeypatch=monkeypatch)
    assert f"benchmarks/{name}.py" in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_writes_a_result_that_the_reader_prints(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
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


def test_results_of_different_machines_are_not_compared(tmp_path):
    paths = []
    for name in ("h100_peers_8b_small_cache", "h100_arrivals_qwen2.5-0.5b"):
        result = json.loads((ROOT / "data/results" / f"{name}.json").read_text())
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(result))
    common.show(paths)
    result["machine"]["host"] = "another"
    paths[-1].write_text(json.dumps(result))
    with pytest.raises(SystemExit, match="different machines"):
        common.show(paths)


@pytest.mark.parametrize("name", peer_workloads.WORKLOADS)
def test_a_workload_depends_on_its_seed_alone(name):
    make = peer_workloads.WORKLOADS[name]
    assert make(5) == make(5) != make(6)


def test_the_reference_is_attention_over_shuffled_pages():
    pytest.importorskip("triton")
    from attention_methods import METHODS, Case, Inputs, reference

    inputs = Inputs(Case("decode", "qwen2.5-0.5b", (48, 48, 48), (1, 1, 1)), seed=3, rotate_bytes=0, device="cpu")
    exact = reference(inputs)
    (gathered,) = METHODS["gather + SDPA"](inputs)
    for out in (paged_attention(*inputs.paged(0), backend="concat"), gathered()):
        assert (out.double() - exact).norm() < 0.01 * exact.norm()


def test_every_rung_is_told_in_order():
    told = re.findall(r"^  (\w+(?: \w+)?)  +\S", serving.__doc__ or "", re.MULTILINE)
    assert told == [*serving.RUNGS]
