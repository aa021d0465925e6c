"""What SIGTERM and SIGINT ask of a process: to leave, patiently or not, and at once."""

import asyncio
import signal


class StopSignals:
    """Hears the signals from when it is made; the running loop is the process's only one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """The process is to leave."""
        self.forced = asyncio.Event()
        """It was told twice: it is to leave at once."""
        self.is_patient = False
        """Others must hear of it first: SIGTERM. At SIGINT somebody waits at a terminal."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, self._ask)

    def _terminate(self) -> None:
        self.is_patient = True
        self._ask()

    def _ask(self) -> None:
        if self.asked.is_set():
            self.forced.set()
        self.asked.set()
