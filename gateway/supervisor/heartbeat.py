"""Sends heartbeats from an event loop to the supervisor, as bytes in a pipe."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

HEARTBEAT_INTERVAL = 0.5


@contextlib.contextmanager
def heartbeat(descriptor: int | None) -> Iterator[None]:
    """Write a byte to `descriptor` regularly from the running event loop; `None`: do nothing.

    A timer runs as long as the event loop does, unlike a task, which can fail.
    """
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        # The pipe is full if the reader is suspended, and broken if the reader has ended.
        with contextlib.suppress(OSError):
            os.write(descriptor, b".")
        timer = loop.call_later(HEARTBEAT_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()
