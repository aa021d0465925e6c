"""Ends a process: on stop signals, and when its parent process has ended."""

import asyncio
import os
import signal

_PARENT_CHECK = 0.5


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
