"""Listens for SIGTERM and SIGINT, which stop a process: gracefully, now, or at once."""

import asyncio
import signal


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
