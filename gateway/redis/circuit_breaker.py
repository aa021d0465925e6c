"""Implements a circuit breaker for calls to Redis, without I/O."""

from enum import StrEnum
from typing import Final

from sluicegate.wire.metric_declaration import Aggregation, counter, gauge

BREAKER_OPEN: Final = gauge(
    "sluicegate_breaker_open",
    "Whether the circuit breaker of `cache_redis` or `state_redis` is open or half-open in any "
    "worker.",
    "dependency",
    over=Aggregation.MOST,
)
BREAKER_OPENINGS: Final = counter(
    "sluicegate_breaker_openings_total", "How often a circuit breaker opened.", "dependency"
)


class BreakerState(StrEnum):
    """The states: closed allows calls, open refuses them, half-open allows one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Opens after `failures` consecutive failures.

    A call that is slower than `slow` seconds is a failure, too.

    After `open_for` seconds, one call is allowed as a probe. If the probe succeeds, the breaker
    closes. If the probe fails, the breaker opens for another `open_for` seconds. Callers pass the
    present time as `now`.
    """

    def __init__(self, *, failures: int = 5, slow: float = 0.05, open_for: float = 1.0) -> None:
        self._failures = failures
        self._slow = slow
        self._open_for = open_for
        self._bad_in_a_row = 0
        self._opened_at = 0.0
        self.state = BreakerState.CLOSED
        """The state after the last call."""
        self.opened = 0
        """How often the circuit breaker has opened."""

    def allows(self, now: float) -> bool:
        """Return whether a call is allowed at `now`.

        While the breaker is half-open, only the probe is allowed.
        """
        if self.state is BreakerState.CLOSED:
            return True
        if now - self._opened_at < self._open_for:
            return False
        # A probe whose outcome is never recorded must not keep the circuit breaker half-open for
        # ever.
        self._opened_at = now
        self.state = BreakerState.HALF_OPEN
        return True

    def succeeded(self, *, now: float, duration: float) -> None:
        """Record a call that succeeded after `duration` seconds."""
        if duration > self._slow:
            self.failed(now=now)
            return
        self._bad_in_a_row = 0
        self.state = BreakerState.CLOSED

    def failed(self, *, now: float, is_certain: bool = False) -> None:
        """Record a failed or slow call. With `is_certain`, open the breaker immediately."""
        self._bad_in_a_row += 1
        if self.state is BreakerState.OPEN:
            return
        is_probe = self.state is BreakerState.HALF_OPEN
        if is_certain or is_probe or self._bad_in_a_row >= self._failures:
            self.state = BreakerState.OPEN
            self._opened_at = now
            self.opened += 1
