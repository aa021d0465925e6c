"""Generates a precise open-loop load at a steady rate, in a process of its own.

`python -m loadtests.steady < ASKED` prints what it measured as JSON. Plain sockets and one `select`
that sleeps until the next request is due: a timer that is exact to tens of microseconds. Where it
may (root), it runs before everything else on its core, since a request that leaves late through its
fault would be counted as a slow answer.
"""

import contextlib
import gc
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from loadtests.generator import Target, percentile

_ROOT = Path(__file__).parents[1]
_LAST = 2.0
_OK = 200
_PROMPT = 0.0002
_WARM = 0.2
"""Seconds that are sent first and not counted: a connection's first request costs several."""


class SteadyLoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The load: `bodies` in turns, `rate` a second, for `duration`, pinned to `core`."""

    target: Target
    bodies: list[bytes]
    rate: float
    duration: float
    connections: int = 64
    core: int = 1


class SteadyLoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result in seconds; `latencies` are sorted, and counted from when a request was due."""

    rate: float
    sent: int
    failed: int
    is_first: bool
    """Whether the generator ran before everything else on its core."""
    latencies: list[float]
    prompt: list[float]
    """Latencies of the requests that left when they were due, to `_PROMPT` seconds."""

    def percentile(self, share: float) -> float:
        """Return the latency that `share` of the requests did not exceed."""
        return percentile(self.latencies, share)

    def prompt_percentile(self, share: float) -> float:
        """Return the latency that `share` of the prompt requests did not exceed."""
        return percentile(self.prompt, share)


class _Connection:
    """A connection and the request on it."""

    def __init__(self, target: Target) -> None:
        self.socket = socket.create_connection((target.host, target.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due = self.sent = 0.0
        self.is_counted = False
        self._received = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def status(self) -> int:
        """Return the status of the answer that has arrived whole, 0 while it has not."""
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError("the server closed a connection")
        data = self._received + data
        end = data.find(b"\r\n\r\n")
        head = data[:end].lower()
        start = head.find(b"content-length:")
        if end < 0 or len(data) < end + 4 + int(head[start + 15 :].split(b"\r\n", 1)[0]):
            self._received = data
            return 0
        self._received = b""
        return int(data[9:12])


def send_steadily(asked: SteadyLoadSpec) -> SteadyLoadResult:
    """Run the load in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.steady"],
        input=msgspec.json.encode(asked),
        stdout=subprocess.PIPE,
        check=True,
        cwd=_ROOT,
    )
    return msgspec.json.decode(done.stdout, type=SteadyLoadResult)


class _Run:
    """One run: requests leave when they are due if a connection is free, else as soon as one is."""

    def __init__(self, asked: SteadyLoadSpec) -> None:
        self._requests = [asked.target.request(body) for body in asked.bodies]
        self._warm = int(asked.rate * _WARM)
        self._count = self._warm + int(asked.rate * asked.duration)
        self._spacing = 1.0 / asked.rate
        self._connections = [_Connection(asked.target) for _ in range(asked.connections)]
        self._idle = deque(self._connections)
        self._ready = select.epoll()
        self._by_file = {connection.fileno(): connection for connection in self._connections}
        for file in self._by_file:
            self._ready.register(file, select.EPOLLIN)
        self._sent = self._answered = 0
        self.latencies: list[float] = []
        self.prompt: list[float] = []
        self.refused = self.counted = 0

    @property
    def waiting(self) -> int:
        """Requests that were sent and not answered."""
        return self._sent - self._answered

    def run(self, duration: float) -> None:
        """Send everything, and wait for the answers, not much longer than `duration`."""
        clock = time.perf_counter
        started = clock() + 0.01
        ends = started + _WARM + duration + _LAST
        now = clock()
        waited = (self._ready.fileno(),)
        while (self._sent < self._count or self.waiting) and now < ends:
            left = self._send_due(started)
            # Never spin: whoever is waited for may be on this core.
            may_send = self._sent < self._count and self._idle
            timeout = max(0.0, left) if may_send else _LAST
            # `epoll` counts milliseconds, `select` is exact: the one waits for the other.
            select.select(waited, (), (), timeout)
            ready = self._ready.poll(0)
            now = clock()
            for file, _ in ready:
                self._receive(self._by_file[file], now)

    def _send_due(self, started: float) -> float:
        """Send the requests that are due, and return the seconds until the next one."""
        now = time.perf_counter()
        due = started + self._sent * self._spacing
        while due <= now and self._idle and self._sent < self._count:
            connection = self._idle.popleft()
            connection.socket.send(self._requests[self._sent % len(self._requests)])
            connection.due, connection.sent = due, now
            connection.is_counted = self._sent >= self._warm
            self.counted += connection.is_counted
            self._sent += 1
            due += self._spacing
            now = time.perf_counter()
        return due - now

    def _receive(self, connection: _Connection, now: float) -> None:
        status = connection.status()
        if not status:
            return
        self._answered += 1
        self._idle.append(connection)
        self.refused += status != _OK
        if connection.is_counted:
            self.latencies.append(now - connection.due)
            if connection.sent - connection.due < _PROMPT:
                self.prompt.append(now - connection.due)


def _measure(asked: SteadyLoadSpec) -> SteadyLoadResult:
    is_first = _go_first(asked.core)
    run = _Run(asked)
    gc.disable()
    run.run(asked.duration)
    return SteadyLoadResult(
        rate=len(run.latencies) / asked.duration,
        sent=run.counted,
        failed=run.refused + run.waiting,
        is_first=is_first,
        latencies=sorted(run.latencies),
        prompt=sorted(run.prompt),
    )


def _go_first(core: int) -> bool:
    """Take a place on `core`, before all others there if that is allowed; say whether it was."""
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return True
    return False


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=SteadyLoadSpec)
    sys.stdout.buffer.write(msgspec.json.encode(_measure(asked)))
