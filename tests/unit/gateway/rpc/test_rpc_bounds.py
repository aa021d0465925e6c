"""What callers over gRPC hold of a worker is bounded: messages, requests, streams, time."""

import string
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest
from grpc import StatusCode
from typing_extensions import override

from sluicegate.gateway.api.http import Headers, HttpReply
from sluicegate.gateway.http.edge import HTTP_2, ListenerEdge, ListenerTls
from sluicegate.gateway.rpc import handler, listener
from sluicegate.gateway.rpc.in_process import InProcessCalls
from sluicegate.gateway.rpc.infer_route import SERVICE
from sluicegate.gateway.tasks import TaskScope
from sluicegate.wire.http.request_head import MAX_FIELDS
from testing.certificates import Authority
from testing.waiting import eventually, until
from tests.support.api import KEY
from tests.support.rpc import floats, infer, running_rpc

pytestmark = pytest.mark.anyio
_PUBLIC = ("/grpc.health.v1.Health/Check", f"{SERVICE}ServerLive", f"{SERVICE}ServerReady")


@pytest.mark.parametrize("method", [*_PUBLIC, f"{SERVICE}ModelInfer", f"{SERVICE}ServerMetadata"])
async def test_nothing_is_read_of_strangers(method: str) -> None:
    async with running_rpc() as rpc, rpc.client(key="") as client:
        call = client.channel.stream_unary(method)()  # and no message
        code = await call.code()

    assert code is (StatusCode.OK if method in _PUBLIC else StatusCode.UNAUTHENTICATED)


@pytest.mark.parametrize("method", ["ModelInfer", "ServerMetadata"])
async def test_a_message_has_a_time_to_arrive(method: str) -> None:
    key = (("authorization", f"Bearer {KEY}"),)
    async with running_rpc(head_timeout=0.1) as rpc, rpc.client() as client:
        late = client.channel.stream_unary(f"{SERVICE}{method}")(metadata=key)
        code, details = await late.code(), await late.details()
        empty = client.channel.stream_unary(f"{SERVICE}{method}")(metadata=key)
        await empty.done_writing()

        assert await empty.code() is StatusCode.INVALID_ARGUMENT
        assert (await client.ask("ModelInfer", infer("minilm", "a"))).code is StatusCode.OK
    assert (code, "in time" in details) == (StatusCode.DEADLINE_EXCEEDED, True)


async def test_messages_are_received_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "_MOST_RECEIVED", 1)
    key = (("authorization", f"Bearer {KEY}"),)
    async with running_rpc() as rpc, rpc.client() as client:
        slow = client.channel.stream_unary(f"{SERVICE}ModelInfer")(metadata=key)
        await slow.wait_for_connection()
        quick = client.begin("ModelInfer", infer("minilm", "a"))
        for _ in range(3):  # the slow call was first
            assert (await client.ask("ServerLive")).message.live
        begun = rpc.api.scene.runner.begun
        slow.cancel()

        assert floats(await quick) == [0.25, -0.5]
    assert begun == 0


async def test_a_stream_reads_no_more_than_it_has_places_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []

    class Counting(InProcessCalls):
        @override
        async def infer(self, message: bytes, headers: Headers) -> HttpReply:
            asked.append(message)
            return await super().infer(message, headers)

    monkeypatch.setattr(handler, "_STREAM_CALLS", 2)
    monkeypatch.setattr(listener, "InProcessCalls", Counting)
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        stream = client.stream()
        for text in "abcd":
            await stream.write(infer("minilm", text))
        await until(lambda: rpc.api.scene.runner.begun == 2)
        for _ in range(3):
            await client.ask("ServerLive")
        count = len(asked)
        rpc.api.scene.runner.gate.set()
        await stream.done_writing()

        assert len([answer async for answer in stream]) == 4
    assert count == 2


async def test_streams_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "_MOST_STREAMS", 1)
    async with running_rpc() as rpc, rpc.client() as client:
        first = client.stream()
        await first.write(infer("minilm", "a"))
        await first.read()
        beyond = client.stream()

        assert await beyond.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "ModelInfer" in await beyond.details()
        await first.done_writing()
        assert await first.code() is StatusCode.OK
        again = client.stream()
        await again.write(infer("minilm", "a"))
        assert floats((await again.read()).infer_response) == [0.25, -0.5]


async def test_a_stream_that_is_cancelled_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handler, "_MOST_STREAMS", 1)
    async with running_rpc() as rpc, rpc.client() as client:
        first = client.stream()
        await first.write(infer("minilm", "a"))
        await first.read()
        first.cancel()

        async def has_place() -> bool:
            stream = client.stream()
            await stream.done_writing()
            return await stream.code() is StatusCode.OK

        await eventually(has_place)


async def test_a_call_with_too_many_fields_is_refused() -> None:
    fields = tuple(("x-field", str(number)) for number in range(MAX_FIELDS + 1))
    async with running_rpc() as rpc, rpc.client() as client:
        refused = await client.ask("ServerLive", metadata=fields)
        few = await client.ask("ServerLive", metadata=fields[: MAX_FIELDS // 2])

    assert (refused.code, few.code) == (StatusCode.RESOURCE_EXHAUSTED, StatusCode.OK)
    assert str(MAX_FIELDS) in refused.details


async def test_requests_that_cancelled_calls_leave_are_bounded() -> None:
    async with running_rpc(max_connections=2) as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        calls = [client.begin("ModelInfer", infer("minilm", text)) for text in "ab"]
        await until(lambda: rpc.api.scene.runner.begun == 2)
        for call in calls:
            call.cancel()
        beyond = await client.ask("ModelInfer", infer("minilm", "c"), timeout=5.0)
        while beyond.code is StatusCode.RESOURCE_EXHAUSTED:  # they have their places yet
            beyond = await client.ask("ModelInfer", infer("minilm", "c"), timeout=5.0)
        begun = rpc.api.scene.runner.begun
        rpc.api.scene.runner.gate.set()
        await until(lambda: len(rpc.api.events.events) == 2)

        assert (await client.ask("ModelInfer", infer("minilm", "c"))).code is StatusCode.OK
    assert (beyond.code, begun) == (StatusCode.UNAVAILABLE, 2)
    assert beyond.trailing["retry-after"] == "1"


async def test_calls_and_what_they_leave_have_one_time_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scopes = list[TaskScope]()

    class Noted(TaskScope):
        @override
        async def __aenter__(self) -> Self:
            scopes.append(self)
            return await super().__aenter__()

    drain = 0.3
    monkeypatch.setattr(listener, "TaskScope", Noted)
    async with running_rpc(drain=drain) as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        call = client.begin("ModelInfer", infer("minilm", "a"))
        await until(lambda: rpc.api.scene.runner.begun == 1)
        rpc.stop.set()
        code = await call.code()

    assert code is StatusCode.UNAVAILABLE
    assert [one.drain < drain / 2 for one in scopes] == [True]


@pytest.mark.parametrize("sign", ["x", "%", "é", "😀"], ids=["plain", "percent", "two", "four"])
async def test_a_long_error_arrives_cut(sign: str) -> None:
    asked = infer("minilm", "a", outputs=[{"name": sign * 9_000}])
    async with running_rpc() as rpc, rpc.client() as client:
        reply = await client.ask("ModelInfer", asked)

    assert reply.code is StatusCode.INVALID_ARGUMENT
    assert reply.details.startswith(f"The output `{sign}{sign}")
    assert 4000 < len(quote(reply.details, safe=string.punctuation.replace("%", " "))) <= 4096


async def test_an_idempotency_key_is_not_that_of_each_request_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list[Headers]()

    class Noting(InProcessCalls):
        @override
        async def infer(self, message: bytes, headers: Headers) -> HttpReply:
            sent.append(headers)
            return await super().infer(message, headers)

    monkeypatch.setattr(listener, "InProcessCalls", Noting)
    key = (("authorization", f"Bearer {KEY}"), ("idempotency-key", "one"))
    async with running_rpc() as rpc, rpc.client(key="") as client:
        await client.ask("ModelInfer", infer("minilm", "a"), metadata=key)
        stream = client.stream(metadata=key)
        await stream.write(infer("minilm", "b"))
        await stream.read()

    assert [b"idempotency-key" in dict(headers) for headers in sent] == [True, False]


async def test_calls_over_tls_are_shown_the_certificate_of_the_moment(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    tls = ListenerTls(first.server(), protocols=HTTP_2)
    ca, other = first.ca.read_bytes(), second.ca.read_bytes()
    async with running_rpc(ListenerEdge(tls=tls)) as rpc, rpc.client(ca=ca) as old:
        before = await old.ask("ModelInfer", infer("minilm", "a"))
        second.server().replace(tls.certificate)
        tls.renew()
        async with rpc.client(ca=other) as new:
            after = await new.ask("ModelInfer", infer("minilm", "a"))
        going_on = await old.ask("ModelInfer", infer("minilm", "a"))
        async with rpc.client() as plain:
            refused = await plain.ask("ServerLive")

    assert [one.code for one in (before, after, going_on)] == [StatusCode.OK] * 3
    assert refused.code is StatusCode.UNAVAILABLE
