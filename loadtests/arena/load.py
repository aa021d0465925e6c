"""Sends an open-loop load through the balancer and judges every answer."""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from typing import NamedTuple, Self

import httpx
import msgspec

from loadtests.arena.questions import ExpectedAnswers, Question, questions

_TIMEOUT = 15.0
"""Seconds that a caller waits; the gateway's own deadline is 10."""
_CONNECTIONS = 512


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its end; `due` and `latency` in seconds, status 0 without any answer."""

    due: float
    latency: float
    status: int
    is_right: bool
    items: int
    id: str = ""
    """What the answer's `X-Request-Id` says."""
    code: str = ""
    """The `code` of a problem."""
    detail: str = ""
    """What the problem says."""


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    port: int


class LoadGenerator:
    """Sends `rate` requests a second while entered, until `finish`; `sent` holds the outcomes.

    At least `count` requests are sent.
    """

    def __init__(
        self,
        port: int,
        *,
        keys: list[str],
        expected: ExpectedAnswers,
        rate: float,
        count: int,
        seed: int,
    ) -> None:
        self.sent: list[RequestOutcome] = []
        self._port = port
        self._keys = keys
        self._expected = expected
        self._rate = rate
        self._count = count
        self._questions = questions(seed)
        self._chooser = random.Random(seed)
        self._idle: deque[_Connection] = deque()
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self._may_end = False
        self.started = 0.0

    async def __aenter__(self) -> Self:
        self.started = asyncio.get_running_loop().time()
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._idle:
            connection.writer.close()

    def move(self, port: int) -> None:
        """Send what comes next to another port, over connections of its own."""
        self._port = port

    async def finish(self) -> None:
        """Send the rest of `count`, and wait until every request has ended."""
        self._may_end = True
        if self._sending is not None:
            await self._sending
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        due = self.started
        for number in itertools.count():
            if self._may_end and number >= self._count:
                break
            due += self._chooser.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due - loop.time()))
            task = asyncio.create_task(self._one(due, next(self._questions)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, due: float, question: Question) -> None:
        status, head, body = 0, b"", b""
        with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError):
            # From when it was due: who waited so long for a connection of ours has gone, too.
            async with asyncio.timeout_at(due + _TIMEOUT), self._places:
                status, head, body = await self._exchange(question)
        is_right = status == httpx.codes.OK and self._expected.is_right(question, body)
        self.sent.append(
            RequestOutcome(
                due=due - self.started,
                latency=asyncio.get_running_loop().time() - due,
                status=status,
                is_right=is_right,
                items=len(question.texts),
                id=_field(head, b"x-request-id:"),
                code="" if status == httpx.codes.OK else _field_of(body, "code"),
                detail="" if status == httpx.codes.OK else _field_of(body, "detail"),
            )
        )

    async def _exchange(self, question: Question) -> tuple[int, bytes, bytes]:
        connection = await self._connection()
        reader, writer, _ = connection
        try:
            content = question.body
            lines = [
                f"POST {question.path} HTTP/1.1",
                "Host: arena",
                f"Authorization: Bearer {self._chooser.choice(self._keys)}",
                "Content-Type: application/json",
                f"Content-Length: {len(content)}",
            ]
            if not question.is_cached:
                lines.append("Cache-Control: no-cache")
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(_field(head, b"content-length:")))
        except BaseException:  # whatever it was, what comes on it next is not ours
            writer.transport.abort()
            raise
        if _field(head, b"connection:") == "close":
            writer.close()
        else:
            self._idle.append(connection)
        return int(head[9:12]), head, body

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.popleft()
            reader, writer, port = connection
            if port == self._port and not reader.at_eof() and not writer.is_closing():
                return connection
            writer.close()
        port = self._port
        return _Connection(*await asyncio.open_connection("127.0.0.1", port), port)


def _field(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(name):
            return line[len(name) :].strip().decode()
    return ""


def _field_of(body: bytes, name: str) -> str:
    with contextlib.suppress(msgspec.DecodeError):
        problem = msgspec.json.decode(body)
        if isinstance(problem, dict):
            return str(problem.get(name, ""))
    return ""
