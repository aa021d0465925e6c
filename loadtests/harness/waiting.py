"""Waits for a condition with a deadline, never for a length of time."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

_INTERVAL = 0.005
WAIT_LIMIT = 60.0
"""Seconds after which a test that waits has failed: far more than a slow machine needs."""


def wait_until(
    holds: Callable[[], bool],
    *,
    within: float = WAIT_LIMIT,
    what: str = "",
    every: float = _INTERVAL,
) -> None:
    """Return once `holds()`, asked `every` so many seconds; fail after `within` seconds."""
    deadline = time.monotonic() + within
    never = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, f"not within {within} s: {what or holds}"
        never.wait(every)


async def until(holds: Callable[[], bool], *, within: float = WAIT_LIMIT, what: str = "") -> None:
    """Return once `holds()`, leaving the loop to others meanwhile."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within} s: {what or holds}"
        await asyncio.sleep(_INTERVAL)


async def eventually(
    holds: Callable[[], Awaitable[bool]], *, within: float = WAIT_LIMIT, every: float = _INTERVAL
) -> None:
    """Return once `await holds()`: it may ask others, and is asked `every` so many seconds."""
    deadline = time.monotonic() + within
    while not await holds():
        assert time.monotonic() < deadline, f"not within {within} s: {holds}"
        await asyncio.sleep(every)
