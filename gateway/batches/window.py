"""Bounds the items in flight by how the gateway answers: one more each round, half when refused."""

import asyncio
from collections import deque
from collections.abc import Callable

_GROWTH = 1.0
_CUT = 0.5


class CongestionWindow:
    """Admits up to `most` items at a time, less while items are refused for lack of capacity.

    Additive increase, multiplicative decrease, at most one decrease a second (Chiu and Jain, 1989).
    """

    def __init__(self, most: int, *, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._limit = float(most)
        self._in_flight = 0
        self._cut_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many items may be in flight now."""
        return max(1, int(self._limit))

    async def enter(self) -> None:
        """Wait until one more item may be in flight."""
        while self._in_flight >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._admit()  # another one may go in its place
                raise
        self._in_flight += 1

    def leave(self, *, refused: bool) -> None:
        """Note that an item has ended, refused for lack of capacity or not."""
        self._in_flight -= 1
        if not refused:
            self._limit = min(self._most, self._limit + _GROWTH / self._limit)
        elif self._clock() >= self._cut_at:
            self._limit = max(1.0, self._limit * _CUT)
            self._cut_at = self._clock() + 1.0
        self._admit()

    def _admit(self) -> None:
        for _ in range(self.limit - self._in_flight):
            while self._waiting and self._waiting[0].done():
                del self._waiting[0]
            if not self._waiting:
                return
            self._waiting.popleft().set_result(None)
