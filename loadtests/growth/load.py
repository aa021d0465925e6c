"""Sends requests over open connections in phases, and reads clocks while all connections are idle.

So the measured times include neither the opening of connections nor requests in flight at the end.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import uvloop

from loadtests.generator import ClientConnection, Outcome

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
        callers: list[ClientConnection] = []
        while (missing := connections - len(callers)) > 0:
            made = (
                loop.create_connection(ClientConnection, "127.0.0.1", port)
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


async def _phase(
    callers: list[ClientConnection], requests: Iterator[bytes], seconds: float
) -> Outcome:
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    started = time.perf_counter()

    async def call(caller: ClientConnection) -> None:
        while caller.is_open and time.perf_counter() < started + seconds:
            answer = await caller.send(next(requests))
            statuses[answer.status] += 1
            latencies.append(answer.latency)

    async with asyncio.timeout(seconds + _LONGEST):
        await asyncio.gather(*map(call, callers))
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses=dict(statuses), latencies=sorted(latencies))
