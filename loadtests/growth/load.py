"""Sends requests over open connections in phases, and reads clocks while all of them are idle.

Opening connections and what is under way at the end would otherwise be counted as requests' work.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec
import uvloop
from typing_extensions import override

_OPENED_AT_A_TIME = 100
_LONGEST = 60.0
"""Seconds that answers may take after the last request of a phase."""
ClockT = TypeVar("ClockT")


class PhaseResult(msgspec.Struct, Generic[ClockT], frozen=True, kw_only=True):
    """The result of a phase: what clocks showed before and after, and latencies in seconds."""

    before: ClockT
    after: ClockT
    took: float
    statuses: dict[int, int]
    latencies: list[float]

    def percentile(self, share: float) -> float:
        """Return the latency that `share` of the requests did not exceed."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def send(
    port: int,
    requests: Iterator[bytes],
    clocks: Callable[[], ClockT],
    *,
    connections: int,
    phases: Sequence[float],
) -> list[PhaseResult[ClockT]]:
    """Send requests in each of `phases`, given in seconds; return the result of each."""
    load = _Load(port, requests)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load.run(clocks, connections=connections, phases=phases))


class _Connection(asyncio.Protocol):
    """Sends a request, and the next one as soon as the answer is there."""

    transport: asyncio.Transport

    def __init__(self, load: "_Load") -> None:
        self._load = load
        self._buffer = b""
        self._sent_at = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        start = head.find(b"content-length:")
        if len(self._buffer) < end + 4 + int(head[start + 15 :].split(b"\r\n", 1)[0]):
            return
        self._buffer = b""
        self._load.count(int(head[9:12]), time.perf_counter() - self._sent_at)
        self.send()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lose()

    def send(self) -> None:
        """Send the next request, unless the phase is over."""
        request = self._load.next_request()
        if request is not None:
            self._sent_at = time.perf_counter()
            self.transport.write(request)


class _Load:
    """Counts the answers of a phase."""

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        self._port = port
        self._requests = requests
        self._until = 0.0
        self._busy = 0
        self._idle = asyncio.Event()
        self._is_closing = False
        self._statuses: Counter[int] = Counter()
        self._latencies: list[float] = []

    async def run(
        self, clocks: Callable[[], ClockT], *, connections: int, phases: Sequence[float]
    ) -> list[PhaseResult[ClockT]]:
        opened = await self._open(connections)
        results = [await self._phase(opened, seconds, clocks) for seconds in phases]
        self._is_closing = True
        for connection in opened:
            connection.transport.close()
        return results

    def next_request(self) -> bytes | None:
        """Return a request, or count a connection as idle."""
        if time.perf_counter() < self._until:
            return next(self._requests)
        self._busy -= 1
        if self._busy == 0:
            self._idle.set()
        return None

    def count(self, status: int, latency: float) -> None:
        """Count an answer."""
        self._statuses[status] += 1
        self._latencies.append(latency)

    def lose(self) -> None:
        """Count a lost connection as an answer without a status."""
        if not self._is_closing:
            self._statuses[0] += 1
            self._busy -= 1
            self._idle.set()

    async def _open(self, count: int) -> list[_Connection]:
        loop = asyncio.get_running_loop()
        opened: list[_Connection] = []
        while len(opened) < count:
            more = min(_OPENED_AT_A_TIME, count - len(opened))
            made = (
                loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
                for _ in range(more)
            )
            opened += [connection for _, connection in await asyncio.gather(*made)]
        return opened

    async def _phase(
        self, connections: list[_Connection], seconds: float, clocks: Callable[[], ClockT]
    ) -> PhaseResult[ClockT]:
        self._statuses, self._latencies = Counter(), []
        before, started = clocks(), time.perf_counter()
        self._until = started + seconds
        self._busy = len(connections)
        self._idle.clear()
        for connection in connections:
            connection.send()
        async with asyncio.timeout(seconds + _LONGEST):
            await self._idle.wait()
        return PhaseResult(
            before=before,
            took=time.perf_counter() - started,
            after=clocks(),
            statuses=dict(self._statuses),
            latencies=sorted(self._latencies),
        )
