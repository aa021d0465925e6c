"""Builds the script of a connection from seed and number, runs it, and judges the answers."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from loadtests.fuzz_http.bodies import Caller
from loadtests.fuzz_http.expect import ExpectedResponse, UnexpectedResponse, judge
from loadtests.fuzz_http.requests import Request, RequestGenerator
from testing.raw_http import Connection, MalformedResponse, Response
from testing.waiting import WAIT_LIMIT

_PIPELINED = (1, 1, 2, 4, 8, 16, 32)
_LATE = 0.2
_SHOWN = 3000


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a connection, in order."""

    number: int
    requests: list[Request]
    """The valid requests, sent one after another without waiting for answers."""
    cuts: list[int]
    """The positions at which the bytes are cut into separate writes."""
    reads_late: bool
    """Whether the client reads nothing for a while."""
    last: Request | None
    """The message that ends the connection; it may be invalid."""

    @property
    def size(self) -> int:
        """The number of requests."""
        return len(self.requests) + (self.last is not None)


def script(seed: int, number: int, callers: list[Caller]) -> Script:
    """Return the script of connection `number`."""
    chance = random.Random(f"{seed}/{number}")
    generator = RequestGenerator(chance, callers, number)
    requests = [generator.next() for _ in range(chance.choice(_PIPELINED))]
    last = generator.last() if chance.random() < 0.5 else None
    return make_script(chance, number, requests, last, cuts=(0, 0, 0, 1, 3))


def plain_script(seed: int, number: int, callers: list[Caller]) -> Script:
    """Return a script of plain requests alone."""
    chance = random.Random(f"{seed}/plain/{number}")
    generator = RequestGenerator(chance, callers, number)
    requests = [generator.plain() for _ in range(chance.choice(_PIPELINED))]
    return make_script(chance, number, requests, None, cuts=(0, 0, 0, 1, 3))


def make_script(
    chance: random.Random,
    number: int,
    requests: list[Request],
    last: Request | None,
    *,
    cuts: Sequence[int],
) -> Script:
    """Return a script of some requests; `cuts` are the possible numbers of random cuts."""
    size = sum(len(request.content) for request in requests)
    return Script(
        number=number,
        requests=requests,
        cuts=sorted(chance.sample(range(1, size), k=chance.choice(cuts))),
        reads_late=chance.random() < 0.01,
        last=last,
    )


async def run_script(script: Script, port: int, answers: Counter[tuple[str, int]]) -> str:
    """Run one script to its end; return what was wrong with the bytes, or an empty text.

    `answers` counts the statuses of answers by kind of request.
    """
    try:
        async with Connection(port) as connection:
            return await _ScriptRun(script, connection, answers).run()
    except OSError as error:
        return f"no connection: {error}"


class _ScriptRun:
    """Sends a script on one connection and judges each response."""

    def __init__(
        self, script: Script, connection: Connection, answers: Counter[tuple[str, int]]
    ) -> None:
        self._script = script
        self._connection = connection
        self._answers = answers
        self._left = [*script.requests, *([script.last] if script.last else [])]
        """The requests whose answers are not judged yet."""
        self._has_open_end = script.last is not None and script.last.expect.is_many
        self._is_reset = script.last is not None and script.last.resets

    async def run(self) -> str:
        sending = asyncio.create_task(self._send())
        try:
            async with asyncio.timeout(WAIT_LIMIT):
                await self._judge_all()
        except TimeoutError:
            left = f"{len(self._left)} of {self._script.size} requests are not answered"
            return self._described(f"a hang: {left if self._left else 'the connection stays open'}")
        except (UnexpectedResponse, MalformedResponse, asyncio.LimitOverrunError) as wrong:
            return self._described(str(wrong))
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        return ""

    def _described(self, what: str) -> str:
        sent = b"".join(request.content for request in self._left)
        received = self._connection.reader.received[-_SHOWN:]
        return f"{what}\n  sent: {sent[:_SHOWN]!r}\n  received: {received!r}"

    async def _send(self) -> None:
        """Send the whole script at its own pace."""
        script, transport = self._script, self._connection.transport
        if script.reads_late:
            transport.pause_reading()
            asyncio.get_running_loop().call_later(_LATE, self._read_on)
        content = b"".join(request.content for request in script.requests)
        await self._write([content[a:b] for a, b in pairwise((0, *script.cuts, len(content)))])
        if (last := script.last) is None:
            return
        size, pause = last.pace
        size = size or max(1, len(last.content))
        parts = [last.content[at : at + size] for at in range(0, len(last.content), size)]
        await self._write(parts, pause)
        if last.resets:
            # Not before the server can have read the data: otherwise the cut would have no effect.
            await asyncio.sleep(0)
            transport.abort()
        elif last.half_closes and not transport.is_closing():
            transport.write_eof()

    async def _write(self, parts: Sequence[bytes], pause: float = 0.0) -> None:
        for part in parts:
            if not self._connection.transport.is_closing():
                self._connection.transport.write(part)
                await asyncio.sleep(pause)

    def _read_on(self) -> None:
        if not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()

    async def _judge_all(self) -> None:
        while self._left:
            expect = self._left[0].expect
            response = await self._response(expect)
            if response is None:
                return
            self._answers[expect.name, judge(expect, response)] += 1
            is_over = response.headers.get("connection", "").lower() == "close"
            if is_over and not self._may_close(expect):
                raise UnexpectedResponse(f"{expect.name}: the connection is to be closed")
            if not expect.is_many:
                self._left.pop(0)
        last = self._script.last
        if last is not None and (last.resets or last.expect.must_close):
            has_more = not await self._connection.is_closed()
        else:
            has_more = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    has_more = not await self._connection.is_closed()
        if has_more:
            raise UnexpectedResponse("more is answered than was asked")

    async def _response(self, expect: ExpectedResponse) -> Response | None:
        """Return the next response; `None` if the server rightly closed the connection instead."""
        try:
            return await self._connection.response(to_head=expect.to_head)
        except asyncio.IncompleteReadError as closed:
            if self._is_reset:
                return None
            if (closed.partial or closed.expected) and not self._has_open_end:
                raise UnexpectedResponse("the connection is closed within a response") from closed
            left = [request.expect for request in self._left]
            if not all(one.may_be_silent or one.is_many for one in left):
                what = f"{expect.name}: the connection is closed without an answer"
                raise UnexpectedResponse(what) from closed
            return None

    def _may_close(self, expect: ExpectedResponse) -> bool:
        # After the last whole request, the server may already know that the sender has finished.
        is_last = self._has_open_end and len(self._left) <= 2
        return is_last or expect.may_close or expect.must_close
