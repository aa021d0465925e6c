"""Sends heartbeats: an event loop shows its supervisor that it runs, by bytes through a pipe."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

HEARTBEAT_INTERVAL = 0.5


@contextlib.contextmanager
def heartbeat(descriptor: int | None) -> Iterator[None]:
    """Write a byte to `descriptor` at every interval, from the running event loop; `None`: nowhere.

    A callback and no task: it runs as long as the loop does, and no failure of a task ends it.
    """
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        # A pipe that is full has a reader that sleeps; one without a reader, one that is gone.
        with contextlib.suppress(OSError):
            os.write(descriptor, b".")
        timer = loop.call_later(HEARTBEAT_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()
