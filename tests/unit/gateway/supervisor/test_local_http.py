"""One request to a listener of this machine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sluicegate.gateway.supervisor.local_http import ask
from sluicegate.gateway.supervisor.probes import probe_http
from tests.support.raw_server import RawServer

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[int]:
    """Answer every request with `answer`, or never."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await asyncio.Event().wait()
        else:
            writer.write(answer)

    async with RawServer(handle).open() as server:
        yield server.port


async def test_status_and_body_are_returned() -> None:
    async with answering(b"HTTP/1.1 422 No\r\ncontent-length: 2\r\n\r\n{}") as port:
        assert await ask("127.0.0.1", port, "/x", method="POST") == (422, b"{}")


@pytest.mark.parametrize("answer", [None, b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n"])
async def test_what_is_no_answer_is_an_error(answer: bytes | None) -> None:
    async with answering(answer) as port:
        with pytest.raises(OSError, match="response"):
            await ask("127.0.0.1", port, "/", timeout=0.2)


async def test_a_probe_says_what_is_missing() -> None:
    body = b'{"ready": false,\n "missing": ["models"]}'
    async with answering(b"HTTP/1.1 503 No\r\n\r\n" + body) as port:
        missing = await probe_http("127.0.0.1", port)

    assert missing == 'is not ready: {"ready": false, "missing": ["models"]}'


async def test_a_probe_of_nobody_says_so() -> None:
    async with answering(b"") as port:
        pass

    assert await probe_http("127.0.0.1", port) != ""


async def test_a_probe_of_a_ready_process_says_nothing() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n") as port:
        assert await probe_http("127.0.0.1", port) == ""
