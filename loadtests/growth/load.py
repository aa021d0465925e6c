"""Sends requests over open connections in phases, and reads clocks while all connections are idle.

So the measured times include neither the opening of connections nor requests in flight at the end.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import uvloop
from typing_extensions import override

from loadtests.generator import Outcome

_OPENED_AT_A_TIME = 100
_LONGEST = 60.0
"""Seconds that answers may take after the last request of a phase."""
ClockT = TypeVar("ClockT")
Phase = tuple[ClockT, Outcome, ClockT]
"""The clocks' readings before a phase, the phase's result, and the readings after it."""


def send(
    port: int,
    requests: Iterator[bytes],
    clocks: Callable[[], ClockT],
    *,
    connections: int,
    phases: Sequence[float],
) -> list[Phase[ClockT]]:
    """Send requests in phases, and return the result of each phase.

    `phases` has the length of each phase in seconds. Each of `requests` is a whole HTTP request,
    head and body.
    """

    async def run() -> list[Phase[ClockT]]:
        loop = asyncio.get_running_loop()
        opened: list[_Connection] = []
        while (missing := connections - len(opened)) > 0:
            made = (
                loop.create_connection(_Connection, "127.0.0.1", port)
                for _ in range(min(_OPENED_AT_A_TIME, missing))
            )
            opened += [connection for _, connection in await asyncio.gather(*made)]
        try:
            return [
                (clocks(), await _phase(opened, requests, seconds), clocks()) for seconds in phases
            ]
        finally:
            for connection in opened:
                connection.transport.abort()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


class _Connection(asyncio.Protocol):
    """Sends one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = b""
        self.answered: Callable[[int], None] = lambda _status: None
        """Takes the status of an answer, 0 where the connection was lost."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) >= int(length):
            self._buffer = b""
            self.answered(int(head[9:12]))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.answered(0)


async def _phase(opened: list[_Connection], requests: Iterator[bytes], seconds: float) -> Outcome:
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    idle = asyncio.Event()
    busy = set(opened)
    started = time.perf_counter()

    def send_next(connection: _Connection) -> None:
        sent = time.perf_counter()
        if sent >= started + seconds:
            busy.discard(connection)
            if not busy:
                idle.set()
            return

        def answered(status: int) -> None:
            statuses[status] += 1
            latencies.append(time.perf_counter() - sent)
            if status:
                send_next(connection)
            else:
                idle.set()

        connection.answered = answered
        connection.transport.write(next(requests))

    for connection in opened:
        send_next(connection)
    async with asyncio.timeout(seconds + _LONGEST):
        await idle.wait()
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses=dict(statuses), latencies=sorted(latencies))
