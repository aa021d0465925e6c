"""Sends heartbeats from an event loop to its supervisor, as bytes through a pipe."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

HEARTBEAT_INTERVAL = 0.5


@contextlib.contextmanager
def heartbeat(descriptor: int | None) -> Iterator[None]:
    """Write a byte to `descriptor` at every interval, from the running event loop; `None`: none.

    A timer instead of a task: it runs as long as the loop does, and no failed task ends it.
    """
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        # A full pipe has a reader that is suspended, a broken one a reader that has ended.
        with contextlib.suppress(OSError):
            os.write(descriptor, b".")
        timer = loop.call_later(HEARTBEAT_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()
