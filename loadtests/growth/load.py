"""Sends requests over open connections in phases, and reads clocks while all of them are idle.

Opening connections and what is under way at the end would otherwise be counted as requests' work.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import uvloop
from typing_extensions import override

from loadtests.generator import ClientConnection, Outcome

_OPENED_AT_A_TIME = 100
_LONGEST = 60.0
"""Seconds that answers may take after the last request of a phase."""
ClockT = TypeVar("ClockT")
Phase = tuple[ClockT, Outcome, ClockT]
"""What clocks showed before a phase, its result, and what they showed after it."""


def send(
    port: int,
    requests: Iterator[bytes],
    clocks: Callable[[], ClockT],
    *,
    connections: int,
    phases: Sequence[float],
) -> list[Phase[ClockT]]:
    """Send whole requests in each of `phases`, given in seconds; return the result of each."""

    async def run() -> list[Phase[ClockT]]:
        load = _Load(requests)
        await load.open(port, connections)
        try:
            return [(clocks(), await load.run(seconds), clocks()) for seconds in phases]
        finally:
            load.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


class _Connection(ClientConnection):
    """Sends a request, and the next one as soon as the answer is there."""

    def __init__(self, load: "_Load") -> None:
        super().__init__(b"")
        self._load = load

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    @override
    def answered(self, head: bytes, body: bytes) -> None:
        self._load.statuses[int(head[9:12])] += 1
        self._load.latencies.append(time.perf_counter() - self.sent_at)
        self.send_next()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lose()

    def send_next(self) -> None:
        """Send the next request, unless the phase is over."""
        self.sent_at = time.perf_counter()
        if self.sent_at < self._load.until:
            self.transport.write(next(self._load.requests))
        else:
            self._load.rest()


class _Load:
    """Counts the answers of a phase."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.until = 0.0
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self._connections: list[_Connection] = []
        self._busy = 0
        self._idle = asyncio.Event()
        self._is_closing = False

    async def open(self, port: int, count: int) -> None:
        loop = asyncio.get_running_loop()
        while (missing := count - len(self._connections)) > 0:
            made = (
                loop.create_connection(lambda: _Connection(self), "127.0.0.1", port)
                for _ in range(min(_OPENED_AT_A_TIME, missing))
            )
            self._connections += [connection for _, connection in await asyncio.gather(*made)]

    async def run(self, seconds: float) -> Outcome:
        self.statuses, self.latencies = Counter(), []
        started = time.perf_counter()
        self.until = started + seconds
        self._busy = len(self._connections)
        self._idle.clear()
        for connection in self._connections:
            connection.send_next()
        async with asyncio.timeout(seconds + _LONGEST):
            await self._idle.wait()
        took = time.perf_counter() - started
        latencies = sorted(self.latencies)
        return Outcome(duration=took, statuses=dict(self.statuses), latencies=latencies)

    def rest(self) -> None:
        """Count a connection as idle."""
        self._busy -= 1
        if self._busy == 0:
            self._idle.set()

    def lose(self) -> None:
        """Count a lost connection as an answer without a status, and end the phase."""
        if not self._is_closing:
            self.statuses[0] += 1
            self._idle.set()

    def close(self) -> None:
        self._is_closing = True
        for connection in self._connections:
            connection.transport.close()
