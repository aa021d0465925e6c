"""Takes charges quickly if many requests have equal charges."""

from collections.abc import Callable, Sequence
from math import ceil

from sluicegate.gateway.rate_limit.base import Charge, Decision, LimiterStatistics, RepeatedCharge
from sluicegate.gateway.rate_limit.bucket import rate
from sluicegate.gateway.rate_limit.headers import MILLISECONDS, go_duration, rate_limit_lines
from sluicegate.gateway.rate_limit.lease import Lease
from sluicegate.gateway.types import CONCURRENT

_MAX_KNOWN = 4096
_SECOND = 1000
"""One second in milliseconds."""
_UNKNOWN: tuple[Sequence[Charge], None] = ((), None)


def is_plain(charge: Charge) -> bool:
    """Return whether a `LeasedCharge` can take `charge`. Its bucket must refill over time."""
    rule = charge.rule
    return bool(charge.amount and rate(rule)) and not (
        charge.is_reserved or rule.unit == CONCURRENT
    )


class DelegatedCharge:
    """Implements `RepeatedCharge` with the function `try_admit`.

    `try_admit` must not count refusals. After a refusal, the caller calls the limiter, and the
    limiter counts the refusal. If one of the rules is in shadow mode, `charge` takes nothing.
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
    """Implements `RepeatedCharge` with leases, at a fraction of the cost of `try_admit`.

    It counts admissions in `counts`, and calls `renew` when a lease has few units left. `lines` is
    the template of the header lines, which leaves out rules in shadow mode. If the limiter drops
    one of the leases, that lease stays empty. `charge` then always returns `None`.
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
        # Each lease with the index of its values in `_values`. Every charge overwrites these
        # values.
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
            # After a change of the rule, the bucket may no longer refill over time.
            if lease.available < amount or lease.usable_until <= now or not lease.refill:
                return None
        is_low = self._spend_hidden(now) if self._hidden else False
        values, half = self._values, len(self._values) // 2
        for lease, amount, at in self._shown:
            # The code of `Lease.spend` for buckets that refill, inlined to save a call for each
            # lease.
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
            # The code of `go_duration`, inlined to save a call.
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
        """Take the charges of rules in shadow mode; return whether one of their leases is low."""
        is_low = False
        for lease, amount in self._hidden:
            lease.spend(amount, now)
            is_low = is_low or lease.available < lease.renew_below
        return is_low


class RepeatedCharges:
    """Keeps a `RepeatedCharge` for each tuple of charges that was admitted at least twice.

    Tuples are compared by identity (`id`), because `charges_for` returns the same tuple object for
    equal requests. Call `clear` when a rule may have changed, because a different lease may then
    apply.
    """

    def __init__(self, make: Callable[[Sequence[Charge]], RepeatedCharge]) -> None:
        self._make = make
        # Each value holds its tuple, so that no other tuple can get the same id.
        self._known: dict[int, tuple[Sequence[Charge], RepeatedCharge | None]] = {}

    def charge(self, charges: Sequence[Charge]) -> bytes | None:
        """Take `charges` and return the header lines, or `None` if the limiter must decide."""
        _, repeated = self._known.get(id(charges), _UNKNOWN)
        if repeated is None:
            return None
        lines = repeated.charge()
        if lines is None:
            del self._known[id(charges)]
        return lines

    def add(self, charges: Sequence[Charge]) -> None:
        """Record that the limiter has admitted `charges`."""
        # The first admission only marks the tuple, because with many callers, few tuples are
        # charged again soon.
        is_repeated = id(charges) in self._known
        if len(self._known) >= _MAX_KNOWN and not is_repeated:
            self._known.clear()
        self._known[id(charges)] = (charges, self._make(charges) if is_repeated else None)

    def clear(self) -> None:
        """Drop all `RepeatedCharge` objects; the limiter then decides each request."""
        self._known.clear()
