"""Holds the draining state of a process that serves HTTP."""

import asyncio
import signal
import threading
from collections.abc import Callable


class Stop(asyncio.Event):
    """Signals that the process should stop; `is_graceful` asks to announce draining first."""

    is_graceful = True
    """False after SIGINT: somebody waits at a terminal, and there is no load balancer."""


class Draining:
    """Tells listener, connections and readiness whether the process is draining.

    `delay` is the time in seconds between the announcement and the end of accepting. Under a
    supervisor (`is_supervised`), which shares the listening socket, the supervisor waits for that
    time and announces draining with SIGUSR1. A process that is stopped without the announcement is
    replaced alone.
    """

    def __init__(self, *, delay: float = 0.0, is_supervised: bool = False) -> None:
        self.delay = delay
        self.is_supervised = is_supervised
        self.is_announced = False
        """Whether the whole machine drains; its readiness then fails."""
        self.closes_connections = False
        """Whether every response closes its connection."""
        self._on_close: list[Callable[[], None]] = []

    def announce_on_sigusr1(self) -> None:
        """Announce draining on SIGUSR1; does nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.announce)

    def announce(self) -> None:
        """Report the process as not ready, and keep serving."""
        self.is_announced = True
        self.close_connections()

    def close_connections(self) -> None:
        """Make every response from now on close its connection."""
        if not self.closes_connections:
            self.closes_connections = True
            for callback in self._on_close:
                callback()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when responses begin to close their connections, or now if they do."""
        self._on_close.append(callback)
        if self.closes_connections:
            callback()


DRAINING = "draining: the gateway is stopping; it still answers what it is sent"
"""The entry of readiness's `missing` while draining."""
