"""Generates an open-loop load: each request is sent when due, and waits for no earlier answer."""

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import msgspec

from loadtests.generator import ClientConnection, Outcome, Target, connect

_clock = time.perf_counter


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: its status and body, and the times when its request was due, sent and answered.

    Times are seconds since the start of the run. The status is 0 if the connection ended or no
    answer came in time. Names and values in `head` are in lower case.
    """

    due: float
    sent: float
    came: float
    status: int
    body: bytes
    head: bytes

    @property
    def latency(self) -> float:
        """Seconds from when the request was due, which include the delay of a late generator."""
        return self.came - self.due


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
    since: float | None = None,
    patience: float = 10.0,
) -> list[Answer]:
    """Send `rate` requests a second for `duration` seconds; return the answer to each request.

    Requests are spaced at random by `seed`, or evenly if `seed` is `None`. `connections` are opened
    before the start and used in turns. If no connection is free, a new connection is opened.
    `patience` is how many seconds the last requests may take after the end of the load. Times are
    measured from `since`, a reading of `time.perf_counter`, or by default from the first request.
    """
    chooser = None if seed is None else random.Random(seed)
    idle = deque([await connect(target) for _ in range(connections)])
    opened = set(idle)
    answers: list[Answer] = []
    landed = asyncio.Event()
    started = _clock()
    zero = started if since is None else since

    def send(caller: ClientConnection, body: bytes, due: float) -> None:
        sent = _clock()

        def answered(status: int, head: bytes, reply: bytes) -> None:
            answers.append(
                Answer(
                    due=due - zero,
                    sent=sent - zero,
                    came=_clock() - zero,
                    status=status,
                    body=reply,
                    head=head,
                )
            )
            if caller.is_open:
                idle.append(caller)
            if len(answers) == number:
                landed.set()

        caller.send(body, answered)

    due, number = started, 0
    while due < started + duration:
        due += chooser.expovariate(rate) if chooser else 1 / rate
        await asyncio.sleep(max(0.0, due - _clock()))
        caller = _free(idle) or await connect(target)
        opened.add(caller)
        number += 1
        landed.clear()
        send(caller, next(bodies), due)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await landed.wait()
    for caller in opened:
        caller.close()
    return answers


def _free(idle: deque[ClientConnection]) -> ClientConnection | None:
    """Take the connection that is idle for longest."""
    while idle:
        caller = idle.popleft()
        if caller.is_open:
            return caller
    return None


def run_open(
    target: Target, bodies: Iterator[bytes], *, rate: float, duration: float
) -> list[Answer]:
    """Run an open loop in an event loop of its own."""
    return asyncio.run(open_loop(target, bodies, rate=rate, duration=duration))
