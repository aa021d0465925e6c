"""What the scenarios under load conclude from what they saw."""

import itertools

import pytest

from backends.protocol import Done, encode_frame
from loadtests.capacity import sustained
from loadtests.open_loop import Answer
from loadtests.shares import DeviceTimeSample, ratio, swapped


def test_traffic_is_ten_to_one_until_it_swaps() -> None:
    bodies = swapped(itertools.repeat(b"a"), itertools.repeat(b"b"), 22)

    sent = b"".join(itertools.islice(bodies, 44))

    assert sent == (b"a" * 10 + b"b") * 2 + (b"b" * 10 + b"a") * 2


def test_a_ratio_is_of_the_device_seconds_between_two_times() -> None:
    samples = [
        DeviceTimeSample(at=0.0, used=(5.0, 5.0)),
        DeviceTimeSample(at=1.0, used=(6.0, 6.0)),
        DeviceTimeSample(at=3.0, used=(8.0, 6.5)),
        DeviceTimeSample(at=9.0, used=(9.0, 9.0)),
    ]

    assert ratio(samples, 1.0, 4.0) == pytest.approx(4.0)


def test_a_queue_that_still_grows_is_not_sustained() -> None:
    steady = [_answered(due / 10, after=0.01) for due in range(40)]
    growing = [_answered(due / 10, after=due / 100) for due in range(40)]

    assert sustained(steady, 0.5, _is_done)
    assert not sustained(growing, 0.5, _is_done)
    assert not sustained(steady, 0.5, lambda answer: answer.due < 2.0)


def _is_done(answer: Answer) -> bool:
    return answer.status == 200


def _answered(due: float, *, after: float) -> Answer:
    body = encode_frame(Done(index=0, result=b"", rows=1, tokens=1))
    return Answer(due=due, sent=due, came=due + after, status=200, body=body, head=b"")
