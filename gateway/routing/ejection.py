"""Computes outlier ejection: a backend that keeps failing is taken out of use for a while.

The circuit is closed while a backend is available, open while it is ejected, and half open after
that: a failure before the first success then opens it again, for longer.
"""

import math

import msgspec

from gateway.config.document import RoutingConfig

# The duration grows with every ejection in a row, up to this multiple of `eject_for`.
MAX_TIMES = 6
# The share of failures is of about this many seconds, and means something from so many calls on.
_MEMORY = 5.0
_LEAST_CALLS = 10.0
# The weight below which a faded failure is forgotten.
_FORGOTTEN = 0.05


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one backend: consecutive `failures`, `times` ejected, out of use `until`.

    `calls` and those of them that were `bad` fade with time; they are as of the time `at`. They
    are counted from the first failure on: successes before it are left out.
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

    Calls that were in flight at the ejection also fail, and do not lengthen it. A backend back
    from an ejection is out again at its first failure, unless a call succeeded before it.
    """
    if ejection.holds(now):
        return ejection
    failures = ejection.failures + 1
    counted = _after_call(ejection, now, bad=1.0)
    has_share = counted.calls >= _LEAST_CALLS and counted.bad >= routing.eject_share * counted.calls
    if failures < routing.eject_after and not has_share:
        return msgspec.structs.replace(counted, failures=failures)
    times = min(ejection.times + 1, MAX_TIMES)
    until = now + routing.eject_for * times
    return Ejection(failures=routing.eject_after - 1, times=times, until=until)


def after_success(ejection: Ejection, now: float, routing: RoutingConfig) -> Ejection:
    """Return `ejection` after a success; earlier ejections are forgotten once it stayed well."""
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
