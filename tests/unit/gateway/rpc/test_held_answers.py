"""Large answers of calls hold memory under the caller's key until they are read."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest
from grpc import StatusCode
from typing_extensions import override

from sluicegate.gateway.api.http import Headers, HttpReply
from sluicegate.gateway.http.unsent_answers import LARGE_BYTES, UnsentAnswers
from sluicegate.gateway.rpc import handler, listener
from sluicegate.gateway.rpc.handler import HeldAnswers
from sluicegate.gateway.rpc.in_process import InProcessCalls
from sluicegate.gateway.rpc.infer_route import SERVICE
from testing.waiting import until
from tests.support.api import KEY
from tests.support.rpc import RunningRpc, infer, running_rpc, serialized

pytestmark = pytest.mark.anyio
_LONG = "x" * 2_000_000
_RESULT = b'{"labels":[{"label":"%b","score":0.5}]}' % _LONG.encode()


@pytest.fixture
async def rpc(anyio_backend: str) -> AsyncIterator[RunningRpc]:
    async with running_rpc() as running:
        running.api.scene.runner.result = lambda _: _RESULT
        yield running


def held(rpc: RunningRpc) -> int:
    return rpc.api.unsent.statistics().unsent_bytes


async def test_a_peer_that_does_not_read_holds_memory_until_it_goes(rpc: RunningRpc) -> None:
    writer = await _ask_and_read_nothing(rpc.port)

    with contextlib.closing(writer):
        await until(lambda: held(rpc) >= 2 * len(_LONG))  # grpcio has a copy
        async with rpc.client() as other:  # meanwhile no other has to be read
            assert (await other.ask("ModelInfer", infer("sentiment", "b"))).code is StatusCode.OK
        assert held(rpc) >= len(_LONG)
    with contextlib.suppress(OSError):
        await writer.wait_closed()

    await until(lambda: held(rpc) == 0)


async def test_what_is_read_holds_nothing(rpc: RunningRpc) -> None:
    async with rpc.client() as client:
        alone = await client.ask("ModelInfer", infer("sentiment", "a"))
        await until(lambda: held(rpc) == 0)
        stream = client.stream()
        for text in ("b", "c", "d"):
            await stream.write(infer("sentiment", text))
        answers = [await stream.read() for _ in range(3)]
        await until(lambda: held(rpc) == 0)  # while the stream is open
        is_open = not stream.done()

    assert len(alone.message.raw_output_contents[0]) > len(_LONG)
    assert [answer.error_message for answer in answers] == [""] * 3
    assert is_open


async def test_an_answer_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "another key"

    class Overtaken(InProcessCalls):
        """Another key takes the room between the core's answer and the call's."""

        @override
        async def infer(self, message: bytes, headers: Headers) -> HttpReply:
            reply = await super().infer(message, headers)
            taken.append(await rpc.api.unsent.hold(other, 8_000_000, 0.0))
            return reply

    taken = list[int]()
    monkeypatch.setattr(handler, "_LONGEST_HOLD", 0.0)
    monkeypatch.setattr(listener, "InProcessCalls", Overtaken)
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.unsent._budget.limit_bytes = 9_000_000
        rpc.api.scene.runner.result = lambda _: _RESULT
        alone = await client.ask("ModelInfer", infer("sentiment", "a"))
        rpc.api.unsent.release(other, taken.pop())
        stream = client.stream()
        await stream.write(infer("sentiment", "a"))
        one_of_many = await stream.read()

    assert (alone.code, "set aside" in alone.details) == (StatusCode.UNAVAILABLE, True)
    assert one_of_many.error_message == alone.details


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_call_that_has_ended_holds_nothing(*, is_over: bool) -> None:
    unsent = UnsentAnswers()
    holding = HeldAnswers(unsent, "key", is_over=lambda: is_over)

    await holding.hold(LARGE_BYTES, 0.0)  # which needs no room
    size = await holding.hold(200_000, 0.0)
    before = unsent.statistics().unsent_bytes
    holding.end()
    holding.release(size)

    assert (before, unsent.statistics().unsent_bytes) == (0 if is_over else 400_000, 0)


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
