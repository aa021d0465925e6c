"""Items that wait, in the order they came, until a full queue has room for their rows."""

import asyncio
from collections.abc import Callable


class Line:
    """Belongs to the loop. `rows` is what stands in line."""

    def __init__(self) -> None:
        # Fair: whoever holds it stands at the head and looks for room.
        self._head = asyncio.Lock()
        self._freed = asyncio.Event()
        self.rows = 0

    async def wait(self, fits: Callable[[], bool], *, rows: int, patience: float) -> bool:
        """Return when it is this item's turn and `fits()`: `True`; `False` when that took too long.

        Whoever gets `True` must enter before it waits for anything else.
        """
        self.rows += rows
        try:
            async with asyncio.timeout(patience), self._head:
                while not fits():
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            return False
        finally:
            self.rows -= rows
        return True

    def look(self) -> None:
        """Let the head of the line look for room again."""
        self._freed.set()
