"""Runs functions that tokenize text in a thread pool, and refuses text if too much is waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from typing_extensions import TypeVar

from sluicegate.backends.errors import Overloaded

# The threads tokenize this many characters within a few seconds.
_MOST_CHARACTERS = 16 * 1024 * 1024
_RETRY_AFTER = 1.0
_Result = TypeVar("_Result")


class TextQueue:
    """Limits how many characters of text wait for a thread pool. Belongs to one event loop."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting = 0

    async def run(self, work: Callable[[], _Result], *, characters: int) -> _Result:
        """Run `work`, which reads `characters` characters, in a thread; return its result.

        A text of any length is accepted while nothing else waits.

        Raises:
            Overloaded: too much text is waiting.
        """
        if self._waiting and self._waiting + characters > _MOST_CHARACTERS:
            raise Overloaded("too much text is waiting; try again later", retry_after=_RETRY_AFTER)
        self._waiting += characters
        try:
            return await asyncio.wrap_future(self._pool.submit(work))
        finally:
            self._waiting -= characters
