"""Computes outlier ejection: a backend that keeps failing is not used for a while.

The circuit is closed while a backend is available, and open while it is ejected. After that it is
half-open: a failure before the first success opens it again, for longer.
"""

import math

import msgspec

from gateway.config.document import RoutingConfig

# The duration grows with each consecutive ejection, up to this multiple of `eject_for`.
MAX_TIMES = 6
# The fraction of failures covers about this many seconds, and needs at least this many calls.
_MEMORY = 5.0
_MIN_CALLS = 10.0
# The weight below which an old failure is ignored.
_FORGOTTEN = 0.05


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's consecutive `failures`, number of ejections (`times`), and end of ejection.

    `calls` counts calls, and `bad` counts the failed ones. Both counts begin with the first failure
    and decay with time; they are the values at the time `at`.
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

    Calls that were in flight at the ejection fail too, but do not prolong it. After an ejection,
    the first failure ejects the backend again, unless a call succeeded before.
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
    """Return `ejection` after a success. Earlier ejections are forgotten after a healthy period."""
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
