"""Divides a memory budget fairly among tenants or their API keys; requests wait for room.

A key of this module is whoever holds bytes: an API key in gateways, the scope (tenant) of an item
in backends. A key may hold at most eight times as many bytes as are free (the dynamic threshold of
Choudhury and Hahne 1998). So a single key can hold 8/9 of the budget, and another key still finds
room immediately.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

LARGE: Final = 256 * 1024
"""Requests up to this many bytes are not counted, because their number is limited elsewhere."""
_OF_FREE = 8
"""A key may hold this many times the free bytes."""
RETRY_AFTER: Final = 1.0
"""Seconds after which a request that found no room may try again."""


class _Waiting:
    """A request that waits for `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_granted = False
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class SharedBytes:
    """Lends the bytes of a budget (`limit_bytes`) to keys, and counts how many each key holds.

    If there is no room, requests wait. Keys with waiting requests take turns. No request can pass a
    waiting key that holds no bytes. `exhausted` creates the error for a request that finds no room
    in time. The object belongs to one event loop.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        exhausted: Callable[[], Exception],
        clock: Callable[[], float],
        most_waiting: int = 256,
        most_waiting_of_key: int = 32,
    ) -> None:
        self.limit_bytes = limit_bytes
        """May change at any time; keys keep the bytes that they hold."""
        self.used_bytes = 0
        self.exhausted = exhausted
        self._clock = clock
        self._most_waiting = most_waiting
        self._most_waiting_of_key = most_waiting_of_key
        self._held: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[_Waiting]] = {}
        """The waiting requests by key, in the order of the keys' turns."""
        self.waits = 0

    def held_by(self, key: Hashable) -> int:
        """Return the bytes that a key holds."""
        return self._held.get(key, 0)

    def try_hold(self, key: Hashable, size: int) -> bool:
        """Lend bytes to a key and return `True`, or return `False` if there is no room."""
        if self._waiting and (key in self._waiting or self._has_turn()):
            return False
        if not self._fits(key, size):
            return False
        self._add(key, size)
        return True

    async def hold(self, key: Hashable, size: int, deadline: float) -> None:
        """Wait for room and lend bytes to a key; `deadline` is a time of the clock.

        Raises:
            Exception: the error of `exhausted`, if there is no room before the deadline or too many
                requests wait.
        """
        if self.try_hold(key, size):
            return
        mine = len(self._waiting.get(key, ()))
        is_full = self.waits >= self._most_waiting or mine >= self._most_waiting_of_key
        if is_full or size > self.largest():
            raise self.exhausted()
        waiting = _Waiting(size)
        self._waiting.setdefault(key, deque()).append(waiting)
        self.waits += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                await waiting.woken
        except TimeoutError as error:
            self._leave(key, waiting)
            raise self.exhausted() from error
        except asyncio.CancelledError:
            self._leave(key, waiting)
            raise

    def release(self, key: Hashable, size: int) -> None:
        """Take bytes back from a key, and lend them to waiting requests."""
        self.used_bytes -= size
        held = self._held[key] - size
        if held:
            self._held[key] = held
        else:
            del self._held[key]
        if self._waiting:
            self._grant()

    def largest(self) -> int:
        """Return the maximum bytes that a single key can hold."""
        return self.limit_bytes * _OF_FREE // (_OF_FREE + 1)

    def _fits(self, key: Hashable, size: int) -> bool:
        free = self.limit_bytes - self.used_bytes - size
        return self._held.get(key, 0) + size <= _OF_FREE * free

    def _add(self, key: Hashable, size: int) -> None:
        if size:
            self.used_bytes += size
            self._held[key] = self._held.get(key, 0) + size

    def _has_turn(self) -> bool:
        """Return whether a waiting key holds nothing, so that new requests must wait behind it."""
        return any(key not in self._held for key in self._waiting)

    def _grant(self) -> None:
        """Lend free bytes to waiting requests, key by key."""
        is_moving = True
        while is_moving:
            is_moving = False
            for key, waiting in list(self._waiting.items()):
                if self._fits(key, waiting[0].size):
                    self._grant_first(key, waiting)
                    is_moving = True
                elif key not in self._held:
                    return

    def _grant_first(self, key: Hashable, waiting: deque[_Waiting]) -> None:
        first = waiting.popleft()
        self.waits -= 1
        del self._waiting[key]
        if waiting:
            self._waiting[key] = waiting  # moves the key behind the others
        self._add(key, first.size)
        first.is_granted = True
        if not first.woken.cancelled():  # a cancelled request frees its bytes in `_leave`
            first.woken.set_result(None)

    def _leave(self, key: Hashable, waiting: _Waiting) -> None:
        """Remove a request that ended while it waited."""
        if waiting.is_granted:
            self.release(key, waiting.size)
            return
        mine = self._waiting[key]
        mine.remove(waiting)
        self.waits -= 1
        if not mine:
            del self._waiting[key]
        self._grant()
