"""Computes outlier ejection: a backend that keeps failing is taken out of use for a while.

The circuit is closed while a backend is available, open while it is ejected, and half open after
that: a failure before the first success then opens it again, for longer.
"""

import math

import msgspec

# The duration grows with every ejection in a row, up to this multiple of `eject_for`.
MAX_TIMES = 6
# The share of failures is over about this many seconds, and means something from so many calls on.
_MEMORY = 5.0
_LEAST_CALLS = 10.0
# The weight below which a faded failure is forgotten.
_FORGOTTEN = 0.05


class EjectionRules(msgspec.Struct, frozen=True, kw_only=True):
    """Ejects after `failures` in a row or a `share` of all calls, for `rest` seconds at first."""

    failures: int
    share: float
    rest: float


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one backend: consecutive `failures`, `times` ejected, out of use `until`.

    `calls` and those of them that were `bad` fade with time; they are as of the time `at`.
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


def after_failure(ejection: Ejection, now: float, rules: EjectionRules) -> Ejection:
    """Return `ejection` after one more failure.

    Calls that were in flight at the ejection also fail, and do not lengthen it. A backend back
    from an ejection is out again at its first failure, unless a call succeeded before it.
    """
    if ejection.holds(now):
        return ejection
    failures = ejection.failures + 1
    calls, bad = _faded(ejection, now)
    calls, bad = calls + 1.0, bad + 1.0
    is_out = failures >= rules.failures or (calls >= _LEAST_CALLS and bad >= rules.share * calls)
    if not is_out:
        return Ejection(
            failures=failures,
            times=ejection.times,
            until=ejection.until,
            calls=calls,
            bad=bad,
            at=now,
        )
    times = min(ejection.times + 1, MAX_TIMES)
    return Ejection(failures=rules.failures - 1, times=times, until=now + rules.rest * times)


def after_success(ejection: Ejection, now: float, rules: EjectionRules) -> Ejection:
    """Return `ejection` after a success; earlier ejections are forgotten once it stayed well."""
    if ejection is CLEAN or ejection.holds(now):
        return ejection
    calls, bad = _faded(ejection, now)
    is_over = now - ejection.until >= rules.rest * ejection.times
    if is_over and bad < _FORGOTTEN:
        return CLEAN
    return Ejection(
        failures=0,
        times=0 if is_over else ejection.times,
        until=ejection.until,
        calls=calls + 1.0,
        bad=bad,
        at=now,
    )


def _faded(ejection: Ejection, now: float) -> tuple[float, float]:
    fade = math.exp((ejection.at - now) / _MEMORY)
    return ejection.calls * fade, ejection.bad * fade
