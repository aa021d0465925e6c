"""Generates an open-loop load: requests leave when they are due, answered or not."""

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import msgspec
from typing_extensions import override

from loadtests.generator import ClientConnection, Outcome, Target


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: when it was due, sent and came, in seconds of the run, its status and body.

    A request whose connection ended, or that got no answer in time, has status 0.
    """

    due: float
    sent: float
    came: float
    status: int
    body: bytes
    head: bytes

    @property
    def latency(self) -> float:
        """Seconds from when it was due, so that a late generator hides nothing."""
        return self.came - self.due


def outcome(answers: Sequence[Answer], duration: float) -> Outcome:
    """Return the rate, statuses and latencies of some answers of a run."""
    return Outcome(
        duration=duration,
        statuses=dict(Counter(answer.status for answer in answers)),
        latencies=sorted(answer.latency for answer in answers),
    )


class _Caller(ClientConnection):
    """A connection with at most one request on it, which was `due` at some time of the run."""

    def __init__(self, head: bytes, run: "_Run") -> None:
        super().__init__(head)
        self._run = run
        self.due = 0.0

    @override
    def answered(self, head: bytes, body: bytes) -> None:
        self._run.land(self, int(head[9:12]), head, body)
        if b"\r\nconnection: close" in head:
            self.transport.close()
        else:
            self._run.idle.append(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._run.flying:
            self._run.land(self, 0, b"", b"")
        elif self in self._run.idle:
            self._run.idle.remove(self)


class _Run:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._head = target.head()
        self.started = 0.0
        self.answers: list[Answer] = []
        self.idle: deque[_Caller] = deque()
        self.flying: set[_Caller] = set()
        self.landed = asyncio.Event()
        self.landed.set()

    async def connect(self) -> _Caller:
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(
            lambda: _Caller(self._head, self), self._target.host, self._target.port
        )
        return caller

    async def send(self, body: bytes, due: float) -> None:
        caller = self.idle.popleft() if self.idle else await self.connect()
        self.flying.add(caller)
        self.landed.clear()
        caller.due = due
        caller.send(body)

    def give_up(self) -> None:
        """End the connections of requests that have had no answer, and all others."""
        for caller in list(self.flying):
            self.land(caller, 0, b"", b"")
            caller.transport.abort()
        for caller in self.idle:
            caller.transport.close()

    def land(self, caller: _Caller, status: int, head: bytes, body: bytes) -> None:
        """Note how a request ended."""
        self.flying.discard(caller)
        self.answers.append(
            Answer(
                due=caller.due,
                sent=caller.sent_at - self.started,
                came=time.perf_counter() - self.started,
                status=status,
                body=body,
                head=head,
            )
        )
        if not self.flying:
            self.landed.set()


async def open_loop(
    target: Target,
    bodies: Iterator[bytes],
    *,
    rate: float,
    duration: float,
    seed: int = 1,
    connections: int = 0,
    since: float | None = None,
    patience: float = 10.0,
) -> list[Answer]:
    """Send at `rate` a second, spaced at random, for `duration`; return each request's end.

    `connections` are opened before the start and used in turns; more when none of them is free.
    `patience` is how long the last requests may take after the end of the load.
    Times count from `since`, a reading of `time.perf_counter`, or else from the first request's.
    """
    chooser = random.Random(seed)
    run = _Run(target)
    for _ in range(connections):
        run.idle.append(await run.connect())
    run.started = time.perf_counter()
    due = 0.0
    while due < duration:
        due += chooser.expovariate(rate)
        await asyncio.sleep(max(0.0, run.started + due - time.perf_counter()))
        await run.send(next(bodies), due)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await run.landed.wait()
    run.give_up()
    return run.answers if since is None else [_shifted(a, run.started - since) for a in run.answers]


def _shifted(answer: Answer, seconds: float) -> Answer:
    due, sent, came = answer.due + seconds, answer.sent + seconds, answer.came + seconds
    return msgspec.structs.replace(answer, due=due, sent=sent, came=came)


def run_open(
    target: Target, bodies: Iterator[bytes], *, rate: float, duration: float
) -> list[Answer]:
    """Run an open loop in an event loop of its own."""
    return asyncio.run(open_loop(target, bodies, rate=rate, duration=duration))
