"""Runs scripts on real connections and compares the responses with the expected ones."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import cast

import msgspec
from typing_extensions import override

from loadtests.fuzz_http.expect import ExpectedResponse, UnexpectedResponse, judge
from loadtests.fuzz_http.hostile import FinalMessage, any_response_in
from loadtests.fuzz_http.reader import ResponseReader
from loadtests.fuzz_http.script import Script

_LATE = 0.2
_KEPT = 4096


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A violation, with the bytes that led to it."""

    number: int
    what: str
    sent: bytes
    """The bytes sent, from the request with the wrong or missing answer on."""
    received: bytes
    """The last bytes received."""


class ScriptRunner:
    """Runs scripts against the server on `port`; counts the statuses of answers by kind.

    A connection on which nothing happens for `bound` seconds is a hang.
    """

    def __init__(self, port: int, *, bound: float) -> None:
        self._port = port
        self._bound = bound
        self.answers: Counter[tuple[str, int]] = Counter()

    async def run_script(self, script: Script) -> Finding | None:
        """Run one script to its end; return the finding, if any."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(script, self.answers), "127.0.0.1", self._port
        )
        try:
            async with asyncio.timeout(self._bound):
                await connection.send_all()
                await connection.done
        except TimeoutError:
            what = f"a hang: {connection.open} of {script.requests} are not answered"
            if not connection.open:
                what = "a hang: all is answered, and the connection is not closed"
            return connection.finding(what)
        except UnexpectedResponse as wrong:
            return connection.finding(str(wrong))
        finally:
            connection.leave()
        return None


class _Connection(asyncio.Protocol):
    """Sends a script on one connection and judges each response."""

    def __init__(self, script: Script, answers: Counter[tuple[str, int]]) -> None:
        self._script = script
        self._answers = answers
        self._reader = ResponseReader()
        self._received = b""
        self._expects: list[ExpectedResponse] = list(script.expects)
        last = script.last
        self._tail: ExpectedResponse | None = None
        if last is not None and last.expect is not None:
            self._expects.append(last.expect)
        elif last is not None:
            self._tail = any_response_in(last.scope, last.name)
        self._next = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def open(self) -> int:
        """The number of answers still to come."""
        return len(self._expects) - self._next

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._received = (self._received + data)[-_KEPT:]
        self._reader.feed(data)
        try:
            self._judge_all()
        except UnexpectedResponse as wrong:
            self._fail(wrong)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        last = self._script.last
        if last is not None and last.resets:
            self.done.set_result(None)
            return
        left = self._expects[self._next :]
        if self._reader.rest and self._tail is None:
            self._fail(UnexpectedResponse("the connection is closed within a response"))
        elif not all(expect.may_be_silent for expect in left):
            self._fail(
                UnexpectedResponse(f"{left[0].name}: the connection is closed without an answer")
            )
        else:
            self.done.set_result(None)

    async def send_all(self) -> None:
        """Send everything at the script's pace."""
        script, last = self._script, self._script.last
        if script.reads_late:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_LATE, self._read_on)
        content = b"".join(script.parts)
        for start, end in pairwise((0, *script.cuts, len(content))):
            if self._transport.is_closing():
                return
            self._transport.write(content[start:end])
            if script.cuts:
                await asyncio.sleep(0)
        if last is not None:
            await self._send_last(last)

    async def _send_last(self, last: FinalMessage) -> None:
        size, pause = last.pace
        size = size or max(1, len(last.content))
        for start in range(0, len(last.content), size):
            if self._transport.is_closing():
                return
            self._transport.write(last.content[start : start + size])
            await asyncio.sleep(pause)
        if last.resets:
            # Not before the server may have read it: nothing would be tried.
            await asyncio.sleep(0)
            self._transport.abort()
        elif last.half_closes and not self._transport.is_closing():
            self._transport.write_eof()

    def leave(self) -> None:
        """Close the connection, if it is open."""
        self.done.cancel()
        self._transport.abort()

    def finding(self, what: str) -> Finding:
        """Return the violation `what` with the bytes of this connection."""
        last = self._script.last.content if self._script.last else b""
        sent = b"".join([*self._script.parts[self._next :], last])
        return Finding(number=self._script.number, what=what, sent=sent, received=self._received)

    def _judge_all(self) -> None:
        while not self.done.done():
            expect = self._expects[self._next] if self.open else self._tail
            if expect is None:
                if self._reader.rest:
                    raise UnexpectedResponse("more is answered than was asked")
                break
            response = self._reader.next(to_head=expect.to_head)
            if response is None:
                return
            kind = expect.name, judge(expect, response)
            self._answers[kind] += 1
            is_over = response.headers.get(b"connection", b"").lower() == b"close"
            if is_over and not self._may_close(expect):
                raise UnexpectedResponse(f"{expect.name}: the connection is to be closed")
            if self.open:
                self._next += 1
        if not self.open and self._tail is None and not self._awaits_end():
            self.done.set_result(None)

    def _awaits_end(self) -> bool:
        """Return whether the server has to close the connection."""
        last = self._script.last
        if last is None:
            return False
        return last.resets or (last.expect is not None and last.expect.must_close)

    def _may_close(self, expect: ExpectedResponse) -> bool:
        # After the last whole request the server may know already that the sender has finished.
        is_last = self._tail is not None and self.open <= 1
        return is_last or expect.may_close or expect.must_close

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _fail(self, wrong: UnexpectedResponse) -> None:
        if not self.done.done():
            self.done.set_exception(wrong)
