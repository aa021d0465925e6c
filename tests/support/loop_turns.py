"""Measures how long an event loop cannot run its tasks while something is awaited."""

import asyncio
from collections.abc import Coroutine
from time import process_time
from typing import Any


async def longest_hold(work: Coroutine[Any, Any, Any]) -> float:
    """Await `work`; return the longest part of its processor time without a turn of the loop.

    The result is nearly 1 if the work holds the loop or the interpreter lock until it ends.
    Processor time is that of the whole process, so that other processes do not matter.
    """
    async with asyncio.TaskGroup() as group:
        running = group.create_task(work)
        begun = last = process_time()
        longest = 0.0
        while not running.done():
            await asyncio.sleep(0)
            now = process_time()
            longest, last = max(longest, now - last), now
    return longest / (last - begun)
