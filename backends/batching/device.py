"""Divides a device's time between models by arriving work and by deficit in predicted seconds.

A model's weight follows the work that arrives for it, with a floor for each, so that under
overload every model is slowed alike and none is starved. A model alone gets everything.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from backends.batching.bulk_pause import BULK_SHARE, BulkPause

# Arriving work is averaged over about so many seconds: shares follow a swap within a few of them.
_MEMORY = 2.0
# The least weight of a model, as a share of the largest.
_FLOOR = 0.02
# Of a model for which nothing has arrived.
_LEAST_WEIGHT = 1e-9
# A worker thread that has more to run returns at once. For so many seconds its model keeps its
# position and deficit; else a waiting model would go next, whatever the shares.
_RETURN_WINDOW = 0.005


class DeviceShare:
    """Accounts for one model's use of a device. `device` serialises all access."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self.arriving = 0.0
        self.seen = -math.inf
        self.clock = 0.0
        self.waiting = 0
        self.running = 0
        self.reserved_until = -math.inf
        self.pending: Callable[[], float] = float
        """Returns the seconds that the model's admitted work takes the device; by default none."""

    def competing(self, seconds: float) -> float:
        """Return the seconds of other models' admitted work that are done beside so many of this.

        Each of them gets time by its weight, up to what it has.
        """
        return self._device.competing(self, seconds)

    @property
    def is_device_full(self) -> bool:
        """Whether all slots of the device are in use; read without a lock."""
        return self._device.is_full

    def close(self) -> None:
        """Close the account; no thread waits for a slot any more."""
        self._device.close(self)

    def arrived(self, seconds: float) -> None:
        """Add predicted work that arrived to the model's weight; older work counts less."""
        now = self._device.clock()
        self.arriving = self.faded(now) + seconds
        self.seen = now

    def faded(self, now: float) -> float:
        """Return the work that arrived lately, as it counts now."""
        return self.arriving * math.exp((self.seen - now) / _MEMORY)

    @contextmanager
    def slot(self) -> Iterator["SlotUse"]:
        """Wait for a slot of the device and hold it; set the seconds used on the result."""
        use = SlotUse(alone=self._device.enter(self))
        try:
            yield use
        finally:
            self._device.leave(self, use.seconds, more=use.more)


class SlotUse(msgspec.Struct, kw_only=True, eq=False):
    """Holds the predicted seconds a slot was used for, and whether its user has more to run.

    `alone` says whether it was the only slot in use.
    """

    alone: bool
    more: bool = False
    seconds: float = 0.0


class Device:
    """Owns a device's run slots; when models compete, the one furthest behind goes next.

    `bulk` bounds the bulk batches of all models.
    """

    failure: str | None = None
    """Why no run in this process can succeed any more, if an opened graph showed that."""

    def __init__(
        self, *, slots: int, clock: Callable[[], float], bulk_share: float = BULK_SHARE
    ) -> None:
        self.bulk = BulkPause(bulk_share)
        self._free = self._slots = slots
        # Slot-seconds used lately, faded up to `_at`.
        self._used, self._at = 0.0, clock()
        self.clock = clock
        self._changed = threading.Condition()
        self._shares: list[DeviceShare] = []
        self._now = 0.0

    def share(self) -> DeviceShare:
        """Open the account of a model."""
        share = DeviceShare(self)
        with self._changed:
            self._shares.append(share)
        return share

    @property
    def shares(self) -> int:
        """How many accounts are open."""
        return len(self._shares)

    @property
    def is_full(self) -> bool:
        """Whether all slots are in use; read without a lock."""
        return self._free == 0

    def close(self, share: DeviceShare) -> None:
        """Close the account of a model that was removed."""
        with self._changed:
            if share in self._shares:
                self._shares.remove(share)

    def busy_share(self) -> float:
        """Return the share of the slots that was in use in the last seconds."""
        with self._changed:
            self._count()
            return min(1.0, self._used / (self._slots * _MEMORY))

    def _count(self) -> None:
        now = self.clock()
        passed, self._at = now - self._at, now
        fade = math.exp(-passed / _MEMORY)
        self._used = self._used * fade + (self._slots - self._free) * _MEMORY * (1.0 - fade)

    def enter(self, share: DeviceShare) -> bool:
        """Wait until this model is next and a slot is free; return whether all slots were."""
        with self._changed:
            if not (share.waiting or share.running or share.reserved_until > self.clock()):
                # Absence earns no credit.
                share.clock = max(share.clock, self._now)
            share.reserved_until = -math.inf
            share.waiting += 1
            try:
                while not (self._free and self._next() is share):
                    # The model that keeps its position may not return.
                    self._changed.wait(_RETURN_WINDOW if self._free else None)
            finally:
                share.waiting -= 1
            share.running += 1
            self._now = max(self._now, share.clock)
            self._count()
            self._free -= 1
            if self._free:
                self._changed.notify_all()
            return self._free == self._slots - 1

    def leave(self, share: DeviceShare, seconds: float, *, more: bool = False) -> None:
        """Give the slot back and charge its use; with `more`, keep the position."""
        with self._changed:
            if more:
                share.reserved_until = self.clock() + _RETURN_WINDOW
            share.clock += seconds / self._weight(share)
            share.running -= 1
            self._count()
            self._free += 1
            self._changed.notify_all()

    def competing(self, share: DeviceShare, seconds: float) -> float:
        """Return the seconds of other models' work that are done beside so many of this one's.

        Without the lock: what it misses of another thread changes little.
        """
        pending = [(other, other.pending()) for other in self._shares if other is not share]
        others = [(other, most) for other, most in pending if most > 0.0]
        if not others:
            return 0.0
        now = self.clock()
        weights = [max(other.faded(now), _LEAST_WEIGHT) for other, _ in others]
        own = max(share.faded(now), _LEAST_WEIGHT)
        least = _FLOOR * max(own, *weights)
        each = seconds / max(own, least)
        return sum(
            [
                min(most, each * max(weight, least))
                for (_, most), weight in zip(others, weights, strict=True)
            ]
        )

    def _next(self) -> DeviceShare:
        now = self.clock()
        present = (s for s in self._shares if s.waiting or s.reserved_until > now)
        return min(present, key=lambda s: s.clock)

    def _weight(self, share: DeviceShare) -> float:
        now = self.clock()
        largest = max(each.faded(now) for each in self._shares)
        return max(share.faded(now) / largest, _FLOOR) if largest > 0 else 1.0
