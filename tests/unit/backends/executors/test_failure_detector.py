"""A server is doubted after a failure, and while runs take far too long and none is answered."""

import pytest

from sluicegate.backends.executors.failure_detector import FailureDetector
from tests.support.clock import Clock


def test_there_is_none_at_first_nor_after_an_answer() -> None:
    doubt = FailureDetector(Clock())

    assert not doubt
    with doubt.run(0.01):
        assert not doubt
    assert not doubt


def test_a_failure_is_doubted_until_something_is_answered() -> None:
    doubt = FailureDetector(Clock())

    with pytest.raises(OSError, match="gone"), doubt.run(0.01):
        raise OSError("gone")

    assert doubt
    with doubt.run(0.01):
        pass
    assert not doubt


@pytest.mark.parametrize(("expected", "max_wait"), [(0.01, 1.0), (2.0, 10.0)])
def test_a_run_is_doubted_after_five_times_its_time_and_a_second_at_least(
    expected: float, max_wait: float
) -> None:
    clock = Clock()
    doubt = FailureDetector(clock)

    with doubt.run(expected):
        assert doubt.max_wait == max_wait
        clock.advance(max_wait)
        before = bool(doubt)
        clock.advance(0.1)
        after = bool(doubt)

    assert (before, after) == (False, True)


def test_who_answers_others_meanwhile_is_slow_and_not_away() -> None:
    clock = Clock()
    doubt = FailureDetector(clock)

    with doubt.run(0.01):
        clock.advance(5.0)
        with doubt.run(0.01):
            pass
        answered = bool(doubt)
        clock.advance(1.5)
        assert doubt

    assert not answered
