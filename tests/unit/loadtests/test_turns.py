"""Variants in turns are compared round by round."""

import pytest

from loadtests.generator import Outcome
from loadtests.report import Costs, Turn, table_of


def turn(seconds: float, *, server: float = 1.0) -> Turn:
    """Return a run of a hundred requests."""
    outcome = Outcome(duration=seconds, statuses={200: 100}, latencies=[])
    return Turn(outcome, Costs(server=server, others=0.0, generator=0.0))


def test_a_machine_that_gets_slower_from_round_to_round_changes_no_ratio() -> None:
    speeds = (1.0, 5.0, 2.0)
    turns = {
        "first": [turn(speed, server=speed) for speed in speeds],
        "other": [turn(1.25 * speed, server=2 * speed) for speed in speeds],
    }

    first, other = table_of(turns)

    assert (first.rate, first.ratio, first.economy) == (50.0, 1.0, 1.0)
    assert other.ratio == pytest.approx(0.8)
    assert other.economy == pytest.approx(0.5)


def test_one_bad_round_of_five_decides_nothing() -> None:
    turns = {"first": [turn(1.0)] * 5, "other": [*[turn(2.0)] * 4, turn(80.0)]}

    assert table_of(turns)[1].ratio == pytest.approx(0.5)
