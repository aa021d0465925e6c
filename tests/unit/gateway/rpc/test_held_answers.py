"""Large answers of calls hold memory under the caller's key until they are read."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from grpc import StatusCode

from gateway.rpc.infer_route import SERVICE
from testing.waiting import until
from tests.support.api import KEY
from tests.support.rpc import RunningRpc, infer, running_rpc, serialized

pytestmark = pytest.mark.anyio
_LONG = "x" * 2_000_000


@pytest.fixture
async def rpc(anyio_backend: str) -> AsyncIterator[RunningRpc]:
    async with running_rpc() as running:
        result = b'{"labels":[{"label":"%b","score":0.5}]}' % _LONG.encode()
        running.api.scene.runner.result = lambda _: result
        yield running


def held(rpc: RunningRpc) -> int:
    return rpc.api.unsent.statistics().unsent_bytes


async def test_a_peer_that_does_not_read_holds_memory_until_it_goes(rpc: RunningRpc) -> None:
    writer = await _ask_and_read_nothing(rpc.port)

    await until(lambda: held(rpc) >= len(_LONG))
    async with rpc.client() as other:  # meanwhile no other has to be read
        assert (await other.ask("ModelInfer", infer("sentiment", "b"))).code is StatusCode.OK
    assert held(rpc) >= len(_LONG)
    writer.close()

    await until(lambda: held(rpc) == 0)


async def test_what_is_read_holds_nothing(rpc: RunningRpc) -> None:
    async with rpc.client() as client:
        alone = await client.ask("ModelInfer", infer("sentiment", "a"))
        stream = client.stream()
        for text in ("b", "c", "d"):
            await stream.write(infer("sentiment", text))
        await stream.done_writing()
        answers = [answer async for answer in stream]

    assert len(alone.message.raw_output_contents[0]) > len(_LONG)
    assert [answer.error_message for answer in answers] == [""] * 3
    await until(lambda: held(rpc) == 0)


async def _ask_and_read_nothing(port: int) -> asyncio.StreamWriter:
    """Call `ModelInfer` by frames of HTTP/2, whose windows stay as they are."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": f"{SERVICE}ModelInfer".encode(),
        b":authority": b"a",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"authorization": b"Bearer " + KEY.encode(),
    }
    block = b"".join(
        b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields.items()
    )
    message = serialized(infer("sentiment", "a"))
    content = b"\0" + struct.pack(">I", len(message)) + message
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    writer.write(_frame(4, 0, 0, b"") + _frame(1, 4, 1, block) + _frame(0, 1, 1, content))
    return writer


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    head = struct.pack(">I", len(content))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + content
