"""Tests how runs of the pipeline benchmark become a line of its table."""

from loadtests.generator import Outcome
from loadtests.pipeline import PipelineSample, ProcessorTime, row, settled


def sample(gateway: float) -> PipelineSample:
    cost = ProcessorTime(
        gateway=gateway, backend=1.0, executor=1.0, events=1.0, valkeys=1.0, generator=1.0
    )
    return PipelineSample(
        cost=cost, outcome=Outcome(duration=2.0, statuses={200: 1}, latencies=[1.0])
    )


def test_units_are_of_the_bare_server_beside_each_run() -> None:
    line = row(16, [sample(50.0), sample(80.0), sample(300.0)], units=[10.0, 20.0, 30.0])

    assert line.microseconds.gateway == 80.0
    assert line.units.gateway == 5.0
    assert line.items_per_second == 8.0
    assert line.microseconds.served == 83.0


def test_what_start_up_leaves_running_is_no_idle_rate() -> None:
    windows = [
        {"gateway": 0.9, "events": 0.3},
        {"gateway": 0.02, "events": 0.03},
        {"gateway": 0.01, "events": 0.01},
        {"gateway": 0.009, "events": 0.0105},
        {"gateway": 0.5, "events": 0.0},
    ]

    assert settled(iter(windows)) == {"gateway": 0.009, "events": 0.0105}


def test_the_cores_for_the_aim_follow_from_the_time_of_all_processes() -> None:
    line = row(64, [sample(97.0)], units=[10.0], backends=2)

    assert line.microseconds.served == 100.0
    assert line.backends == 2
    assert line.rows_per_core == 10_000
    assert line.cores_for_aim == 5.0
