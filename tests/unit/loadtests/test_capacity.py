"""Tests what benchmarks of overload take for a rate that is sustained."""

from backends.protocol import Done, encode_frame
from loadtests.capacity import sustained
from loadtests.open_loop import Answer


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
