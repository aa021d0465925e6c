"""Divides a device's time among models with weighted fair queueing.

The weight of a model is the amount of work that recently arrived for it, but not less than a
minimum. So an overload slows all models equally, and no model starves. If no other model has work,
a model gets all the time.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from sluicegate.backends.batching.bulk_pause import BULK_SHARE, BulkPause

# The time constant, in seconds, of the average of arriving work.
_MEMORY = 2.0
# The minimum weight of a model, relative to the largest weight.
_FLOOR = 0.02
# The weight of a model without any arrived work.
_LEAST_WEIGHT = 1e-9
# After a batch, a worker thread with more rows to run soon asks for a slot again. For this many
# seconds, its model keeps its place in the order. Otherwise, a model that already waits would
# always go next.
_RETURN_WINDOW = 0.005


class DeviceShare:
    """Accounts for one model's use of a device.

    The virtual clock, and the counts of waiting and running batches, change only under the lock of
    `device`.
    """

    def __init__(self, device: "Device") -> None:
        self._device = device
        self.arriving = 0.0
        self.seen = -math.inf
        self.clock = 0.0
        self.waiting = 0
        self.running = 0
        self.reserved_until = -math.inf
        self.pending: Callable[[], float] = float
        """Returns the seconds that the model's admitted work will take; 0 by default."""

    def competing(self, seconds: float) -> float:
        """Return how long other models use the device while this model works for `seconds`.

        The models share the device in proportion to their weights. No model gets more time than its
        admitted work takes.
        """
        return self._device.competing(self, seconds)

    @property
    def free_slots(self) -> int:
        """The number of slots of the device that are not in use; reads without a lock."""
        return self._device.free_slots

    def close(self) -> None:
        """Remove the model. The caller ensures that no thread waits for a slot of the model."""
        self._device.close(self)

    def arrived(self, seconds: float) -> None:
        """Add arrived work, in predicted seconds, to the model's weight."""
        now = self._device.clock()
        self.arriving = self.faded(now) + seconds
        self.seen = now

    def faded(self, now: float) -> float:
        """Return the recently arrived work; older work counts less."""
        return self.arriving * math.exp((self.seen - now) / _MEMORY)

    @contextmanager
    def slot(self) -> Iterator["SlotUse"]:
        """Wait for a slot of the device and hold it in the `with` block.

        A slot allows one batch at a time. Before the block ends, the holder sets `SlotUse.seconds`
        and `SlotUse.more`.
        """
        use = SlotUse(alone=self._device.enter(self))
        try:
            yield use
        finally:
            self._device.leave(self, use.seconds, more=use.more)


class SlotUse(msgspec.Struct, kw_only=True, eq=False):
    """Tells how a slot is used.

    `alone` means that no other slot is in use. `more` means that the model has more rows to run.
    `seconds` is the predicted time for which the slot is used.
    """

    alone: bool
    more: bool = False
    seconds: float = 0.0


class Device:
    """Owns the run slots of a device, and gives a free slot to the model with the lowest clock.

    A slot allows one batch at a time. The clock of a model is virtual: it advances by the time of
    the model's runs, divided by the model's weight. `bulk` limits the bulk batches of all models.
    """

    failure: str | None = None
    """Why no run in this process can succeed any more; `None` until a graph breaks the device."""

    def __init__(
        self, *, slots: int, clock: Callable[[], float], bulk_share: float = BULK_SHARE
    ) -> None:
        self.bulk = BulkPause(bulk_share)
        self._free = self._slots = slots
        # Recently used slot-seconds, with exponential decay up to the time `_at`.
        self._used, self._at = 0.0, clock()
        self.clock = clock
        self._changed = threading.Condition()
        self._shares: list[DeviceShare] = []
        self._now = 0.0

    def share(self) -> DeviceShare:
        """Register a model, and return its share of the device."""
        share = DeviceShare(self)
        with self._changed:
            self._shares.append(share)
        return share

    @property
    def shares(self) -> int:
        """The number of registered models."""
        return len(self._shares)

    @property
    def free_slots(self) -> int:
        """The number of slots that are not in use; reads without a lock."""
        return self._free

    def close(self, share: DeviceShare) -> None:
        """Remove a model."""
        with self._changed:
            if share in self._shares:
                self._shares.remove(share)

    def busy_share(self) -> float:
        """Return the recent utilization of the slots, between 0 and 1."""
        with self._changed:
            self._count()
            return min(1.0, self._used / (self._slots * _MEMORY))

    def _count(self) -> None:
        now = self.clock()
        passed, self._at = now - self._at, now
        fade = math.exp(-passed / _MEMORY)
        self._used = self._used * fade + (self._slots - self._free) * _MEMORY * (1.0 - fade)

    def enter(self, share: DeviceShare) -> bool:
        """Take a slot when it is this model's turn; return whether all other slots are free."""
        with self._changed:
            if not (share.waiting or share.running or share.reserved_until > self.clock()):
                # A model earns no credit while it is idle.
                share.clock = max(share.clock, self._now)
            share.reserved_until = -math.inf
            share.waiting += 1
            try:
                while not (self._free and self._next() is share):
                    # Wake up after the window, because the model that keeps its place may not come
                    # back.
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
        """Give a slot back, and charge `seconds` to the model.

        With `more`, the model keeps its turn for some milliseconds.
        """
        with self._changed:
            if more:
                share.reserved_until = self.clock() + _RETURN_WINDOW
            share.clock += seconds / self._weight(share)
            share.running -= 1
            self._count()
            self._free += 1
            self._changed.notify_all()

    def competing(self, share: DeviceShare, seconds: float) -> float:
        """Implement `DeviceShare.competing`; the result is approximate, because no lock is held."""
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
