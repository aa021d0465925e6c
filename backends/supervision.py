"""Connects a process to its supervisor: heartbeats, stop signals, the end of the parent process."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

_HEARTBEAT_INTERVAL = 0.5
_PARENT_CHECK = 0.5


@contextlib.contextmanager
def heartbeat(descriptor: int | None) -> Iterator[None]:
    """Write a byte to `descriptor` every half second during the `with` block.

    A timer of the event loop writes the bytes, because a task could fail. If `descriptor` is
    `None`, nothing is written.
    """
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        # The pipe may be full because the supervisor sleeps, or closed because it has ended.
        with contextlib.suppress(OSError):
            os.write(descriptor, b".")
        timer = loop.call_later(_HEARTBEAT_INTERVAL, beat)

    beat()
    try:
        yield
    finally:
        timer.cancel()


class StopSignals:
    """Sets events on SIGTERM and SIGINT; create the object in the process's event loop."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """The process must stop."""
        self.forced = asyncio.Event()
        """A second signal came; the process must stop immediately."""
        self.is_graceful = False
        """The signal was SIGTERM, so gateways must be told first. SIGINT comes from a terminal."""
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
    # There is no event for this, so poll.
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(_PARENT_CHECK)
