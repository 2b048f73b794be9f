"""benchmarks/peers.py: its requests, and one engine from end to end."""

import json
import os
import sys
from types import SimpleNamespace

import pytest

import peer_engines
import peer_workloads
import peers
from pagedlab import LLM, SamplingParams
from pagedlab.model import load_model
from support.paths import ROOT


@pytest.mark.parametrize("name", peer_workloads.WORKLOADS)
def test_a_workload_depends_on_its_seed_alone(name):
    make = peer_workloads.WORKLOADS[name]
    assert make(5) == make(5)
    assert make(5) != make(6)


def test_requests_arrive_at_their_rate():
    requests = peer_workloads.arrivals(100, 1)
    assert len(requests) == 800
    assert 6 < requests[-1].due < 10
    assert [r.due for r in requests] == sorted(r.due for r in requests)
    assert max(r.length for r in requests) <= 1024


class FakeEngine:
    """It needs a millisecond a token of the longest answer, by a clock of its own."""

    def __init__(self):
        self.now = 0.0

    def generate(self, work):
        self.now += 0.001 * max(work.lengths)
        return [[[7] * length for _ in range(work.answers)] for length in work.lengths]


def test_milliseconds_are_the_difference_of_two_works(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(peer_engines.time, "perf_counter", lambda: engine.now)
    found = peer_engines.measure(engine, "one", seed=1, model="")
    assert found["unit"] == "ms a token"
    assert found["figure"] == pytest.approx(1)


@pytest.mark.parametrize(("length", "wrong"), [(3, False), (0, True), (1025, True)])
def test_answers_that_end_early_are_counted_as_they_are(length, wrong, monkeypatch):
    engine = FakeEngine()
    engine.generate = lambda work: [[[7] * length] for _ in work.prompts]
    monkeypatch.setattr(peer_engines.time, "perf_counter", iter((0.0, 2.0)).__next__)
    if wrong:
        with pytest.raises(RuntimeError, match="did not get the tokens"):
            peer_engines.measure(engine, "ends", seed=1, model=str(ROOT / "data/tiny-qwen2"))
    else:
        found = peer_engines.measure(engine, "ends", seed=1, model=str(ROOT / "data/tiny-qwen2"))
        assert found["new tokens"] == 512 * 3
        assert found["figure"] == 256 * 3


def run(monkeypatch, *options):
    """Run the main program; each engine has a process of its own."""
    monkeypatch.setattr(sys, "argv", ["peers.py", "--engines", "pagedlab", *map(str, options)])
    peers.main()


def test_an_engine_from_end_to_end(tmp_path, monkeypatch):
    out = tmp_path / "result.json"
    options = ["--model", ROOT / "data/tiny-qwen2", "--workloads", "one", "--rounds", 1, "--vocabulary", 2000]
    options += ["--ranks", 2, "--alone", "--rates", 32, "--json", out]
    options += ["--top-k", 9, "--repetition-penalty", 1.1, "--options", 'pagedlab={"num_blocks": 2048}']
    run(monkeypatch, *options)
    result = json.loads(out.read_text())
    (answer,) = result["rounds"]["one"]["pagedlab"]
    assert answer["unit"] == "ms a token"
    assert 0 < answer["figure"] < 1000
    (arrived,) = result["load"]["32"]["pagedlab"]
    assert arrived["first token ms, median"] > 0
    options = {"max_sequences": 256, "ranks": 2, "num_blocks": 2048}
    assert result["engines"]["pagedlab"]["options"] == options
    assert result["sampling"] == {"top_k": 9, "top_p": None, "repetition_penalty": 1.1}


def test_random_weights_have_the_shape_of_the_folder():
    model = peer_engines.random_model(str(ROOT / "data/tiny-qwen2"))
    llm = LLM(model, num_blocks=8, verbose=False)
    (answer,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 4
    assert model.vocab_size == load_model(ROOT / "data/tiny-qwen2").vocab_size


def test_an_engine_of_one_gpu_is_not_started_on_two(monkeypatch):
    settings = json.dumps({"model": "", "random_weights": False, "share": 0.5, "ranks": 2})
    monkeypatch.setattr(sys, "argv", ["peer_engines.py", "nano-vllm", "1", "100", settings])
    with pytest.raises(NotImplementedError, match="nano-vllm is measured here on one GPU only"):
        peer_engines.main()


class StandIn:
    """Takes the place of vLLM's `LLM` and of SGLang's `Engine`."""

    def __init__(self, model="", model_path="", **options):
        self.model = model or model_path

    def generate(self, prompts=None, params=None, use_tqdm=None, input_ids=None, sampling_params=None):
        if input_ids is not None:
            return [{"output_ids": [7] * each["max_new_tokens"]} for each in sampling_params]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=(7,) * each.max_tokens)]) for each in params]


LIBRARIES = {
    "vllm": SimpleNamespace(LLM=StandIn, SamplingParams=lambda **options: SimpleNamespace(**options)),
    "sglang": SimpleNamespace(Engine=StandIn),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_process_of_an_engine_answers_each_line(name, monkeypatch):
    settings = {"model": "a folder", "random_weights": True, "share": 0.5, "ranks": 2}
    settings |= {"further": {"page_size": 16}, "limits": {"top_k": 20}}
    read, write = os.pipe()
    commands = [{"name": "prefill", "seed": 1}, {"name": "samples", "seed": 1}]
    monkeypatch.setitem(sys.modules, name, LIBRARIES[name])
    monkeypatch.setattr(sys, "argv", ["peer_engines.py", name, str(write), "100", json.dumps(settings)])
    monkeypatch.setattr(sys, "stdin", map(json.dumps, commands))
    monkeypatch.setattr(peer_workloads, "VOCABULARY", 100)
    monkeypatch.setattr(peer_workloads, "LIMITS", {})
    monkeypatch.setattr(os, "_exit", lambda code: None)
    peer_engines.main()
    start, prefill, samples = map(json.loads, os.fdopen(read))
    assert start["versions"].keys() == {name}
    assert start["options"]["load_format"] == "dummy"
    assert 2 in start["options"].values(), "the ranks"
    assert 0.5 in start["options"].values(), "the share of memory"
    assert start["options"]["page_size"] == 16
    assert peer_engines.how_to_sample(0.6) == {"temperature": 0.6, "top_k": 20}
    assert prefill["new tokens"] == 64
    assert prefill["unit"] == "prompt tokens/s"
    assert "did not get the tokens" in samples["error"], "one answer in place of eight"


def test_an_engine_that_does_not_start_is_named(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="pagedlab ended; see"):
        run(monkeypatch, "--model", tmp_path, "--json", tmp_path / "result.json")
