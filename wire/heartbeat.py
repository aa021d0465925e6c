"""Sends heartbeats to the supervisor. A heartbeat is a byte that an event loop writes to a pipe."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

_INTERVAL = 0.5


@contextlib.contextmanager
def heartbeat(descriptor: int | None) -> Iterator[None]:
    """Write a byte to `descriptor` regularly while the context lasts.

    If `descriptor` is `None`, do nothing. A timer of the running event loop writes the bytes,
    because a timer cannot fail as a task can.
    """
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        # The pipe is full if its reader is suspended, and broken if its reader has ended.
        with contextlib.suppress(OSError):
            os.write(descriptor, b".")
        timer = loop.call_later(_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()
