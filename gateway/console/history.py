"""Keeps the last half hour's traffic, and tells open pages when metrics were read again."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from sluicegate.gateway.console.guard_history import GuardHistory
from sluicegate.gateway.console.traffic import Reading, RestartCause, Traffic, traffic_between
from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.telemetry.metric_reading import Series

LENGTH: Final = 1800.0
"""Seconds for which points are kept."""
_WATCHED_INTERVAL: Final = 1.0
_INTERVAL: Final = 5.0
# Rates are averages over several seconds. Rates over one second would jump, because workers write
# their counters only once a second.
_WINDOW: Final = 5.0
_RESTARTS_SHOWN: Final = 300.0
_MOST_POINTS: Final = 1800
_MOST_VIEWERS: Final = 32
_log: Final = logging.getLogger(__name__)


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A point of the charts.

    `at` is a Unix time in seconds. Rates are per second, and latencies are in seconds.
    """

    at: float
    requests: float
    errors: float
    refused: float
    hit_ratio: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class Reader(Protocol):
    """Reads metrics."""

    def read(self) -> dict[Series, float]:
        """Return the value of each series. The call blocks."""
        ...


class History:
    """Keeps the points of the charts. Reads the metrics every five seconds.

    While a page is open, reads the metrics every second. `clock` returns the Unix time in seconds.
    """

    def __init__(self, *, reader: Reader, clock: Callable[[], float]) -> None:
        self._reader = reader
        self._clock = clock
        self._readings: deque[Reading] = deque(maxlen=64)
        self._points: deque[Point] = deque(maxlen=_MOST_POINTS)
        self._restarts: dict[RestartCause, float] = {}
        self._viewers = 0
        self._changed = asyncio.Event()
        self._watched = asyncio.Event()
        self._is_closed = False
        self._is_failing = False
        self.guards = GuardHistory()
        nothing = Reading(at=0.0, values={})
        self.traffic: Traffic = traffic_between(nothing, nothing)
        """The traffic of the last five seconds."""

    @property
    def points(self) -> list[Point]:
        """The points, oldest first."""
        return list(self._points)

    async def run(self, stop: asyncio.Event) -> None:
        """Read the metrics until `stop` is set."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._read()
                await self._wait(stopped)
        finally:
            stopped.cancel()
            self._is_closed = True
            self._notify()

    async def _read(self) -> None:
        try:
            values = await asyncio.to_thread(self._reader.read)
            self.add(Reading(at=self._clock(), values=values))
        except Exception as error:  # noqa: BLE001 - charts must not end the operators' listener
            if not self._is_failing:
                _log.warning("metrics cannot be read", extra={"reason": type(error).__name__})
            self._is_failing = True
            self._notify()  # open pages still update their list of incidents
        else:
            self._is_failing = False

    def add(self, reading: Reading) -> None:
        """Add a reading, and notify open pages."""
        while len(self._readings) > 1 and self._readings[1].at <= reading.at - _WINDOW:
            self._readings.popleft()
        first = self._readings[0] if self._readings else reading
        self.guards.add(self._readings[-1] if self._readings else reading, reading)
        self._readings.append(reading)
        traffic = traffic_between(first, reading)
        self._restarts |= dict.fromkeys(traffic.seen_restarts(), reading.at)
        for restart in [
            each for each, at in self._restarts.items() if at < reading.at - _RESTARTS_SHOWN
        ]:
            del self._restarts[restart]
        self.traffic = msgspec.structs.replace(traffic, restarts=list(self._restarts))
        if first is not reading:
            self._points.append(_point(self.traffic))
        while self._points and self._points[0].at < reading.at - LENGTH:
            self._points.popleft()
        self._notify()

    def check_room(self) -> None:
        """Raise `Overloaded` if too many pages are open. Call this before the response begins."""
        if self._viewers >= _MOST_VIEWERS:
            raise Overloaded("Too many pages of the console are open. Close one.", retry_after=5.0)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """While the context lasts, read the metrics every second.

        Raises:
            Overloaded: too many pages are open.
        """
        self.check_room()
        self._viewers += 1
        self._watched.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._watched.clear()

    async def next(self) -> bool:
        """Wait for the next reading. Return `False` if no more readings will come."""
        if not self._is_closed:
            await self._changed.wait()
        return not self._is_closed

    async def _wait(self, stopped: asyncio.Task[bool]) -> None:
        """Wait until the next reading is due.

        If a page is opened during the wait, the next reading is due sooner.
        """
        await asyncio.wait({stopped}, timeout=_WATCHED_INTERVAL)
        if not self._viewers:
            watched = asyncio.create_task(self._watched.wait())
            await asyncio.wait(
                {stopped, watched},
                timeout=_INTERVAL - _WATCHED_INTERVAL,
                return_when=asyncio.FIRST_COMPLETED,
            )
            watched.cancel()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _point(traffic: Traffic) -> Point:
    total = traffic.total
    return Point(
        round(traffic.at, 1),
        total.requests,
        total.errors,
        total.refused,
        total.hit_ratio,
        *total.latencies,
    )
