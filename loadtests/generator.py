"""Generates a closed-loop HTTP/1.1 load: each connection sends its next request after an answer.

It sends to loopback only and for a bounded time. A request takes 20 to 30 µs of the generator's
processor time, which is little compared with the time of the measured server.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import httptools
import msgspec
import uvloop
from typing_extensions import override

OK = 200
CALLERS = 32
"""The callers of most benchmarks: each waits for an answer before its next request."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The address of requests, and their common headers."""

    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def head(self) -> bytes:
        """The part of the head that all requests share: all lines except the body's length."""
        headers = {"host": self.host, "content-type": "application/json"} | dict(self.headers)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([f"POST {self.path} HTTP/1.1", *lines, ""]).encode()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `latencies` are sorted seconds of all requests, or of a sample."""

    duration: float
    statuses: dict[int, int]
    latencies: list[float]

    @property
    def requests(self) -> int:
        """The number of requests that ended."""
        return sum(self.statuses.values())

    @property
    def failed(self) -> int:
        """The number of requests with another status than 200."""
        return self.requests - self.statuses.get(OK, 0)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.duration

    def percentile(self, share: float) -> float:
        """Return the latency in seconds that a share of the requests did not exceed."""
        return percentile(self.latencies, share)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that a share of ordered values do not exceed; 0 without values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the times when its request was due and sent and when the answer came.

    Times are readings of `time.perf_counter`. The status is 0 if the connection ended or no answer
    came in time. Names and values in `head` are in lower case.
    """

    due: float
    sent: float
    came: float
    status: int
    head: bytes
    body: bytes

    @property
    def latency(self) -> float:
        """Seconds from when the request was due, which include the delay of a late generator."""
        return self.came - self.due


class ClientConnection(asyncio.Protocol):
    """A connection with at most one request on it.

    It joins `idle`, if given, each time that a request ends.
    """

    def __init__(self, head: bytes = b"", idle: "deque[ClientConnection] | None" = None) -> None:
        self._request_head = head
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._due = self._sent = 0.0
        self.is_open = True

    def ask(self, body: bytes, due: float | None = None) -> asyncio.Future[Answer]:
        """Send a body behind the connection's head, as `send` does."""
        return self.send(
            b"%bcontent-length: %d\r\n\r\n%b" % (self._request_head, len(body), body), due
        )

    def send(self, request: bytes, due: float | None = None) -> asyncio.Future[Answer]:
        """Send a request that was due at `due`, or now; the result of the future is its answer."""
        self._sent = time.perf_counter()
        self._due = self._sent if due is None else due
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close the connection immediately. A request in flight ends with status 0."""
        self._transport.abort()
        self.connection_lost(None)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    @override
    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(0, b"", b"")

    def on_message_begin(self) -> None:
        """Forget the answer before."""
        self._head, self._body = b"", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a line of the head."""
        self._head += b"\r\n%b: %b" % (name.lower(), value.lower())

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """End the request."""
        if not self._parser.should_keep_alive():
            self.is_open = False
            self._transport.close()
        self._end(self._parser.get_status_code(), self._head, self._body)

    def _end(self, status: int, head: bytes, body: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        self._answer.set_result(
            Answer(
                due=self._due,
                sent=self._sent,
                came=time.perf_counter(),
                status=status,
                head=head,
                body=body,
            )
        )
        if self._idle is not None:
            self._idle.append(self)


async def connect(target: Target, idle: deque[ClientConnection] | None = None) -> ClientConnection:
    """Open a connection, which joins `idle` each time that a request ends."""
    head = target.head()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: ClientConnection(head, idle), target.host, target.port
    )
    return connection


async def closed_loop(
    target: Target, bodies: Iterator[bytes], *, connections: int, duration: float
) -> Outcome:
    """Send over `connections` for `duration` seconds, or until `bodies` are exhausted.

    Each connection sends its next request when its previous request is answered.
    """
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    callers = await asyncio.gather(*(connect(target) for _ in range(connections)))
    started = time.perf_counter()

    async def call(caller: ClientConnection) -> None:
        while caller.is_open and time.perf_counter() < started + duration:
            if (body := next(bodies, None)) is None:
                break
            answer = await caller.ask(body)
            statuses[answer.status] += 1
            latencies.append(answer.latency)
        caller.close()

    await asyncio.gather(*map(call, callers))
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses=dict(statuses), latencies=sorted(latencies))


def run_closed(
    target: Target, bodies: Iterator[bytes], *, connections: int = CALLERS, duration: float = 120.0
) -> Outcome:
    """Run a closed loop in an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(closed_loop(target, bodies, connections=connections, duration=duration))
