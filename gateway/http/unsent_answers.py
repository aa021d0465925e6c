"""Bounds the memory of answers that are encoded or not yet sent, and closes slow readers."""

import time
from collections.abc import Callable, Collection, Hashable
from typing import Annotated, Final, Protocol

import msgspec

from sluicegate.gateway.http.byte_budget import ByteBudget
from sluicegate.wire.http import writing
from sluicegate.wire.http.slow_readers import ReadingPeer, choose_to_close
from sluicegate.wire.metric_declaration import gauge

_SHARE_OF_MEMORY: Final = 4
"""Unsent answers may take one part in this many of a process's memory limit."""
LIMIT_BYTES: Final = 256 * 1024 * 1024
"""The bound in a process without a memory limit."""
LARGE_BYTES: Final = writing.LARGE_BYTES
"""Bytes above which an answer is encoded in a thread, counted by the budget, and sent in pieces.

Encoding fewer takes at most 10 ms. Smaller answers cannot exceed the bound before the next check,
since the number of connections is bounded, too.
"""
_SHARE_AFTER_CHECK: Final = 7 / 8
"""A check frees memory down to this share of the bound, so that the next write needs none."""


def unsent_limit(memory_limit_bytes: int) -> int:
    """Return the bound for a process with this memory limit; 0: it has none."""
    return memory_limit_bytes // _SHARE_OF_MEMORY or LIMIT_BYTES


class UnsentStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of answers that are being encoded or are not yet sent."""

    unsent_bytes: Annotated[
        int,
        gauge(
            "sluicegate_unsent_answer_bytes",
            "Bytes of responses that workers are encoding or have not sent.",
        ),
    ]


class WatchedConnection(Protocol):
    """A connection whose peer may read slowly."""

    def reader(self, now: float) -> ReadingPeer | None:
        """Return a peer that has not read everything, else `None`."""
        ...

    def own_unsent_bytes(self) -> int:
        """Return the unsent bytes that no budget counts."""
        ...

    def give_up(self) -> None:
        """Close the connection at once."""
        ...


class UnsentAnswers:
    """Counts the bytes of large answers against a budget, and of all others by their connections.

    One per process; belongs to its event loop. `on_close` is called for each connection closed.
    """

    def __init__(
        self, limit_bytes: int = LIMIT_BYTES, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._budget = ByteBudget(limit_bytes, what="Answers that are not sent yet", clock=clock)
        self._watched: list[tuple[Collection[WatchedConnection], Callable[[str], None]]] = []
        self._waiting_bytes = 0
        self._small_bytes = 0
        """Unsent bytes that the budget does not count, at the last check."""
        self._written_bytes = 0
        """Bytes written since the last check, in writes that are counted at once."""

    def watch(
        self, connections: Collection[WatchedConnection], on_close: Callable[[str], None]
    ) -> None:
        """Close slow ones among `connections`, too, which may change, and tell why."""
        self._watched.append((connections, on_close))

    def statistics(self) -> UnsentStatistics:
        """Return the bytes as of the last check."""
        return UnsentStatistics(unsent_bytes=self._budget.used_bytes + self._small_bytes)

    async def hold(self, key: Hashable, size: int, deadline: float) -> int:
        """Wait for room for an answer, and return the bytes that are held for it.

        An answer larger than a key's share holds the whole share.

        Raises:
            Overloaded: there is no room until `deadline`.
        """
        size = min(size, self._budget.largest())
        if not self._budget.try_hold(key, size):
            self._waiting_bytes += size
            try:
                await self._budget.hold(key, size, deadline)
            finally:
                self._waiting_bytes -= size
        return size

    def release(self, key: Hashable, size: int) -> None:
        """Release held bytes."""
        self._budget.release(key, size)

    def wrote(self, size: int) -> None:
        """Count a large write outside the budget; check connections if the bound is exceeded."""
        self._written_bytes += size
        if self._count() > self._budget.limit_bytes:
            self.check(self._clock())

    def check(self, now: float) -> None:
        """Close connections whose peers read too slowly, or that must make room for others."""
        self._small_bytes, self._written_bytes = 0, 0
        connections: list[tuple[WatchedConnection, Callable[[str], None]]] = []
        readers: list[ReadingPeer] = []
        for group, on_close in self._watched:
            for connection in group:
                reader = connection.reader(now)
                if reader is not None:
                    self._small_bytes += connection.own_unsent_bytes()
                    connections.append((connection, on_close))
                    readers.append(reader)
        limit, count = self._budget.limit_bytes, self._count()
        chosen = choose_to_close(
            readers,
            excess_bytes=count - round(limit * _SHARE_AFTER_CHECK) if count > limit else 0,
            wanted_bytes=self._waiting_bytes,
            largest_holder=max(
                (one.holder for one in readers), key=self._budget.held_by, default=None
            ),
        )
        for place, reason in chosen.items():
            connection, on_close = connections[place]
            self._small_bytes -= connection.own_unsent_bytes()
            connection.give_up()
            on_close(reason)

    def _count(self) -> int:
        return self._budget.used_bytes + self._small_bytes + self._written_bytes
