"""One call of a backend that carries the items of several callers; knows nothing of HTTP."""

import asyncio
from collections.abc import Callable

import msgspec

from backends.protocol import Call, CallItem, Done, Failed, Frame, Report
from gateway.upstream.base import CallFailed, Cause, Receive

# A backend takes so many items of a call at once, and a body of this size is one write.
MAX_ITEMS = 256
MAX_BYTES = 256 * 1024
# Seconds of waiting for a place after which the time that items have left is told anew.
_LONG = 0.01


class CallShare:
    """What one caller has in a call: the items from `start` on. `outcome` ends when it has all."""

    def __init__(self, *, start: int, items: int, receive: Receive, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self.joined = loop.time()
        self.start = start
        self.missing = items
        self.receive = receive
        self.deadline = deadline
        self.outcome: asyncio.Future[Report] = loop.create_future()
        self._timer = loop.call_at(deadline, self._expire)

    def settle(self, report: Report) -> None:
        """End as answered."""
        self._timer.cancel()
        if not self.outcome.done():
            self.outcome.set_result(report)

    def fail(self, error: BaseException) -> None:
        """End as failed."""
        self._timer.cancel()
        if self.outcome.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.outcome.cancel()
        else:
            self.outcome.set_exception(error)

    def _expire(self) -> None:
        self.fail(CallFailed(Cause.TIMED_OUT, "the backend did not answer in time"))


class SharedCall:
    """Items of like calls, in the order in which they joined."""

    def __init__(self, like: Call) -> None:
        self._like = like
        self._items: list[CallItem] = []
        self._owners: list[CallShare] = []
        self._parts: list[CallShare] = []
        self._bytes = 0
        self._begun = asyncio.get_running_loop().time()
        self._waiting = 0
        self._stop: Callable[[], object] | None = None
        self.deadline = 0.0
        """The loop time at which the last caller stops waiting."""
        self.patience = 0.0
        """The silence in seconds that the most patient caller bears."""

    def call_at(self, now: float) -> Call:
        """Return the call that carries everything, sent at `now`.

        Items that waited long, for one of few places, have that much less time left.
        """
        items = self._items
        if now - self._begun > _LONG:
            items = [
                msgspec.structs.replace(item, remaining=item.remaining - (now - owner.joined))
                for item, owner in zip(items, self._owners, strict=True)
            ]
        elif len(self._parts) == 1:
            return self._like
        return msgspec.structs.replace(self._like, items=items)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits."""
        return self._waiting > 0

    @property
    def is_answered(self) -> bool:
        """Whether every item has its outcome."""
        return all(part.missing <= 0 for part in self._parts)

    def has_room(self, call: Call) -> bool:
        """Whether the items of `call` may travel along."""
        size = _size(call)
        return len(self._items) + len(call.items) <= MAX_ITEMS and self._bytes + size <= MAX_BYTES

    def join(self, call: Call, receive: Receive, *, deadline: float, patience: float) -> CallShare:
        """Take the items of `call` along."""
        part = CallShare(
            start=len(self._items), items=len(call.items), receive=receive, deadline=deadline
        )
        part.outcome.add_done_callback(self._ended)
        self._waiting += 1
        self.deadline = max(self.deadline, deadline)
        self.patience = max(self.patience, patience)
        self._items += call.items
        self._owners += [part] * len(call.items)
        self._parts.append(part)
        self._bytes += _size(call)
        return part

    def when_unwanted(self, stop: Callable[[], object]) -> None:
        """Call `stop` once nobody waits any more for what is not answered."""
        self._stop = stop

    def take(self, frame: Frame) -> None:
        """Give a frame to whom it belongs.

        A report comes with the outcomes of its moment: whoever has all of his need not wait for
        the items of others.
        """
        if isinstance(frame, Report):
            for part in self._parts:
                if part.missing <= 0:
                    part.settle(frame)
            return
        if not 0 <= frame.index < len(self._owners):
            return
        part = self._owners[frame.index]
        if not part.outcome.done():
            part.missing -= 1
            try:
                part.receive(_moved(frame, part.start))
            except Exception as error:  # noqa: BLE001 - one caller's fault costs no other his answer
                part.fail(error)

    def end(self, report: Report) -> None:
        """End every part with the last report."""
        for part in self._parts:
            part.settle(report)

    def fail(self, error: BaseException) -> None:
        """End every part that is not answered."""
        for part in self._parts:
            part.fail(error)

    def _ended(self, _: asyncio.Future[Report]) -> None:
        self._waiting -= 1
        if not self._waiting and self._stop is not None and not self.is_answered:
            self._stop()


def _moved(frame: Done | Failed, start: int) -> Done | Failed:
    return msgspec.structs.replace(frame, index=frame.index - start) if start else frame


def _size(call: Call) -> int:
    return sum(len(item.body) for item in call.items)
