"""Outlier ejection as arithmetic: a backend that fails again and again rests for a while."""

import msgspec

# The rest grows with every ejection in a row, up to this multiple of `eject_for`.
MAX_TIMES = 6


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """How a backend fared: consecutive `failures`, `times` ejected, out of use `until`."""

    failures: int = 0
    times: int = 0
    until: float = 0.0

    def holds(self, now: float) -> bool:
        """Tell whether the backend is out of use."""
        return now < self.until


CLEAN = Ejection()


def after_failure(
    ejection: Ejection, now: float, *, eject_after: int, eject_for: float
) -> Ejection:
    """Return `ejection` after one more failure.

    Calls that were in flight at the ejection also fail, and do not lengthen it. A backend back
    from an ejection is out again at its first failure.
    """
    if ejection.holds(now):
        return ejection
    failures = ejection.failures + 1
    if failures < eject_after:
        return Ejection(failures=failures, times=ejection.times, until=ejection.until)
    times = min(ejection.times + 1, MAX_TIMES)
    return Ejection(failures=eject_after - 1, times=times, until=now + eject_for * times)


def after_success(ejection: Ejection, now: float, *, eject_for: float) -> Ejection:
    """Return `ejection` after a success; earlier ejections are forgotten when it lasted."""
    if ejection is CLEAN or ejection.holds(now):
        return ejection
    if now - ejection.until >= eject_for * ejection.times:
        return CLEAN
    return Ejection(failures=0, times=ejection.times, until=ejection.until)
