"""Generates a closed-loop HTTP/1.1 load: each connection sends again once it is answered.

Loopback only, bounded in time, and cheap enough (about 20 µs a request) not to be what is measured.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
from typing_extensions import override


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The address of requests, and their common headers."""

    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()


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
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


class _Connection(asyncio.Protocol):
    """Sends the next body as soon as the last one is answered."""

    def __init__(self, head: bytes, bodies: Iterator[bytes], run: "_Run") -> None:
        self._head = head
        self._bodies = bodies
        self._run = run
        self._buffer = b""
        self._sent_at = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(transport)
        self._transport = transport
        self._send()

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
        now = time.perf_counter()
        self._buffer = b""
        self._run.note(int(head[9:12]), now - self._sent_at)
        self._send()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._run.left()

    def _send(self) -> None:
        body = next(self._bodies, None) if self._run.goes_on() else None
        if body is None:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body))


class _Run:
    """Counts answers until the time or the bodies run out."""

    def __init__(self, connections: int, duration: float) -> None:
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self._open = connections
        self._until = time.perf_counter() + duration

    def goes_on(self) -> bool:
        return time.perf_counter() < self._until

    def note(self, status: int, latency: float) -> None:
        self.statuses[status] += 1
        self.latencies.append(latency)

    def left(self) -> None:
        self._open -= 1
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)


async def closed_loop(
    target: Target, bodies: Iterator[bytes], *, connections: int, duration: float
) -> Outcome:
    """Return what `connections` measured in `duration` seconds, or until `bodies` end."""
    head = (
        f"POST {target.path} HTTP/1.1\r\nhost: {target.host}\r\ncontent-type: application/json\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in target.headers)
    run = _Run(connections, duration)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    await asyncio.gather(
        *(
            loop.create_connection(
                lambda: _Connection(head.encode(), bodies, run), target.host, target.port
            )
            for _ in range(connections)
        )
    )
    await run.done
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses=dict(run.statuses), latencies=sorted(run.latencies))
