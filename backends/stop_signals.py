"""What SIGTERM and SIGINT ask of a process: to leave, patiently or not, and at once."""

import asyncio
import signal


class StopSignals:
    """Hears the signals from when it is made; the running loop is the process's only one."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """The process is to leave."""
        self.forced = asyncio.Event()
        """It was told twice: it is to leave at once."""
        self.is_graceful = False
        """Others must hear of it first: SIGTERM. At SIGINT somebody waits at a terminal."""
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
