"""Ties a process to its supervisor: heartbeats, stop signals, the end of the parent process."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

_HEARTBEAT_INTERVAL = 0.5
_PARENT_CHECK = 0.5


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
        timer = loop.call_later(_HEARTBEAT_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()


class StopSignals:
    """Sets events on signals, from its creation; the running loop is the process's only one."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """The process is to stop."""
        self.forced = asyncio.Event()
        """A second signal came: the process is to stop at once."""
        self.is_graceful = False
        """Gateways must learn of it first: SIGTERM. At SIGINT a user waits at a terminal."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, self._request)

    def _terminate(self) -> None:
        self.is_graceful = True
        self._request()

    def _request(self) -> None:
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()


async def wait_for_parent_end(parent: int) -> None:
    """Wait until the parent process, whose id was `parent`, has ended."""
    # No event reports that; it has to be polled.
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(_PARENT_CHECK)
