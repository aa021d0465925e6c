"""Sends an open-loop load of one-item requests and judges every answer."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterator
from typing import Self

import httpx
import msgspec

from loadtests.chaos.system import KEY
from loadtests.faults.model import MODEL, ModelOracle, texts

# No answer takes longer: the gateway's own deadline is shorter.
_LONGEST = 30.0
_GRACE = 15.0


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was due at `due` (loop time) and its end; status 0 without any answer.

    `latency` counts from when it was due. `retry_after` is what a refusal said.
    """

    due: float
    latency: float
    status: int
    is_right: bool
    retry_after: str = ""


class LoadGenerator:
    """Sends at `rate` a second, spaced at random, while entered; `sent` holds the outcomes.

    `repeat` is the one text to send. With `insists`, a refused request is retried
    after the time that its refusal gives.
    """

    def __init__(
        self,
        port: int,
        judge: ModelOracle,
        *,
        rate: float,
        seed: int,
        timeout: float | None = None,
        repeat: str | None = None,
        insists: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        if timeout is not None:
            headers["x-request-timeout"] = str(timeout)
        self.rate = rate
        self.sent: list[RequestOutcome] = []
        self._judge = judge
        self._texts: Iterator[str] = texts(seed)
        self._chooser = random.Random(seed)
        self._connections = _Connections(host, port, headers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self._unjudged: list[tuple[int, str, bytes]] = []
        self._repeat = repeat
        self._insists = insists

    async def __aenter__(self) -> Self:
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._connections.close()
        self._judge_answers()

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += self._chooser.expovariate(self.rate)
            await asyncio.sleep(max(0.0, due - loop.time()))
            task = asyncio.create_task(self._one(due, self._repeat or next(self._texts)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, due: float, text: str) -> None:
        while wait := await self._try(due, text):
            await asyncio.sleep(wait * self._chooser.uniform(1.0, 1.5))
            due = asyncio.get_running_loop().time()

    async def _try(self, due: float, text: str) -> float:
        """Send once; return the seconds until a retry is due, 0 for none."""
        loop = asyncio.get_running_loop()
        status, head, body = 0, b"", b""
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_LONGEST):
                content = msgspec.json.encode({"model": MODEL, "input": [text]})
                status, head, body = await self._connections.exchange(content)
        found = RequestOutcome(
            due=due,
            latency=loop.time() - due,
            status=status,
            is_right=False,
            retry_after=_field(head, b"retry-after:"),
        )
        if status == httpx.codes.OK:
            self._unjudged.append((len(self.sent), text, body))
        self.sent.append(found)
        return float(found.retry_after) if self._insists and found.retry_after else 0.0

    def _judge_answers(self) -> None:
        """Judge the answers after the measurement."""
        for place, text, body in self._unjudged:
            is_right = self._judge.is_right_text(text, body)
            self.sent[place] = msgspec.structs.replace(self.sent[place], is_right=is_right)
        self._unjudged.clear()


class _Connections:
    """A pool of keep-alive connections without a bound."""

    def __init__(self, host: str, port: int, headers: dict[str, str]) -> None:
        lines = ["POST /v1/embed HTTP/1.1", "host: gateway"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join(lines).encode()
        self._host, self._port = host, port
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def exchange(self, content: bytes) -> tuple[int, bytes, bytes]:
        """Send a body; return the answer's status, head and body."""
        reader, writer = await self._take()
        try:
            writer.write(
                b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(content), content)
            )
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(_field(head, b"content-length:")))
        except BaseException:  # whatever it was, what comes on it next is not ours
            writer.transport.abort()
            raise
        self._idle.append((reader, writer))
        return int(head[9:12]), head, body

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # In turn, so that none is idle for as long as the gateway keeps one that is.
        while self._idle:
            reader, writer = self._idle.popleft()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.transport.abort()


def _field(head: bytes, name: bytes) -> str:
    place = head.find(name)
    return "" if place < 0 else head[place + len(name) :].split(b"\r\n", 1)[0].strip().decode()
