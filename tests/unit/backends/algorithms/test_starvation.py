"""Tests which time counts as had by a process, and when it is starved."""

import pytest

from backends.algorithms.starvation import Clock


def test_what_runs_or_sleeps_has_its_time_by_the_clock() -> None:
    clock = Clock(elapsed=2.0, delay=0.0)

    assert clock.left(3.0) == 1.0
    assert clock.left(2.0) == 0.0
    assert not clock.is_starved(2.0)


def test_a_wait_for_a_core_is_no_use_of_the_time() -> None:
    clock = Clock(elapsed=4.0, delay=3.5)

    assert clock.left(1.0) == 0.5
    assert clock.is_starved(1.0)


@pytest.mark.parametrize("delay", [9.5, 10.0, 60.0])
def test_a_wait_for_a_core_ends_after_ten_times_as_long(delay: float) -> None:
    clock = Clock(elapsed=10.0, delay=delay)

    assert clock.left(1.0) == 0.0
    assert clock.is_starved(1.0)


def test_a_clock_may_begin_anew() -> None:
    before, now = Clock(elapsed=2.0, delay=0.5), Clock(elapsed=3.0, delay=0.75)

    assert now.since(before) == Clock(elapsed=1.0, delay=0.25)
