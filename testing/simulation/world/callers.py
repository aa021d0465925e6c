"""Sends requests as customers do, and records every attempt with its answer."""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from testing.simulation.world.model import GUARD_PATH, SHARED
from testing.simulation.world.scenario import Request

OK: Final = 200
_PATIENCE: Final = 3.0
"""Seconds after the deadline for which a caller waits for the answer."""
_PAUSE: Final = 1.0
_ATTEMPTS: Final = 20
_AGAIN: Final = frozenset({0, 409, 429, 500, 503, 504})
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter, float]
"""Also has the time at which the connection was opened."""


class Attempt(msgspec.Struct, kw_only=True):
    """A request that was sent once. Times are the simulation's. Status 0 means no answer."""

    request: Request
    worker: str
    secret: str
    sent: float
    connected: float
    """When its connection was opened, before `sent` if the connection was used again."""
    is_written: bool = False
    """Whether a worker may have got the request."""
    came: float = 0.0
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def id(self) -> str:
        """The gateway's id of the request; empty without an answer."""
        return self.headers.get("x-request-id", "")

    @property
    def code(self) -> str:
        """The code of the error; empty if there is none."""
        with contextlib.suppress(msgspec.DecodeError):
            found = msgspec.json.decode(self.body)
            return str(found.get("code", "")) if isinstance(found, dict) else ""
        return ""

    @property
    def unread(self) -> list[str]:
        """The code of the error of each text that a guard could not read completely."""
        if self.status != OK or self.request.path != GUARD_PATH:
            return []
        results = msgspec.json.decode(self.body)["results"]
        return [each["error"]["code"] for each in results if "error" in each]


class Caller:
    """Sends requests to workers over connections that it keeps open.

    `on_sent` and `on_end` are called with each attempt. A load balancer sends requests only to
    workers that are not `draining`.
    """

    def __init__(
        self,
        addresses: Mapping[str, tuple[str, int]],
        chooser: random.Random,
        clock: Callable[[], float],
        *,
        draining: Collection[str] = (),
        on_sent: Callable[[Attempt], object] = lambda _: None,
        on_end: Callable[[Attempt], object] = lambda _: None,
    ) -> None:
        self.attempts: list[Attempt] = []
        self._draining = draining
        self._on_sent = on_sent
        self._on_end = on_end
        self._clock = clock
        self._addresses = addresses
        self._chooser = chooser
        self._idle: dict[str, list[Stream]] = defaultdict(list)

    async def ask_all(
        self, requests: Sequence[Request], secret_of: Callable[[str], str], begun: float
    ) -> None:
        """Send each request at its time since `begun`, and wait for the answers."""

        async def one(request: Request) -> None:
            await asyncio.sleep(max(0.0, begun + request.at - self._clock()))
            await self.ask(request, secret_of)

        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                tasks.create_task(one(request))

    async def ask(self, request: Request, secret_of: Callable[[str], str]) -> None:
        """Send a request once, or, with an idempotency key, until it is answered.

        Another attempt may go to another worker of the same region.
        """
        worker, region = request.worker, request.worker.split("-")[0]
        workers = [name for name in self._addresses if name.startswith(region)]
        for _ in range(_ATTEMPTS):
            worker = await self._routed(worker, workers)
            attempt = await self.attempt(request, worker, secret_of(request.tenant))
            if not (request.idempotency_key and attempt.status in _AGAIN):
                return
            await asyncio.sleep(_PAUSE)
            worker = self._chooser.choice(workers)

    async def _routed(self, worker: str, workers: Sequence[str]) -> str:
        """Return the worker, or another one of `workers` while it drains. Wait if all do."""
        while worker in self._draining:
            if others := [each for each in workers if each not in self._draining]:
                return self._chooser.choice(others)
            await asyncio.sleep(_PAUSE)
        return worker

    async def attempt(self, request: Request, worker: str, secret: str) -> Attempt:
        """Send a request once, and record it."""
        now = self._clock()
        attempt = Attempt(request=request, worker=worker, secret=secret, sent=now, connected=now)
        self.attempts.append(attempt)
        self._on_sent(attempt)
        stream: Stream | None = None
        try:
            async with asyncio.timeout(request.timeout + _PATIENCE):
                stream = await self._connection(worker)
                attempt.connected = min(now, stream[2])
                attempt.is_written = True
                stream[1].write(encode(request, secret))
                attempt.status, attempt.headers, attempt.body = await read_answer(stream[0])
            if attempt.headers.get("connection") != "close":
                self._idle[worker].append(stream)
                stream = None
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            attempt.status = 0
        finally:
            attempt.came = self._clock()
            if stream is not None:
                stream[1].transport.abort()
            self._on_end(attempt)
        return attempt

    async def _connection(self, worker: str) -> Stream:
        idle = self._idle[worker]
        while idle:
            stream = idle.pop()
            if not (stream[0].at_eof() or stream[1].is_closing()):
                return stream
            stream[1].close()
        opened = await asyncio.open_connection(*self._addresses[worker])
        return *opened, self._clock()


def encode(request: Request, secret: str) -> bytes:
    """Return the bytes of a request."""
    body = msgspec.json.encode(request.body)
    lines = [
        f"POST {request.path} HTTP/1.1",
        "host: gateway",
        f"authorization: Bearer {secret}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-timeout: {request.timeout:g}",
    ]
    if request.cache_control:
        lines.append(f"cache-control: {request.cache_control}")
    if request.idempotency_key:
        lines.append(f"idempotency-key: {request.idempotency_key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def owner_of(request: Request) -> str:
    """Return the tenant whose requests may hit the results of a request; empty if all may."""
    return "" if request.body.get("model") == SHARED else request.tenant


def items_of(body: Mapping[str, Any]) -> list[str]:
    """Return the texts of a request's body, each of which is an item."""
    found: list[str] = body.get("input") or body["documents"]
    return found


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the next response.

    Raises:
        OSError: the connection broke, or the response is malformed.
        IncompleteReadError: the response is incomplete.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    try:
        status, length = int(first.split(" ")[1]), int(headers.get("content-length", "0"))
    except (IndexError, ValueError) as error:
        raise OSError("no HTTP") from error
    return status, headers, await reader.readexactly(length)
