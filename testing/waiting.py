"""Waits for a condition with a deadline, never for a length of time.

The longer the wait, the longer the pauses between two checks of the condition, up to a twentieth of
a second. In the pauses, the awaited process can use the processor.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

_INTERVAL, _LONGEST_INTERVAL = 0.005, 0.05
WAIT_LIMIT = 60.0
"""A test that waits fails after this many seconds, far more than a slow machine needs."""


def wait_until(
    holds: Callable[[], bool],
    *,
    within: float = WAIT_LIMIT,
    what: str = "",
    every: float = _INTERVAL,
) -> None:
    """Return once `holds()` is true.

    The function is called every `every` seconds, or less often.

    Fails after `within` seconds.
    """
    began = time.monotonic()
    never = threading.Event()
    while not holds():
        never.wait(_pause(began, within, every, what or holds))


async def until(holds: Callable[[], bool], *, within: float = WAIT_LIMIT, what: str = "") -> None:
    """Return once `holds()` is true. Other tasks of the event loop run during the wait."""
    began = time.monotonic()
    while not holds():
        pause = _pause(began, within, _INTERVAL, what or holds)
        await asyncio.sleep(pause)


async def eventually(
    holds: Callable[[], Awaitable[bool]], *, within: float = WAIT_LIMIT, every: float = _INTERVAL
) -> None:
    """Return once `await holds()` is true.

    The function is called every `every` seconds, or less often.
    """
    began = time.monotonic()
    while not await holds():
        pause = _pause(began, within, every, holds)
        await asyncio.sleep(pause)


def _pause(began: float, within: float, every: float, what: object) -> float:
    waited = time.monotonic() - began
    assert waited < within, f"not within {within} s: {what}"
    return max(every, min(waited / 10, _LONGEST_INTERVAL))
