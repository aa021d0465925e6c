"""Items that wait, in the order they came, until a full queue has room for their rows."""

import asyncio
from collections import Counter
from collections.abc import Callable

from backends.batching.fair_queue import FlowKey


class RoomQueue:
    """Belongs to the loop. `rows` is what stands in line."""

    def __init__(self) -> None:
        # Fair: whoever holds it stands at the head and looks for room.
        self._head = asyncio.Lock()
        self._freed = asyncio.Event()
        self._flows: Counter[FlowKey] = Counter()
        self.rows = 0

    def holds(self, flow: FlowKey) -> bool:
        """Whether an item of this flow stands in line."""
        return flow in self._flows

    async def wait(
        self, fits: Callable[[], bool], *, rows: int, flow: FlowKey, max_wait: float
    ) -> bool:
        """Return when it is this item's turn and `fits()`: `True`; `False` when that took too long.

        Whoever gets `True` must enter before it waits for anything else.
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
        """Let the head of the line look for room again."""
        self._freed.set()
