"""Computes outlier ejection: a backend that fails repeatedly is not used for a while.

While a backend is available, its circuit breaker is closed. While the backend is ejected, its
circuit breaker is open. After the ejection, the circuit breaker is half-open: if a call fails
before another call has succeeded, the backend is ejected again, for longer.
"""

import math

import msgspec

from sluicegate.gateway.config.document import RoutingConfig

# Each consecutive ejection lasts longer than the last one, up to this multiple of `eject_for`.
MAX_TIMES = 6
# The fraction of failed calls covers about `_MEMORY` seconds. It is ignored until there were
# `_MIN_CALLS` calls.
_MEMORY = 5.0
_MIN_CALLS = 10.0
# An old failure is ignored when its weight has decayed below this value.
_FORGOTTEN = 0.05


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's recent failures and ejections.

    `failures` counts consecutive failures. `times` counts consecutive ejections, up to a maximum.
    The last ejection ends at `until`.

    `calls` counts all calls since the first failure, and `bad` counts the failed ones. Both counts
    decay with time. They were last updated at `at`.
    """

    failures: int = 0
    times: int = 0
    until: float = 0.0
    calls: float = 0.0
    bad: float = 0.0
    at: float = 0.0

    def holds(self, now: float) -> bool:
        """Return whether the backend is ejected."""
        return now < self.until


CLEAN = Ejection()


def after_failure(ejection: Ejection, now: float, routing: RoutingConfig) -> Ejection:
    """Return `ejection` after one more failure.

    Failures during an ejection do not prolong it, because the failed calls were in flight when the
    ejection began. After an ejection, the first failure ejects the backend again, unless a call has
    succeeded in the meantime.
    """
    if ejection.holds(now):
        return ejection
    failures = ejection.failures + 1
    counted = _after_call(ejection, now, bad=1.0)
    has_share = counted.calls >= _MIN_CALLS and counted.bad >= routing.eject_share * counted.calls
    if failures < routing.eject_after and not has_share:
        return msgspec.structs.replace(counted, failures=failures)
    times = min(ejection.times + 1, MAX_TIMES)
    until = now + routing.eject_for * times
    return Ejection(failures=routing.eject_after - 1, times=times, until=until)


def after_success(ejection: Ejection, now: float, routing: RoutingConfig) -> Ejection:
    """Return `ejection` after a successful call.

    Earlier ejections are forgotten once the backend has been healthy for some time.
    """
    if ejection is CLEAN or ejection.holds(now):
        return ejection
    counted = _after_call(ejection, now, bad=0.0)
    is_over = now - ejection.until >= routing.eject_for * ejection.times
    if is_over and counted.bad < _FORGOTTEN:
        return CLEAN
    times = 0 if is_over else ejection.times
    return msgspec.structs.replace(counted, failures=0, times=times)


def _after_call(ejection: Ejection, now: float, *, bad: float) -> Ejection:
    fade = math.exp((ejection.at - now) / _MEMORY)
    return msgspec.structs.replace(
        ejection, calls=ejection.calls * fade + 1.0, bad=ejection.bad * fade + bad, at=now
    )
