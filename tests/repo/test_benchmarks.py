"""benchmarks/: each says how it is called, those without a GPU run in small, and results have one form and reader."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import common  # noqa: E402

PARTS = ("peer_engines", "peer_workloads", "attention_methods")  # other benchmarks import them
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in PARTS)
SMALL = {
    "bursts": "--requests 60 --rounds 2",
    "fp8": "--tiny",
    "parallel": "--shapes tiny --ranks 1 --device cpu --dtype float32 --modes graphs",
    "serving": "--requests 2 --shortest 2 --longest 5 --rungs generate ragged",
    "soak": "--minutes 0.05 --kinds 4 --interrupts",
    "soak_server": "--minutes 0.02 --clients 3 --kinds 4",
    "speculative": "--tokens 6 --k 2 --prompts story",
}


def run(name, *options):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PAGEDLAB_MODEL": str(ROOT / "data/tiny-qwen2")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_each_says_how_it_is_called(name):
    usage = ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text())) or ""
    assert f"benchmarks/{name}.py" in usage
    assert name == "common" or "--json" in usage


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(SMALL)))
def test_those_that_need_a_gpu_or_a_site_print_their_help(name):
    if name == "attention" and not find_spec("triton"):
        pytest.skip("it measures Triton kernels")
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"benchmarks/{name}.py" in done.stdout


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_writes_a_result_that_the_reader_prints(name, tmp_path):
    path = tmp_path / "result.json"
    done = run(name, *SMALL[name].split(), "--json", str(path))
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    assert {"about", "date", "machine", "versions", "rounds"} <= result.keys()
    assert f"benchmarks/{name}.py" in result["about"]
    entries = [entry for variants in result["rounds"].values() for rounds in variants.values() for entry in rounds]
    assert entries
    assert all(entry["figure"] >= 0 and entry["unit"] for entry in entries)
    shown = run("common", str(path)).stdout
    assert all(workload in shown for workload in result["rounds"])


def test_the_reader_prints_the_median_and_the_range():
    entries = [{"figure": figure} for figure in (300.0, 100.0, 200.0)]
    assert common.spread("ours", entries) == "ours 200 (100 to 300)"
    assert common.spread("ours", entries[:1]) == "ours 300"
    assert common.spread("ours", [{"error": "out of memory"}]) == "ours failed"


def test_results_of_different_machines_are_not_compared(tmp_path):
    paths = []
    for name in ("h200_peers_7b_shape", "h200_load_qwen2.5-0.5b"):
        result = json.loads((ROOT / "data/results" / f"{name}.json").read_text())
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(result))
    common.show(paths)
    result["machine"]["host"] = "another"
    paths[-1].write_text(json.dumps(result))
    with pytest.raises(SystemExit, match="different machines"):
        common.show(paths)
