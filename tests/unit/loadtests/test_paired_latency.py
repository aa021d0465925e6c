"""Latencies beside other work are judged by windows in turns."""

import pytest

from loadtests.paired_latency import LatencyRound, p95, pair


def window(scale: float) -> list[float]:
    return [scale * (1.0 + number / 100) for number in range(100)]


def latency_round(speed: float, *, beside: float, drift: float = 1.0) -> LatencyRound:
    return LatencyRound(
        before=window(speed), beside=window(speed * beside), after=window(speed * drift)
    )


def test_a_machine_that_gets_slower_from_round_to_round_changes_no_ratio() -> None:
    found = pair([latency_round(speed, beside=1.15) for speed in (1.0, 5.0, 2.0)])

    assert found.ratio == pytest.approx(1.15)
    assert found.control == pytest.approx(1.0)
    assert found.alone == pytest.approx(p95(window(2.0)))


def test_one_bad_round_of_five_decides_nothing() -> None:
    rounds = [latency_round(1.0, beside=1.1) for _ in range(4)]

    assert pair([*rounds, latency_round(1.0, beside=40.0)]).ratio == pytest.approx(1.1)


def test_windows_alone_that_differ_are_seen_by_the_control() -> None:
    """Whichever of the two is the slower one."""
    rounds = [latency_round(1.0, beside=1.1, drift=drift) for drift in (1.5, 1 / 1.5)]

    assert pair(rounds).control == pytest.approx(1.5)
