"""The model of a server, percentiles, and runs of several engines, as notebook 14 uses them."""

import math

import pytest
from pagedlab_lessons.checks import check
from pagedlab_lessons.checks.measuring import fair_ratios, goodput, latencies
from pagedlab_lessons.colors import ink_on
from pagedlab_lessons.measuring import (
    OURS,
    Asked,
    Run,
    StepTimes,
    first_tokens,
    peers,
    percentile,
    simulate,
    workload,
)

from pagedlab.shipped import results

STEP = StepTimes(fixed=1.0, a_sequence=0.0, a_prompt_token=0.1)


def test_a_request_waits_for_a_slot_and_the_step_of_its_prompt_is_longer():
    first, second = simulate([Asked(0.0, 10, 3), Asked(0.5, 0, 1)], STEP, slots=1)
    assert (first.admitted, first.times) == (0.0, [2.0, 3.0, 4.0])
    assert (second.admitted, second.times) == (4.0, [5.0])
    assert first_tokens([first, second]) == [2.0, 4.5]
    assert first_tokens([first, second], "admission") == [2.0, 1.0]


def test_an_idle_server_waits_for_the_next_arrival():
    served = simulate([Asked(0.0, 0, 1), Asked(9.0, 0, 2)], STEP, slots=4)
    assert [one.times for one in served] == [[1.0], [10.0, 11.0]]


def test_every_request_gets_its_tokens_in_order():
    requests = workload([0.1 * i for i in range(50)], 1, 9, seed=1)
    served = simulate(requests, StepTimes(0.2, 0.01, 0.001), slots=3)
    for request, one in zip(requests, served, strict=True):
        assert len(one.times) == request.answer
        assert request.arrived == one.arrived <= one.admitted < one.times[0]
        assert one.times == sorted(one.times)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_a_percentile_is_one_of_the_values(percent, value):
    assert percentile([4, 2, 1, 3], percent) == value


def test_seeds_are_averaged_and_hosts_stay_apart():
    measured = {
        "about": "text",
        "machine A": {
            OURS: {"model": "m", "uniform seed 1": {"tokens/s": 10}, "uniform seed 2": {"tokens/s": 30}},
            "vllm, shape of x": {"model": "m", "one": {"ms a token": 2.0}, "prefill": {"prompt tokens/s": 7}},
        },
        "machine B": {"vllm": {"model": "m", "uniform seed 1": {"tokens/s": 5}}},
    }
    assert peers(measured) == [
        Run("machine A", "m", "uniform", OURS, 20.0, (10, 30)),
        Run("machine A", "m", "one", "vllm", 500.0, (500.0,)),
        Run("machine A", "m", "prefill", "vllm", 7.0, (7,)),
        Run("machine B", "m", "uniform", "vllm", 5.0, (5,)),
    ]
    assert fair_ratios(peers(measured)) == {}


def test_the_recorded_results_give_ratios():
    runs = peers(results("h200_peers"))
    ratios = fair_ratios(runs)
    assert ratios
    assert all(math.isfinite(ratio) for ratio in ratios.values())


def test_a_run_without_seeds_shows_none():
    run = Run("A", "m", "w", "vllm", 2.0)
    assert repr(run) == "Run(host='A', model='m', workload='w', engine='vllm', tokens_per_s=2.0)"
    assert eval(repr(run._replace(seeds=(1.0, 3.0)))) == run._replace(seeds=(1.0, 3.0))


def test_a_clock_that_starts_at_admission_is_named():
    told = str(check.latencies(lambda arrived, admitted, times: (times[0] - admitted, 0.0)))
    assert "You started the clock at admission" in told
    other = str(check.latencies(lambda arrived, admitted, times: (times[0], 0.0)))
    assert "admission" not in other


def test_goodput_counts_the_requests_within_both_limits():
    served = simulate([Asked(0.0, 10, 3), Asked(0.5, 0, 1)], STEP, slots=1)
    rows = [latencies(one.arrived, one.admitted, one.times) for one in served]
    assert goodput(rows, (2.0, 1.0), 5) == 1 / 5
    assert goodput(rows, (4.5, 1.0), 5) == 2 / 5
    assert goodput(rows, (4.5, 0.9), 5) == 1 / 5


def test_text_on_a_filled_shape_is_black_on_light_colors_and_white_on_dark_ones():
    assert ink_on("#FFFFFF") == ink_on("#F0E442") == "black"
    assert ink_on("#000000") == ink_on("#0072B2") == "white"


def test_vllm_in_one_process_is_named_so():
    measured = {"machine A": {"vllm": {"model": "m", "how": "in one process, random weights", "one": {"tokens/s": 5}}}}
    assert [run.engine for run in peers(measured)] == ["vllm in one process"]
