"""The circuit breaker's states."""

from sluicegate.gateway.redis.circuit_breaker import BreakerState, CircuitBreaker


def opened(now: float) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, slow=0.05, open_for=1.0)
    for _ in range(3):
        breaker.failed(now=now)
    return breaker


def state_of(breaker: CircuitBreaker) -> BreakerState:
    return breaker.state


def test_it_opens_after_so_many_failures_in_a_row_and_not_before() -> None:
    breaker = CircuitBreaker(failures=3)
    for _ in range(10):
        breaker.failed(now=0.0)
        breaker.failed(now=0.0)
        breaker.succeeded(now=0.0, duration=0.001)
    assert breaker.allows(0.0)

    for _ in range(3):
        breaker.failed(now=0.0)

    assert not breaker.allows(0.0)
    assert breaker.opened == 1


def test_it_opens_on_slow_answers_too() -> None:
    breaker = CircuitBreaker(failures=3, slow=0.05)

    for _ in range(3):
        breaker.succeeded(now=0.0, duration=0.2)

    assert state_of(breaker) is BreakerState.OPEN


def test_after_a_while_one_may_try_and_closes_it() -> None:
    breaker = opened(now=10.0)

    assert [breaker.allows(10.9), breaker.allows(11.0), breaker.allows(11.0)] == [
        False,
        True,
        False,
    ]
    assert state_of(breaker) is BreakerState.HALF_OPEN
    breaker.succeeded(now=11.1, duration=0.01)

    assert state_of(breaker) is BreakerState.CLOSED
    assert breaker.allows(11.1)


def test_a_trial_that_fails_or_is_slow_opens_it_again() -> None:
    breaker = opened(now=10.0)

    assert breaker.allows(11.0)
    breaker.failed(now=11.1)
    assert not breaker.allows(12.0)
    assert breaker.allows(12.2)
    breaker.succeeded(now=12.4, duration=0.2)

    assert state_of(breaker) is BreakerState.OPEN
    assert not breaker.allows(13.3)


def test_a_trial_that_never_reports_does_not_keep_it_half_open() -> None:
    breaker = opened(now=10.0)
    assert breaker.allows(11.0)

    assert not breaker.allows(11.5)
    assert breaker.allows(12.0)


def test_a_late_failure_of_a_call_made_before_does_not_keep_it_open_longer() -> None:
    breaker = opened(now=10.0)

    breaker.failed(now=10.5)

    assert not breaker.allows(10.9)
    assert breaker.allows(11.0)
