"""How a process that serves HTTP leaves: what it says meanwhile, and for how long it serves."""

import asyncio
import signal
import threading
from collections.abc import Callable


class Stop(asyncio.Event):
    """Set when the process is to end; `is_patient` says whether others must hear of it first."""

    is_patient = True
    """False after SIGINT: somebody waits at a terminal, and nobody balances in front of that."""


class Draining:
    """Whether the process is leaving; its listener, its connections and its readiness look here.

    `delay` is the time between the news and the end of accepting. Under a supervisor
    (`is_supervised`), which has the listening socket too, the supervisor waits for that, and
    announces it with SIGUSR1; a process that is told to stop without it is replaced alone.
    """

    def __init__(self, *, delay: float = 0.0, is_supervised: bool = False) -> None:
        self.delay = delay
        self.is_supervised = is_supervised
        self.is_announced = False
        """The whole machine is leaving: its readiness says so."""
        self.closes_connections = False
        """Every answer is the last one of its connection, and says so."""
        self._on_close: list[Callable[[], None]] = []

    def hear_announcement(self) -> None:
        """Have SIGUSR1 announce it. Only the main thread of a process hears signals."""
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.announce)

    def announce(self) -> None:
        """Say that the process is not ready, and serve on."""
        self.is_announced = True
        self.close_connections()

    def close_connections(self) -> None:
        """Make every answer from now on the last one of its connection."""
        if not self.closes_connections:
            self.closes_connections = True
            for callback in self._on_close:
                callback()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when answers begin to be the last ones of their connections."""
        self._on_close.append(callback)


DRAINING = "draining: the gateway is stopping; it still answers what it is sent"
"""What readiness says is missing."""
