"""Generates an open-loop load: each request is sent when due, and waits for no earlier answer."""

import asyncio
import contextlib
import gc
import itertools
import math
import os
import random
import selectors
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from loadtests.generator import Answer, ClientConnection, Outcome, Target, connect

_MOST_SELECTED = 900
"""Connections of a steady load: `select` takes file descriptors below 1,024."""
_WARM = 0.2
"""Seconds of a steady load that are not measured: a connection's first request is slow."""


def outcome(answers: Sequence[Answer], duration: float) -> Outcome:
    """Return the rate, statuses and latencies of some answers of a run."""
    return Outcome(
        duration=duration,
        statuses=dict(Counter(answer.status for answer in answers)),
        latencies=sorted(answer.latency for answer in answers),
    )


async def open_loop(
    target: Target,
    bodies: Iterator[bytes],
    *,
    rate: float,
    duration: float,
    seed: int | None = 1,
    connections: int = 0,
    most: float = math.inf,
    patience: float = 10.0,
) -> list[Answer]:
    """Send `rate` requests a second for `duration` seconds; return the answers in their order.

    Requests are spaced at random by `seed`, or evenly if `seed` is `None`. `connections` are opened
    before the start and used in turns. If no connection is free, a new connection is opened. With
    `most` connections, the request waits instead.
    `patience` is how many seconds the last requests may take after the end of the load.
    """
    chooser = None if seed is None else random.Random(seed)
    idle: deque[ClientConnection] = deque()
    idle += [await connect(target, idle) for _ in range(connections)]
    opened = set(idle)
    answers: list[asyncio.Future[Answer]] = []
    due = started = time.perf_counter()
    while due < started + duration:
        due += chooser.expovariate(rate) if chooser else 1 / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        while (connection := _free(idle)) is None and len(opened) >= most:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.001)
        connection = connection or await connect(target, idle)
        opened.add(connection)
        answers.append(connection.ask(next(bodies), due))
    await asyncio.wait(answers, timeout=patience)
    for connection in opened:
        connection.close()
    return [answer.result() for answer in answers]


def _free(idle: deque[ClientConnection]) -> ClientConnection | None:
    """Take the open connection that is idle for longest."""
    while idle:
        if (connection := idle.popleft()).is_open:
            return connection
    return None


def run_open(
    target: Target, bodies: Iterator[bytes], *, rate: float, duration: float
) -> list[Answer]:
    """Run an open loop in an event loop of its own."""
    return asyncio.run(open_loop(target, bodies, rate=rate, duration=duration))


def steady_load(
    target: Target, bodies: list[bytes], *, rate: float, duration: float, core: int
) -> Outcome:
    """Send `bodies` in turns, evenly spaced, from a process that other work disturbs little.

    Timers of the event loop are exact to tens of microseconds. As root, the process gets a
    real-time priority on its core. Otherwise, other work may delay the sending of a request, and
    the delay would be measured as latency.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_run_steadily, target, bodies, rate, duration, core).result()


def _run_steadily(
    target: Target, bodies: list[bytes], rate: float, duration: float, core: int
) -> Outcome:
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()
    load = open_loop(
        target,
        itertools.cycle(bodies),
        rate=rate,
        duration=_WARM + duration,
        seed=None,
        connections=64,
        most=_MOST_SELECTED,
        patience=2.0,
    )
    # `epoll` rounds timeouts to milliseconds, but `select` does not.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        answers = runner.run(load)
    begun = answers[0].due + _WARM
    return outcome([answer for answer in answers if answer.due > begun], duration)
