"""Sends heartbeats to the supervisor. A heartbeat is a byte that an event loop writes to a pipe."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

HEARTBEAT_INTERVAL = 0.5


@contextlib.contextmanager
def heartbeat(descriptor: int | None) -> Iterator[None]:
    """While the context lasts, write a byte to `descriptor` regularly. If it is `None`, do nothing.

    A timer of the running event loop writes the bytes. A timer is used because it cannot fail as a
    task can. It therefore lives as long as the event loop.
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
        timer = loop.call_later(HEARTBEAT_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()
