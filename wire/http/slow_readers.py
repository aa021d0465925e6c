"""Decides which connections to close because their peers read too slowly.

A peer is watched while bytes for it wait in this process: the buffers of the operating system are
then full, so its rate is what it reads, or what its line carries.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

WINDOW: Final = 30.0
"""Seconds over which a peer's rate is measured; a shorter pause does no harm."""
LEAST_RATE: Final = 8 * 1024.0
"""Bytes a second that a peer must read over the window: half of what a bad mobile line carries."""
_STEP: Final = 5.0
"""Seconds between two marks, and before a peer may be closed as slow."""
_RATE_WHERE_FULL: Final = 64 * 1024.0
"""Bytes a second below which a peer is closed if others wait for the memory of its answer."""


class Reason(StrEnum):
    """Why a connection is closed."""

    SLOW = "slow"
    """Its peer read less than the least rate over the window."""
    WANTED = "wanted"
    """Its peer is slow, and other requests wait for memory."""
    FULL = "full"
    """Unsent answers exceeded their bound, and its peer is among the slowest."""


class ReadingPeer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer with bytes that it has not read; rates are in bytes a second."""

    unsent_bytes: int
    holder: Hashable = None
    """The key that holds bytes of the budget for its answer, if any."""
    since: float
    """When it began to have unread bytes."""
    seconds: float
    """How long `rate` was measured, up to a little more than the window."""
    rate: float
    recent_rate: float
    """The rate of the last five to ten seconds."""


class ReadProgress:
    """Measures one peer; `total` is any count that grows by what the peer reads."""

    def __init__(self, now: float, total: int) -> None:
        self.since = now
        self._marks = deque([(now, total)], maxlen=round(WINDOW / _STEP) + 1)

    def observe(
        self, now: float, total: int, unsent_bytes: int, holder: Hashable = None
    ) -> ReadingPeer:
        """Return the peer with its present rates."""
        marks = self._marks
        if now - marks[-1][0] >= _STEP:
            marks.append((now, total))
        first = marks[0]
        recent = marks[-2] if len(marks) > 1 else first
        return ReadingPeer(
            unsent_bytes=unsent_bytes,
            holder=holder,
            since=self.since,
            seconds=now - first[0],
            rate=_rate(first, now, total),
            recent_rate=_rate(recent, now, total),
        )


def choose_to_close(
    readers: Sequence[ReadingPeer],
    *,
    excess_bytes: int = 0,
    wanted_bytes: int = 0,
    largest_holder: Hashable = None,
) -> dict[int, Reason]:
    """Return which of `readers` to close, by their places.

    `excess_bytes` is how far unsent answers exceed their bound. Requests wait for `wanted_bytes`;
    only connections of the key `largest_holder` are closed for these. The slowest connection is
    closed first; of equally slow ones, the oldest. Peers that were watched for less than five
    seconds come last, the oldest first.
    """
    chosen = {
        place: Reason.SLOW
        for place, one in enumerate(readers)
        if one.seconds >= WINDOW and one.rate < LEAST_RATE
    }
    freed = sum(readers[place].unsent_bytes for place in chosen)
    if freed >= max(excess_bytes, wanted_bytes):
        return chosen
    for place in _slowest_first(readers):
        one = readers[place]
        if place in chosen:
            continue
        is_slow = one.seconds >= _STEP and one.recent_rate < _RATE_WHERE_FULL
        is_holder = one.holder is not None and one.holder == largest_holder
        if freed < wanted_bytes and is_slow and is_holder:
            chosen[place] = Reason.WANTED
        elif freed < excess_bytes:
            chosen[place] = Reason.FULL
        else:
            continue
        freed += one.unsent_bytes
    return chosen


def _rate(mark: tuple[float, int], now: float, total: int) -> float:
    seconds = now - mark[0]
    return (total - mark[1]) / seconds if seconds > 0 else 0.0


def _slowest_first(readers: Sequence[ReadingPeer]) -> Iterable[int]:
    def order(place: int) -> tuple[bool, float, float]:
        one = readers[place]
        is_new = one.seconds < _STEP  # so far its rate shows only the system's buffers
        return is_new, 0.0 if is_new else one.recent_rate, one.since

    return sorted(range(len(readers)), key=order)
