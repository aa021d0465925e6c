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

from loadtests.generator import ClientConnection, Outcome

_OPENED_AT_A_TIME = 100
_LONGEST = 60.0
"""Seconds that answers may take after the last request of a phase."""
ClockT = TypeVar("ClockT")
Phase = tuple[ClockT, Outcome, ClockT]
"""The clocks' readings before a phase, the phase's result, and the readings after it."""


class _Caller(ClientConnection):
    """Sends whole requests, because each has a head of its own."""

    def __init__(self) -> None:
        super().__init__(b"")

    @override
    def send(self, body: bytes, answered: Callable[[int, bytes, bytes], None]) -> None:
        self._answered = answered
        self.transport.write(body)


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
        callers: list[_Caller] = []
        while (missing := connections - len(callers)) > 0:
            made = (
                loop.create_connection(_Caller, "127.0.0.1", port)
                for _ in range(min(_OPENED_AT_A_TIME, missing))
            )
            callers += [caller for _, caller in await asyncio.gather(*made)]
        try:
            return [
                (clocks(), await _phase(callers, requests, seconds), clocks()) for seconds in phases
            ]
        finally:
            for caller in callers:
                caller.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def _phase(callers: list[_Caller], requests: Iterator[bytes], seconds: float) -> Outcome:
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    idle = asyncio.Event()
    busy = set(callers)
    started = time.perf_counter()

    def send_next(caller: _Caller) -> None:
        sent = time.perf_counter()
        if sent >= started + seconds or not caller.is_open:
            busy.discard(caller)
            if not busy:
                idle.set()
            return

        def answered(status: int, _head: bytes, _body: bytes) -> None:
            statuses[status] += 1
            latencies.append(time.perf_counter() - sent)
            send_next(caller)

        caller.send(next(requests), answered)

    for caller in callers:
        send_next(caller)
    async with asyncio.timeout(seconds + _LONGEST):
        await idle.wait()
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses=dict(statuses), latencies=sorted(latencies))
