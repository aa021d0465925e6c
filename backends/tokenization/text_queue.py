"""Runs work on texts in threads, and refuses what would wait for many seconds."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from typing_extensions import TypeVar

from backends.errors import Overloaded

# So much text may wait for the threads: what they read in some seconds.
_MOST_CHARACTERS = 16 * 1024 * 1024
_RETRY_AFTER = 1.0
_Answer = TypeVar("_Answer")


class TextQueue:
    """Counts the characters that wait for a pool of threads."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting = 0

    async def run(self, work: Callable[[], _Answer], *, characters: int) -> _Answer:
        """Return what `work` returns, which reads so many characters in a thread.

        Raises:
            Overloaded: too much text waits. More than may wait is read while nothing else does.
        """
        if self._waiting and self._waiting + characters > _MOST_CHARACTERS:
            raise Overloaded("too much text waits; try again later", retry_after=_RETRY_AFTER)
        self._waiting += characters
        try:
            return await asyncio.wrap_future(self._pool.submit(work))
        finally:
            self._waiting -= characters
