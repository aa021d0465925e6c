"""Generates an open-loop load: requests leave when they are due, answered or not."""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Iterator

import msgspec
from typing_extensions import override

from loadtests.generator import Target


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


class _Connection(asyncio.Protocol):
    def __init__(self, run: "_Run") -> None:
        self._run = run
        self._buffer = b""
        self.due = self.sent = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        start = head.find(b"content-length:")
        body = self._buffer[end + 4 :]
        if start < 0:
            if not body.endswith(b"0\r\n\r\n"):  # the last chunk
                return
            body = b"".join(_chunks(body))
        elif len(body) < int(head[start + 15 :].split(b"\r\n", 1)[0]):
            return
        self._buffer = b""
        self._run.answered(self, head, body)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._run.lost(self)


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        yield rest[:length]
        body = rest[length + 2 :]


class _Run:
    def __init__(self, target: Target, started: float) -> None:
        self.target = target
        self.started = started
        self.answers: list[Answer] = []
        self.idle: deque[_Connection] = deque()
        self.flying: set[_Connection] = set()
        self.landed = asyncio.Event()
        self.landed.set()
        lines = [f"POST {target.path} HTTP/1.1", f"host: {target.host}"]
        lines += [f"{name}: {value}" for name, value in target.headers]
        self.head = "\r\n".join(lines).encode()

    async def connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self), self.target.host, self.target.port
        )
        return connection

    async def send(self, body: bytes, due: float) -> None:
        connection = self.idle.popleft() if self.idle else await self.connect()
        self.flying.add(connection)
        self.landed.clear()
        connection.due = due
        connection.sent = time.perf_counter() - self.started
        connection.transport.write(
            b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self.head, len(body), body)
        )

    def answered(self, connection: _Connection, head: bytes, body: bytes) -> None:
        self._land(connection, int(head[9:12]), head, body)
        if b"\r\nconnection: close" in head:
            connection.transport.close()
        else:
            self.idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Note that a connection ended, and the request on it with it."""
        if connection in self.flying:
            self._land(connection, 0, b"", b"")
        elif connection in self.idle:
            self.idle.remove(connection)

    def give_up(self) -> None:
        """End the connections of requests that have had no answer."""
        for connection in list(self.flying):
            self._land(connection, 0, b"", b"")
            connection.transport.abort()

    def _land(self, connection: _Connection, status: int, head: bytes, body: bytes) -> None:
        self.flying.discard(connection)
        came = time.perf_counter() - self.started
        self.answers.append(
            Answer(
                due=connection.due,
                sent=connection.sent,
                came=came,
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
    run = _Run(target, time.perf_counter())
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
    for connection in run.idle:
        connection.transport.close()
    return run.answers if since is None else [_shifted(a, run.started - since) for a in run.answers]


def _shifted(answer: Answer, seconds: float) -> Answer:
    due, sent, came = answer.due + seconds, answer.sent + seconds, answer.came + seconds
    return msgspec.structs.replace(answer, due=due, sent=sent, came=came)
