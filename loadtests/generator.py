"""Generates a closed-loop HTTP/1.1 load: each connection sends its next request after an answer.

It sends to loopback only and for a bounded time. A request takes 20 to 30 µs of the generator's
processor time, which is little compared with the time of the measured server.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import uvloop
from typing_extensions import override

OK = 200
_clock = time.perf_counter


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


_Answered = Callable[[int, bytes, bytes], None]
"""Takes the status, the head and the body of an answer; status 0 means that there was no answer."""


class ClientConnection(asyncio.Protocol):
    """A connection with at most one request on it."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._buffer = b""
        self._answered: _Answered | None = None
        self.is_open = True

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def send(self, body: bytes, answered: _Answered) -> None:
        """Send a request, and call `answered` once it has ended."""
        self._answered = answered
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body))

    def close(self) -> None:
        """Close the connection immediately. A request in flight ends with status 0."""
        self.is_open = False
        self.transport.abort()
        self._end(0, b"", b"")

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        start = head.find(b"content-length:")
        if start < 0:
            if not self._buffer.endswith(b"\r\n0\r\n\r\n"):  # the last chunk
                return
        elif len(self._buffer) < end + 4 + int(head[start + 15 :].split(b"\r\n", 1)[0]):
            return
        body = self._buffer[end + 4 :]
        self._buffer = b""
        if b"\r\nconnection: close" in head:
            self.is_open = False
            self.transport.close()
        self._end(int(head[9:12]), head, body if start >= 0 else b"".join(_chunks(body)))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(0, b"", b"")

    def _end(self, status: int, head: bytes, body: bytes) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status, head, body)


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        yield rest[:length]
        body = rest[length + 2 :]


async def connect(target: Target) -> ClientConnection:
    """Open a connection."""
    head = target.head()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: ClientConnection(head), target.host, target.port
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
    callers = set(await asyncio.gather(*(connect(target) for _ in range(connections))))
    done = asyncio.Event()
    started = _clock()

    def call(caller: ClientConnection) -> None:
        has_time = _clock() < started + duration and caller.is_open
        body = next(bodies, None) if has_time else None
        if body is None:
            callers.discard(caller)
            caller.close()
            if not callers:
                done.set()
            return
        sent = _clock()

        def answered(status: int, _head: bytes, _body: bytes) -> None:
            statuses[status] += 1
            latencies.append(_clock() - sent)
            call(caller)

        caller.send(body, answered)

    for caller in list(callers):
        call(caller)
    await done.wait()
    took = _clock() - started
    return Outcome(duration=took, statuses=dict(statuses), latencies=sorted(latencies))


def run_closed(
    target: Target, bodies: Iterator[bytes], *, connections: int, duration: float = 120.0
) -> Outcome:
    """Run a closed loop in an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(closed_loop(target, bodies, connections=connections, duration=duration))
