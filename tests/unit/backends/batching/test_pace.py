"""The pace of a model: how much work is done in a second."""

import pytest

from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.policy import Release
from sluicegate.backends.executors.cost import CostModel
from tests.support.clock import Clock


def run(
    meter: Meter,
    clock: Clock,
    *,
    took: float,
    has_waiting: bool = False,
    has_reserved: bool = False,
    waiting_since: float = 0.0,
) -> None:
    """Run a batch that is predicted to take 10 ms."""
    meter.begin(0.01, waiting_since=waiting_since)
    clock.advance(took)
    meter.stop(0.01)
    meter.end(
        release=Release.IDLE,
        predicted=0.01,
        work=0.01,
        took=took,
        has_waiting=has_waiting,
        has_reserved=has_reserved,
    )


@pytest.mark.parametrize("worker_threads", [1, 2])
def test_a_pace_that_was_slow_is_not_kept_by_what_is_refused_for_it(worker_threads: int) -> None:
    clock = Clock()
    meter = Meter(worker_threads=worker_threads, cost=CostModel(), clock=clock)
    for _ in range(20):
        run(meter, clock, took=0.2, has_waiting=True)
    slow = meter.pace

    # Hardly anything is let in at such a pace: nothing waits when a batch ends.
    for _ in range(400):
        clock.advance(0.01)
        run(meter, clock, took=0.01)

    assert slow < 0.1
    assert meter.pace > 0.8 * worker_threads


def test_time_that_other_models_have_the_device_counts_while_rows_wait() -> None:
    clock = Clock()
    meter = Meter(worker_threads=1, cost=CostModel(), clock=clock)

    for _ in range(50):
        run(meter, clock, took=0.01, has_waiting=True)
        clock.advance(0.09)

    assert meter.pace == pytest.approx(0.1, rel=0.05)
    assert meter.own_pace == pytest.approx(1.0)


def test_time_in_which_reserved_work_does_not_come_is_idle() -> None:
    clock = Clock()
    meter = Meter(worker_threads=1, cost=CostModel(), clock=clock)

    for _ in range(50):
        run(meter, clock, took=0.01, has_reserved=True)
        clock.advance(0.09)

    assert meter.pace == pytest.approx(1.0)


def test_an_hour_in_which_nothing_waits_is_idle() -> None:
    """What waited when the last batch was taken was withdrawn, or ran in another thread."""
    clock = Clock()
    meter = Meter(worker_threads=1, cost=CostModel(), clock=clock)

    run(meter, clock, took=0.01, has_waiting=True)
    clock.advance(3600.0)
    run(meter, clock, took=0.01, waiting_since=clock())

    assert meter.pace == pytest.approx(1.0)
