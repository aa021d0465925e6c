"""The limit on items in flight follows the latencies of a backend."""

from sluicegate.gateway.routing.limit import CAUTIOUS, LEAST, UNLIMITED, Limit, after_answer


def after(limit: Limit, seconds: float, *, in_flight: int, answers: int) -> Limit:
    for _ in range(answers):
        limit = after_answer(limit, seconds, in_flight)
    return limit


def test_a_limit_in_use_grows_while_answers_take_what_they_do_as_a_rule() -> None:
    begun = after(CAUTIOUS, 0.01, in_flight=8, answers=20)
    later = after(begun, 0.01, in_flight=50, answers=200)

    assert LEAST < begun.allowed < 16
    assert later.allowed > 60


def test_a_limit_that_is_not_in_use_does_not_grow() -> None:
    assert after(CAUTIOUS, 0.01, in_flight=1, answers=1000).allowed == LEAST


def test_a_queue_shrinks_it_from_what_is_in_use() -> None:
    easy = after(UNLIMITED, 0.01, in_flight=10, answers=100)

    queued = after(easy, 0.05, in_flight=100, answers=50)

    assert easy.allowed == UNLIMITED.allowed
    assert queued.allowed < 100


def test_it_never_falls_below_the_least() -> None:
    assert after(Limit(allowed=50.0, usual=0.01), 9.0, in_flight=4, answers=500).allowed >= LEAST
