"""All windows are looked at, and only what surely was in one counts."""

import random

import pytest

from loadtests.windows import AdmittedRequest, bound, local_share, most_over_the_limit
from tests.support.limits import most_over_the_limit as most_over_at_known_times, rule

LIMIT = rule(5, window=10.0)


def at(*times: float) -> list[AdmittedRequest]:
    return [AdmittedRequest(time, time) for time in times]


def test_one_too_many_at_once_is_seen() -> None:
    assert most_over_the_limit(at(*[1.0] * 6), LIMIT) == pytest.approx(1.0)
    assert most_over_the_limit(at(*[1.0] * 5), LIMIT) == pytest.approx(0.0)


def test_a_window_in_the_middle_is_seen() -> None:
    quiet, burst = [0.0, 20.0], [9.0, 9.5, 10.0, 10.0, 10.5, 11.0, 11.0]

    assert most_over_the_limit(at(*quiet, *burst), LIMIT) == pytest.approx(7 - 5 - 2.0 * 0.5)


def test_what_may_have_been_before_or_after_does_not_count() -> None:
    sure = at(*[1.0] * 5)

    assert most_over_the_limit([*sure, AdmittedRequest(-3.0, 1.0)], LIMIT) == pytest.approx(0.0)
    assert most_over_the_limit([*sure, AdmittedRequest(0.8, 1.0)], LIMIT) == pytest.approx(0.9)


def test_known_times_are_judged_as_by_looking_at_every_pair() -> None:
    chance = random.Random(5)
    for _ in range(50):
        times = sorted(chance.uniform(0.0, 30.0) for _ in range(chance.randrange(1, 60)))
        pairs = most_over_at_known_times([(time, 1) for time in times], LIMIT)

        assert most_over_the_limit(at(*times), LIMIT) == pytest.approx(pairs)


def test_what_is_allowed_is_known_beforehand() -> None:
    minute = rule(100, window=6.0)

    assert bound(minute, 180.0) == pytest.approx(3_100.0)
    assert local_share(minute, share=0.1, workers=4, away=10.0) == pytest.approx(40 + 4 * 10 / 0.6)
