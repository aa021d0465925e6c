"""Takes charges that are the same for many requests, with little work for each."""

from collections.abc import Callable, Sequence
from math import ceil

from gateway.rate_limit.base import Charge, Decision, LimiterStatistics, RepeatedCharge
from gateway.rate_limit.bucket import rate
from gateway.rate_limit.headers import MILLISECONDS, go_duration, rate_limit_lines
from gateway.rate_limit.lease import Lease
from gateway.types import CONCURRENT

_MOST = 4096
_SECOND = 1000
"""In milliseconds."""
_UNKNOWN: tuple[Sequence[Charge], None] = ((), None)


def is_plain(charge: Charge) -> bool:
    """Tell whether a `LeasedCharge` can take `charge`: units of a bucket that refills."""
    rule = charge.rule
    return bool(charge.amount and rate(rule)) and not (charge.hold or rule.unit == CONCURRENT)


class DelegatedCharge:
    """Implements `RepeatedCharge` by `try_admit`, which should count no refusals.

    Whoever decides after it counts them. With a rule in shadow mode it takes nothing.
    """

    def __init__(
        self, charges: Sequence[Charge], *, try_admit: Callable[[Sequence[Charge]], Decision | None]
    ) -> None:
        self._charges = charges
        self._try_admit = try_admit

    def charge(self) -> bytes | None:
        """Take the charges, and return the header lines; see `RepeatedCharge`."""
        if any(charge.rule.shadow for charge in self._charges):
            return None
        decision = self._try_admit(self._charges)
        if decision is None or not decision.allowed:
            return None
        return rate_limit_lines(decision)


class LeasedCharge:
    """Implements `RepeatedCharge` over leases, at a fraction of the cost of `try_admit`.

    It counts in `counts`, and calls `renew` where the leases are low. `lines` are the header lines,
    to be filled with the state of each lease; rules in shadow mode are not shown. A lease that its
    limiter has dropped holds nothing and is granted nothing, so this object then returns `None` for
    ever.
    """

    def __init__(
        self,
        charges: Sequence[Charge],
        leases: Sequence[Lease],
        *,
        lines: bytes,
        monotonic: Callable[[], float],
        counts: LimiterStatistics,
        renew: Callable[[Sequence[Charge], Sequence[Lease], float], None],
    ) -> None:
        self._charges = charges
        self._leases = leases
        pairs = list(zip(leases, charges, strict=True))
        self._amounts = [(lease, charge.amount) for lease, charge in pairs]
        self._hidden = [(lease, charge.amount) for lease, charge in pairs if charge.rule.shadow]
        shown = [(lease, charge.amount) for lease, charge in pairs if not charge.rule.shadow]
        # Each lease with the index of its numbers in `values`, which is filled anew each time.
        self._shown = [(lease, amount, 2 * index) for index, (lease, amount) in enumerate(shown)]
        self._values: list[bytes | int] = [0] * (4 * len(shown))
        self._lines = lines
        self._monotonic = monotonic
        self._counts = counts
        self._renew = renew

    def charge(self) -> bytes | None:
        """Take the charges, and return the header lines; see `RepeatedCharge`."""
        now = self._monotonic()
        for lease, amount in self._amounts:
            # The bucket may have become one that does not refill.
            if lease.available < amount or lease.usable_until <= now or not lease.refill:
                return None
        is_low = self._spend_hidden(now) if self._hidden else False
        values, half = self._values, len(self._values) // 2
        for lease, amount, at in self._shown:
            # As `Lease.spend` does for buckets that refill, without a call for each.
            lease.available = available = lease.available - amount
            lease.spent += amount
            lease.used_at = now
            if available < lease.renew_below:
                is_low = True
            capacity, refill = lease.rule.capacity, lease.refill
            level = lease.level + (now - lease.at) * refill
            if level < capacity:
                level += available
            if level >= capacity:
                values[at] = values[half + at] = capacity
                values[at + 1], values[half + at + 1] = 0, b"0s"
                continue
            values[at] = values[half + at] = int(level) if level > 0.0 else 0
            reset = (capacity - level) / refill
            # As `go_duration`, which would be another call.
            milliseconds = ceil(reset * 1000)
            values[at + 1] = -(-milliseconds // _SECOND)
            values[half + at + 1] = (
                MILLISECONDS[milliseconds] if milliseconds < _SECOND else go_duration(reset)
            )
        self._counts.admitted_by_lease += 1
        if is_low:
            self._renew(self._charges, self._leases, now)
        return self._lines % tuple(values)

    def _spend_hidden(self, now: float) -> bool:
        """Take the charges that are not shown; return whether one of their leases is low."""
        is_low = False
        for lease, amount in self._hidden:
            lease.spend(amount, now)
            is_low = is_low or lease.available < lease.renew_below
        return is_low


class RepeatedCharges:
    """Keeps a `RepeatedCharge` for each tuple of charges that was admitted twice.

    Tuples are told apart by identity: `charges_for` returns the same one for equal requests. To be
    cleared when a rule may have changed, as another lease may then apply.
    """

    def __init__(self, make: Callable[[Sequence[Charge]], RepeatedCharge]) -> None:
        self._make = make
        # With the tuple itself, so that nothing else gets its id.
        self._known: dict[int, tuple[Sequence[Charge], RepeatedCharge | None]] = {}

    def charge(self, charges: Sequence[Charge]) -> bytes | None:
        """Take `charges`, and return the header lines; `None` where the limiter must decide."""
        _, repeated = self._known.get(id(charges), _UNKNOWN)
        if repeated is None:
            return None
        lines = repeated.charge()
        if lines is None:
            del self._known[id(charges)]
        return lines

    def add(self, charges: Sequence[Charge]) -> None:
        """Note that the limiter has admitted `charges`."""
        # Not made at once: with very many callers few of them are met again in time.
        is_repeated = id(charges) in self._known
        if len(self._known) >= _MOST and not is_repeated:
            self._known.clear()
        self._known[id(charges)] = (charges, self._make(charges) if is_repeated else None)

    def clear(self) -> None:
        """Leave all decisions to the limiter."""
        self._known.clear()
