"""Puts the items of several callers into one call of a backend, and hands each its outcomes."""

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from gateway.upstream.base import CallFailed, Cause, OnEnd, Receive
from wire.protocol import Call, CallItem, Done, Failed, Frame, FrameReader, Report, Task

# A backend admits so many items of a call at once, and a body of this size is one write.
MAX_ITEMS = 256
MAX_BYTES = 256 * 1024
# Seconds of waiting for a slot after which the remaining time of items is computed anew.
_NOTICEABLE_WAIT = 0.01
_body = attrgetter("body")

CallKind = tuple[str, str, str, Task, bytes, str, bool]


def kind_of(call: Call) -> CallKind:
    """Return the fields that calls must share so that their items can be sent as one call."""
    fields = (call.model, call.revision, call.profile, call.task, call.parameters, call.lane)
    return (*fields, call.truncate)


class CallPart(msgspec.Struct, eq=False):
    """The items of one caller in a call, from `start` on. It ends once all are answered."""

    shared: "SharedCall"
    start: int
    missing: int
    """The items without an answer."""
    receive: Receive
    on_end: OnEnd
    joined: float
    is_open: bool = True

    def take(self, frames: Sequence[Done | Failed]) -> None:
        """Hand outcomes to the caller, unless it waits no longer."""
        if not self.is_open:
            return
        self.missing -= len(frames)
        try:
            self.receive(frames)
        except Exception as error:  # noqa: BLE001 - one caller's fault must not cost another its answer
            self.end(error)

    def cancel(self) -> None:
        """End without telling the caller."""
        if self.is_open:
            self.is_open = False
            self.shared.part_ended()

    def end(self, how: Report | BaseException) -> None:
        """End with the report, or as failed."""
        if self.is_open:
            self.is_open = False
            self.shared.part_ended()
            self.on_end(how)


class SharedCall:
    """Items of like calls, in the order in which they joined."""

    def __init__(self, like: Call) -> None:
        self._like = like
        self._items: list[CallItem] = []
        self._owners: list[CallPart] = []
        self._parts: list[CallPart] = []
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self._created = self._loop.time()
        self.waiting = 0
        """How many callers still wait."""
        self._frames = FrameReader()
        self._final_report: Report | None = None
        self._on_abandoned: Callable[[], object] | None = None
        self._deadline = 0.0
        self._idle_timeout = 0.0

    def call_at(self, now: float, *, sender: int) -> Call:
        """Return the call with all items, as `sender` sends it at `now`.

        The time that items have waited for a slot is taken from what remains to them.
        """
        items = self._items
        if now - self._created > _NOTICEABLE_WAIT:
            items = [
                msgspec.structs.replace(item, remaining=item.remaining - (now - owner.joined))
                for item, owner in zip(items, self._owners, strict=True)
            ]
        return msgspec.structs.replace(self._like, items=items, sender=sender, sent=now)

    def silent_at(self) -> float:
        """Return the loop time at which the call ends unless something is heard from now on.

        No caller has a later deadline, or a longer idle timeout.
        """
        return min(self._deadline, self._loop.time() + self._idle_timeout)

    def has_room(self, call: Call) -> bool:
        """Return whether the items of `call` may be added."""
        size = _size(call)
        return len(self._items) + len(call.items) <= MAX_ITEMS and self._bytes + size <= MAX_BYTES

    def join(
        self, call: Call, receive: Receive, on_end: OnEnd, *, deadline: float, idle_timeout: float
    ) -> CallPart:
        """Add the items of `call`."""
        items = call.items
        part = CallPart(self, len(self._items), len(items), receive, on_end, self._loop.time())
        self.waiting += 1
        self._deadline = max(self._deadline, deadline)
        self._idle_timeout = max(self._idle_timeout, idle_timeout)
        self._items += items
        self._owners += [part] * len(items)
        self._parts.append(part)
        self._bytes += _size(call)
        return part

    def on_abandoned(self, stop: Callable[[], object]) -> None:
        """Call `stop` once no caller waits any more and items are unanswered."""
        self._on_abandoned = stop

    def feed(self, chunk: bytes) -> None:
        """Deliver the frames that end in the next `chunk` of the answer.

        Raises:
            CallFailed: it cannot be decoded.
        """
        frames: list[Frame] = []
        try:
            self._frames.feed(chunk, frames)
        except msgspec.DecodeError as error:
            raise CallFailed(Cause.CUT, "the backend's answer cannot be read") from error
        finally:
            self._take(frames)

    def _take(self, frames: Sequence[Frame]) -> None:
        """Deliver frames in their order, outcomes between two reports together."""
        outcomes: list[Done | Failed] = []
        for frame in frames:
            if isinstance(frame, Report):
                if outcomes:
                    self._deliver(outcomes)
                    outcomes = []
                self._report(frame)
            else:
                outcomes.append(frame)
        if outcomes:
            self._deliver(outcomes)

    def _report(self, report: Report) -> None:
        """End the parts that are answered by now: they need not wait for the others."""
        self._final_report = report
        for part in self._parts:
            if part.is_open and part.missing <= 0:
                part.end(report)

    def _deliver(self, frames: Sequence[Done | Failed]) -> None:
        """Hand outcomes to the callers whose items they are of."""
        self._final_report = None
        owners, count = self._owners, len(self._owners)
        shares: dict[CallPart, list[Done | Failed]] = {}
        # Most are of one part, item after item.
        last: CallPart | None = None
        share: list[Done | Failed] = []
        for frame in frames:
            index = frame.index
            if not 0 <= index < count:
                continue
            part = owners[index]
            if part is not last:
                last, share = part, shares.setdefault(part, [])
            start = part.start
            share.append(msgspec.structs.replace(frame, index=index - start) if start else frame)
        for part, share in shares.items():
            part.take(share)

    def end(self) -> None:
        """End every part: with the report where it came last, else as cut."""
        self._on_abandoned = None
        if self._final_report is None:
            self.fail(CallFailed(Cause.CUT, "the backend's answer ended too early"))
            return
        for part in self._parts:
            if part.is_open:
                part.end(self._final_report)
        self._forget_parts()

    def fail(self, error: BaseException) -> None:
        """End every part that is not answered."""
        self._on_abandoned = None
        for part in self._parts:
            part.end(error)
        self._forget_parts()

    def _forget_parts(self) -> None:
        """Leave no cycles, as parts refer to their call."""
        self._parts, self._owners = [], []

    def part_ended(self) -> None:
        """Note that one more caller waits no longer."""
        self.waiting -= 1
        if self.waiting or self._on_abandoned is None:
            return
        for part in self._parts:
            if part.missing > 0:
                self._on_abandoned()
                return


def _size(call: Call) -> int:
    return sum(map(len, map(_body, call.items)))
