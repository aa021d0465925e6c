"""Generates a closed-loop HTTP/1.1 load: each connection sends again once it is answered.

Loopback only, bounded in time, and cheap beside the server that it measures: 20 µs a request.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from typing_extensions import override


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The address of requests, and their common headers."""

    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, body: bytes) -> bytes:
        """Return a whole request."""
        return b"%bcontent-length: %d\r\n\r\n%b" % (self.head(), len(body), body)

    def head(self) -> bytes:
        """Return the beginning of all requests: every line but the length of the body."""
        headers = {"host": self.host, "content-type": "application/json"} | dict(self.headers)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([f"POST {self.path} HTTP/1.1", *lines, ""]).encode()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; latencies in seconds, sorted."""

    duration: float
    statuses: dict[int, int]
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies) / self.duration

    def percentile(self, share: float) -> float:
        """Return the latency that `share` of the requests did not exceed, in seconds."""
        return percentile(self.latencies, share)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` of ordered values do not exceed; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class ClientConnection(asyncio.Protocol):
    """Sends requests one by one, and hands each whole response to `answered`."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._buffer = b""
        self.sent_at = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(transport)
        self.transport = transport

    def send(self, body: bytes) -> None:
        """Send a request."""
        self.sent_at = time.perf_counter()
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body))

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
        self.answered(head, body if start >= 0 else b"".join(_chunks(body)))

    def answered(self, head: bytes, body: bytes) -> None:
        """Take a response; names and values of the head are in lower case."""
        raise NotImplementedError


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        yield rest[:length]
        body = rest[length + 2 :]


class _Caller(ClientConnection):
    """Sends the next body as soon as the last one is answered."""

    def __init__(self, head: bytes, bodies: Iterator[bytes], run: "_Run") -> None:
        super().__init__(head)
        self._bodies = bodies
        self._run = run

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send_next()

    @override
    def answered(self, head: bytes, body: bytes) -> None:
        self._run.statuses[int(head[9:12])] += 1
        self._run.latencies.append(time.perf_counter() - self.sent_at)
        self._send_next()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._run.left()

    def _send_next(self) -> None:
        body = next(self._bodies, None) if time.perf_counter() < self._run.until else None
        if body is None:
            self.transport.close()
        else:
            self.send(body)


class _Run:
    """Counts answers until the time or the bodies run out."""

    def __init__(self, connections: int, duration: float) -> None:
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self.until = time.perf_counter() + duration
        self._open = connections

    def left(self) -> None:
        self._open -= 1
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)


async def closed_loop(
    target: Target, bodies: Iterator[bytes], *, connections: int, duration: float
) -> Outcome:
    """Send over `connections` for `duration` seconds, or until `bodies` end."""
    run, head = _Run(connections, duration), target.head()
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    await asyncio.gather(
        *(
            loop.create_connection(lambda: _Caller(head, bodies, run), target.host, target.port)
            for _ in range(connections)
        )
    )
    await run.done
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses=dict(run.statuses), latencies=sorted(run.latencies))


def run_closed(
    target: Target, bodies: Iterator[bytes], *, connections: int, duration: float = 120.0
) -> Outcome:
    """Run a closed loop in an event loop of its own."""
    return asyncio.run(closed_loop(target, bodies, connections=connections, duration=duration))
