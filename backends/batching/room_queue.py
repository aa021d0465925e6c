"""Holds items in order of arrival until a full queue has room for their rows."""

import asyncio
from collections import Counter
from collections.abc import Callable

from backends.batching.fair_queue import FlowKey


class RoomQueue:
    """Lets items wait for room in order. Belongs to the loop; `rows` counts what waits."""

    def __init__(self) -> None:
        # asyncio's lock is fair: its holder is the head of the queue and checks for room.
        self._head = asyncio.Lock()
        self._freed = asyncio.Event()
        self._flows: Counter[FlowKey] = Counter()
        self.rows = 0

    def holds(self, flow: FlowKey) -> bool:
        """Whether an item of this flow waits."""
        return flow in self._flows

    async def wait(
        self, fits: Callable[[], bool], *, rows: int, flow: FlowKey, max_wait: float
    ) -> bool:
        """Wait until this item is first and `fits()`; return `False` when `max_wait` is over.

        After `True` the caller must submit before it awaits anything else.
        """
        self.rows += rows
        self._flows[flow] += 1
        try:
            async with asyncio.timeout(max_wait), self._head:
                while not fits():
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            return False
        finally:
            self.rows -= rows
            self._flows -= Counter([flow])
        return True

    def notify(self) -> None:
        """Let the head of the queue check for room again."""
        self._freed.set()
