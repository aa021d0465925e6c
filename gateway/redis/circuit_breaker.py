"""Decides whether a dependency is worth asking: closed, open or half-open; does no I/O itself."""

from enum import StrEnum


class BreakerState(StrEnum):
    """Closed: ask. Open: do not. Half-open: one call may find out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Opens after `failures` bad calls in a row; a call slower than `slow` seconds is a bad one.

    After `open_for` seconds one call is let through: if it is good the breaker closes, if it is bad
    or slow another `open_for` seconds begin. The caller passes `now`, so that nothing here waits.
    """

    def __init__(self, *, failures: int = 5, slow: float = 0.05, open_for: float = 1.0) -> None:
        self._failures = failures
        self._slow = slow
        self._open_for = open_for
        self._bad_in_a_row = 0
        self._opened_at = 0.0
        self._state = BreakerState.CLOSED
        self.opened = 0
        """How often it opened."""

    @property
    def state(self) -> BreakerState:
        """The state as of the last call."""
        return self._state

    def allows(self, now: float) -> bool:
        """Say whether to call at `now`; when half-open, only the first who asks hears yes."""
        if self._state is BreakerState.CLOSED:
            return True
        if now - self._opened_at < self._open_for:
            return False
        # A probe that never reports back must not keep the breaker half-open for ever.
        self._opened_at = now
        self._state = BreakerState.HALF_OPEN
        return True

    def succeeded(self, *, now: float, duration: float) -> None:
        """A call was answered after `duration` seconds."""
        if duration > self._slow:
            self.failed(now=now)
            return
        self._bad_in_a_row = 0
        self._state = BreakerState.CLOSED

    def failed(self, *, now: float, is_certain: bool = False) -> None:
        """A call failed or took too long; if `is_certain`, no other needs to find out."""
        self._bad_in_a_row += 1
        if self._state is BreakerState.OPEN:
            return
        is_probe = self._state is BreakerState.HALF_OPEN
        if is_certain or is_probe or self._bad_in_a_row >= self._failures:
            self._state = BreakerState.OPEN
            self._opened_at = now
            self.opened += 1
