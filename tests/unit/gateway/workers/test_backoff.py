"""Waits grow while something stays broken."""

import pytest

from sluicegate.gateway.workers.backoff import StoppableBackoff


def test_waits_double_up_to_the_longest() -> None:
    backoff = StoppableBackoff(longest=0.3, chance=lambda: 0.0)

    waits = [backoff.failed() for _ in range(5)]

    assert waits == [0.05, 0.1, 0.2, 0.3, 0.3]
    assert backoff.failures == 5


def test_chance_takes_up_to_half_of_a_wait() -> None:
    chances = iter((0.0, 0.5, 1.0))
    backoff = StoppableBackoff(longest=0.05, chance=lambda: next(chances))

    waits = [backoff.failed() for _ in range(3)]

    assert waits == pytest.approx([0.05, 0.0375, 0.025])


def test_a_success_starts_over() -> None:
    backoff = StoppableBackoff(chance=lambda: 0.0)
    backoff.failed()
    backoff.failed()

    assert backoff.succeeded()
    assert not backoff.succeeded()
    assert backoff.failed() == 0.05
