"""Takes the same charges again and again, for answers that cost next to nothing."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

from gateway.rate_limit.base import Charge, Decision
from gateway.rate_limit.bucket import rate
from gateway.rate_limit.headers import go_duration, rate_limit_lines
from gateway.rate_limit.lease import Lease
from gateway.types import CONCURRENT


class RepeatedCharge(Protocol):
    """Takes charges that it was made for."""

    def spend(self) -> bytes | None:
        """Take them all and return the header lines; `None`, and nothing taken, where it cannot."""
        ...


def is_plain(charge: Charge) -> bool:
    """Return whether a `LeasedCharge` knows what `charge` needs: units of a bucket that refills."""
    rule = charge.rule
    return bool(charge.amount and rate(rule)) and not (
        charge.hold or rule.shadow or rule.unit == CONCURRENT
    )


class AskedCharge:
    """A `RepeatedCharge` that asks a limiter's `try_admit`."""

    def __init__(
        self, charges: Sequence[Charge], *, ask: Callable[[Sequence[Charge]], Decision | None]
    ) -> None:
        self._charges = charges
        self._ask = ask

    def spend(self) -> bytes | None:
        """Take the charges; see `RepeatedCharge`."""
        decision = self._ask(self._charges)
        if decision is None or not decision.allowed:
            return None
        return rate_limit_lines(decision)


class LeasedCharge:
    """A `RepeatedCharge` that decides as `RedisRateLimiter.try_admit` does, at a third of its cost.

    `took` hears of each time, and whether leases run low; `lines` are to be filled with how the
    leases stand. A lease that its limiter has forgotten holds nothing and is granted nothing: it
    ends the use of this object, not the limits.
    """

    def __init__(
        self,
        charges: Sequence[Charge],
        leases: Sequence[Lease],
        *,
        lines: bytes,
        monotonic: Callable[[], float],
        took: Callable[[Sequence[Charge], Sequence[Lease], float, bool], None],
    ) -> None:
        self._charges = charges
        self._leases = leases
        # With each lease where its numbers stand in `values`, which is filled again and again.
        self._parts = [
            (lease, charge.amount, lease.rule.capacity, 2 * index)
            for index, (lease, charge) in enumerate(zip(leases, charges, strict=True))
        ]
        self._values: list[bytes | int] = [0] * (4 * len(self._parts))
        self._lines = lines
        self._monotonic = monotonic
        self._took = took

    def spend(self) -> bytes | None:
        """Take the charges; see `RepeatedCharge`."""
        now = self._monotonic()
        for lease, amount, _, _ in self._parts:
            if lease.available < amount or lease.usable_until <= now:
                return None
        running_low = False
        values, half = self._values, len(self._values) // 2
        for lease, amount, capacity, at in self._parts:
            available = lease.available - amount
            lease.available = available
            lease.spent += amount
            lease.used_at = now
            if available < lease.low:
                running_low = True
            # As `Lease.state`, which would be called for each.
            level = lease.level + (now - lease.at) * lease.refill
            if level < capacity:
                level += available
            if level < capacity:
                reset = (capacity - level) / lease.refill
                values[at] = values[half + at] = int(level) if level > 0.0 else 0
                values[at + 1] = ceil(reset)
                values[half + at + 1] = go_duration(reset)
            else:
                values[at] = values[half + at] = capacity
                values[at + 1] = 0
                values[half + at + 1] = b"0s"
        self._took(self._charges, self._leases, now, running_low)
        return self._lines % tuple(values)
