"""The model of a server, percentiles, and runs of several engines, as notebook 14 uses them."""

from pagedlab_lessons.checks.n14 import fair_ratios
from pagedlab_lessons.measuring import OURS, Asked, Run, first_tokens, peers, percentile, simulate, workload


def seconds(sequences, prompt_tokens):
    """Of a step whose prompts alone take time, beside a second."""
    return 1.0 + 0.1 * prompt_tokens


def test_a_request_waits_for_a_slot_and_an_idle_server_for_the_next_arrival():
    requests = [Asked(0.0, 10, 3), Asked(0.5, 0, 1), Asked(9.0, 0, 2)]
    first, second, third = served = simulate(requests, seconds, slots=1)
    assert (first.admitted, first.times) == (0.0, [2.0, 3.0, 4.0])
    assert (second.admitted, second.times) == (4.0, [5.0])
    assert third.times == [10.0, 11.0]
    assert first_tokens(served) == [2.0, 4.5, 1.0]
    assert first_tokens(served, "admission") == [2.0, 1.0, 1.0]


def test_every_request_gets_its_tokens_in_order():
    requests = workload([0.1 * i for i in range(50)], 1, 9, seed=1)
    served = simulate(requests, seconds, slots=3)
    for request, one in zip(requests, served, strict=True):
        assert len(one.times) == request.answer
        assert request.arrived == one.arrived <= one.admitted < one.times[0]
        assert one.times == sorted(one.times)


def test_a_percentile_is_one_of_the_values():
    assert [percentile([4, 2, 1, 3], percent) for percent in (0, 1, 50, 51, 99, 100)] == [1, 1, 2, 3, 4, 4]


def test_seeds_are_averaged_and_hosts_stay_apart():
    measured = {
        "about": "text",
        "machine A": {
            OURS: {"model": "m", "uniform seed 1": {"tokens/s": 10}, "uniform seed 2": {"tokens/s": 30}},
            "vllm, shape of x": {"model": "m", "one": {"ms a token": 2.0}, "prefill": {"prompt tokens/s": 7}},
        },
        "machine B": {"vllm": {"model": "m", "how": "in one process", "uniform seed 1": {"tokens/s": 5}}},
    }
    assert peers(measured) == [
        Run("machine A", "m", "uniform", OURS, 20.0, (10, 30)),
        Run("machine A", "m", "one", "vllm", 500.0, (500.0,)),
        Run("machine A", "m", "prefill", "vllm", 7.0, (7,)),
        Run("machine B", "m", "uniform", "vllm in one process", 5.0, (5,)),
    ]
    assert fair_ratios(peers(measured)) == {}
