"""Runs scripts on real connections and compares the responses with the expected responses."""

import asyncio
import contextlib
from collections import Counter
from itertools import pairwise

from loadtests.fuzz_http.expect import ExpectedResponse, UnexpectedResponse, judge
from loadtests.fuzz_http.requests import Request
from loadtests.fuzz_http.script import Script
from testing.raw_http import Connection, MalformedResponse, Response
from testing.waiting import WAIT_LIMIT

_LATE = 0.2
_SHOWN = 3000


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
        self._requests = [*script.requests, *([script.last] if script.last else [])]
        self._has_open_end = script.last is not None and script.last.expect.is_many
        self._answered = 0

    async def run(self) -> str:
        sending = asyncio.create_task(self._send())
        try:
            async with asyncio.timeout(WAIT_LIMIT):
                await self._judge_all()
        except TimeoutError:
            left = len(self._requests) - self._answered
            what = f"{left} of {len(self._requests)} requests are not answered"
            return self._described(f"a hang: {what if left else 'the connection stays open'}")
        except (UnexpectedResponse, MalformedResponse, asyncio.LimitOverrunError) as wrong:
            return self._described(str(wrong))
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        return ""

    def _described(self, what: str) -> str:
        sent = b"".join(request.content for request in self._requests[self._answered :])
        received = self._connection.reader.received[-_SHOWN:]
        return f"{what}\n  sent: {sent[:_SHOWN]!r}\n  received: {received!r}"

    async def _send(self) -> None:
        """Send the whole script at its own pace."""
        script, transport = self._script, self._connection.transport
        if script.reads_late:
            transport.pause_reading()
            asyncio.get_running_loop().call_later(_LATE, self._read_on)
        content = b"".join(request.content for request in script.requests)
        for start, end in pairwise((0, *script.cuts, len(content))):
            if transport.is_closing():
                return
            transport.write(content[start:end])
            if script.cuts:
                await asyncio.sleep(0)
        if script.last is not None:
            await self._send_last(script.last)

    async def _send_last(self, last: Request) -> None:
        transport = self._connection.transport
        size, pause = last.pace
        size = size or max(1, len(last.content))
        for start in range(0, len(last.content), size):
            if transport.is_closing():
                return
            transport.write(last.content[start : start + size])
            await asyncio.sleep(pause)
        if last.resets:
            # Not before the server can have read the data: otherwise the cut would have no effect.
            await asyncio.sleep(0)
            transport.abort()
        elif last.half_closes and not transport.is_closing():
            transport.write_eof()

    def _read_on(self) -> None:
        if not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()

    async def _judge_all(self) -> None:
        for request in self._requests:
            expect = request.expect
            while True:
                response = await self._response(expect)
                if response is None:
                    return
                self._answers[expect.name, judge(expect, response)] += 1
                is_over = response.headers.get("connection", "").lower() == "close"
                if is_over and not self._may_close(expect):
                    raise UnexpectedResponse(f"{expect.name}: the connection is to be closed")
                if not expect.is_many:
                    break
            self._answered += 1
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
            last = self._script.last
            if last is not None and last.resets:
                return None
            if (closed.partial or closed.expected) and not self._has_open_end:
                raise UnexpectedResponse("the connection is closed within a response") from closed
            left = [request.expect for request in self._requests[self._answered :]]
            if not all(one.may_be_silent or one.is_many for one in left):
                what = f"{expect.name}: the connection is closed without an answer"
                raise UnexpectedResponse(what) from closed
            return None

    def _may_close(self, expect: ExpectedResponse) -> bool:
        # After the last whole request, the server may already know that the sender has finished.
        is_last = self._has_open_end and self._answered >= len(self._requests) - 2
        return is_last or expect.may_close or expect.must_close
