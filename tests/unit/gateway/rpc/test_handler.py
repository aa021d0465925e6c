"""Calls of gRPC are answered as requests over HTTP are, by a real client and server."""

import asyncio
from typing import Any

import grpc
import msgspec
import pytest
from grpc import StatusCode

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.types import ItemFailure, Rule
from testing.waiting import until
from tests.support.api import AUTHORIZATION, KEY, NARROW_KEY
from tests.support.rpc import RpcReply, floats, infer, message, packed, running_rpc

pytestmark = pytest.mark.anyio
_MINUTE = Rule(name="minute", unit="requests", capacity=1, window=60.0)


async def test_texts_are_answered_by_raw_and_by_typed_contents_alike() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        raw = await client.ask("ModelInfer", infer("minilm", "a", "b", id="7"))
        typed = await client.ask("ModelInfer", infer("minilm", "a", "b", id="7", raw=False))

    assert raw.code is StatusCode.OK
    assert (raw.message.model_name, raw.message.id) == ("minilm", "7")
    output = raw.message.outputs[0]
    assert (output.name, output.datatype, list(output.shape)) == ("EMBEDDING", "FP32", [2, 2])
    assert floats(raw.message) == [0.25, -0.5] * 2
    assert typed.message == raw.message
    assert raw.trailing["x-request-id"].startswith("req_")
    assert "fwd=uri-miss" in raw.trailing["cache-status"]
    assert "hit" in typed.trailing["cache-status"]


async def test_an_answer_over_http_is_a_hit_over_grpc() -> None:
    async with running_rpc() as rpc, rpc.client() as client, rpc.api.client() as http:
        await http.post("/v1/embed", json={"model": "minilm", "input": "one"})
        hit = await client.ask("ModelInfer", infer("minilm", "one"))
        await client.ask("ModelInfer", infer("minilm", "two"))
        back = await http.post("/v1/embed", json={"model": "minilm", "input": "two"})

    assert "hit" in hit.trailing["cache-status"]
    assert "hit" in back.headers["cache-status"]
    assert [event.usage.hit for event in rpc.api.events.events] == [0, 1, 0, 1]


async def test_methods_about_server_and_models_answer_in_their_messages() -> None:
    named = {"name": "sentiment"}
    async with running_rpc() as rpc, rpc.client() as client:
        live = await client.ask("ServerLive")
        ready = await client.ask("ServerReady")
        known = await client.ask("ModelReady", message("ModelReadyRequest", **named))
        unknown = await client.ask("ModelReady", message("ModelReadyRequest", name="nobody"))
        server = await client.ask("ServerMetadata")
        model = await client.ask("ModelMetadata", message("ModelMetadataRequest", **named))
        config = await client.ask("ModelConfig", message("ModelConfigRequest", **named))
        one = await client.ask("ModelStatistics", message("ModelStatisticsRequest", **named))
        every = await client.ask("ModelStatistics")
        index = await client.ask("RepositoryIndex", message("RepositoryIndexRequest", ready=True))

    assert (live.message.live, ready.message.ready) == (True, True)
    assert (known.message.ready, unknown.message.ready) == (True, False)
    assert server.message.name == "sluicegate"
    assert "statistics" in server.message.extensions
    assert [one.name for one in model.message.inputs] == ["TEXT", "TEXT_PAIR"]
    assert [list(one.shape) for one in model.message.inputs] == [[-1, 1]] * 2
    assert config.message.config.name == "sentiment"
    assert config.message.config.max_batch_size > 0
    assert {one.data_type for one in config.message.config.input} == {13}
    assert [each.name for each in one.message.model_stats] == ["sentiment"]
    assert {"sentiment", "other"} <= {each.name for each in every.message.model_stats}
    assert {each.state for each in index.message.models} == {"READY"}
    assert server.trailing["x-request-id"].startswith("req_")


async def test_a_gateway_that_is_not_ready_says_so() -> None:
    async with running_rpc() as rpc, rpc.client(key="") as client:
        rpc.api.ready = msgspec.structs.replace(rpc.api.ready, ready=False, missing=["x"])
        ready = await client.ask("ServerReady")
        live = await client.ask("ServerLive")
        health = client.channel.unary_unary("/grpc.health.v1.Health/Check")

        assert (live.message.live, ready.message.ready) == (True, False)
        assert await health(b"") == b"\x08\x02"


async def test_only_known_keys_are_answered() -> None:
    async with running_rpc() as rpc:
        replies = [
            await ask_with(rpc, key=key, metadata=metadata)
            for key, metadata in (
                ("", ()),
                ("sk-of-nobody-at-all", ()),
                ("", (("x-api-key", KEY),)),
                (NARROW_KEY, ()),
            )
        ]
        async with rpc.client(key="") as client:
            metadata_of_server = await client.ask("ServerMetadata")
            stream = client.stream()
            end = await stream.code()

    assert [reply.code for reply in replies] == [
        StatusCode.UNAUTHENTICATED,
        StatusCode.UNAUTHENTICATED,
        StatusCode.OK,
        StatusCode.PERMISSION_DENIED,
    ]
    assert "Authorization" in replies[0].details
    assert replies[0].trailing["x-request-id"].startswith("req_")
    assert metadata_of_server.code is end is StatusCode.UNAUTHENTICATED


async def ask_with(rpc: Any, *, key: str, metadata: Any) -> RpcReply:
    async with rpc.client(key=key) as client:
        reply: RpcReply = await client.ask("ModelInfer", infer("minilm", "a"), metadata=metadata)
        return reply


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (infer("minilm", "a", raw_input_contents=[packed("a")[:-1]]), "within an element"),
        (infer("minilm", "a", raw_input_contents=[packed("a")] * 2), "2 `raw_input_contents`"),
        (infer("minilm", "a", outputs=[{"name": "NONE"}]), "`NONE` is unknown"),
        (b"\xff\xff", "no `ModelInferRequest`"),
    ],
    ids=["truncated", "too many", "unknown output", "no message"],
)
async def test_bad_input_is_refused_with_what_to_do(request_: Any, says: str) -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        reply = await client.ask("ModelInfer", request_)

    assert (reply.code, says in reply.details) == (StatusCode.INVALID_ARGUMENT, True), reply


async def test_what_is_not_there_is_refused() -> None:
    shared = infer("minilm", "a")
    shared.inputs[0].parameters["shared_memory_region"].string_param = "region"
    async with running_rpc() as rpc, rpc.client() as client:
        unknown = await client.ask("ModelInfer", infer("nobody", "a"))
        named = [
            await client.ask("ModelMetadata", message("ModelMetadataRequest", name=name))
            for name in ("nobody", "", "a/b")
        ]
        memory = await client.ask("ModelInfer", shared)
        load = client.channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")(
            b"", metadata=(("authorization", f"Bearer {KEY}"),)
        )

        assert await load.code() is StatusCode.UNIMPLEMENTED
        assert "sluicegate models reload" in await load.details()
    assert unknown.code is StatusCode.NOT_FOUND
    assert [reply.code for reply in named] == [StatusCode.NOT_FOUND] * 3
    assert memory.code is StatusCode.INVALID_ARGUMENT
    assert "shared memory" in memory.details


async def test_a_used_up_limit_says_when_to_come_back() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.limit(_MINUTE)
        replies = [await client.ask("ModelInfer", infer("minilm", "a")) for _ in range(2)]
        metadata = await client.ask("ServerMetadata")

    assert [reply.code for reply in replies] == [StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED]
    assert int(replies[1].trailing["retry-after"]) > 0
    assert '"minute"' in replies[1].trailing["ratelimit"]
    assert metadata.code is StatusCode.RESOURCE_EXHAUSTED


async def test_what_backends_fail_is_told_apart() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        codes = []
        for status, code in ((503, "overloaded"), (502, "upstream_failed"), (422, "input_empty")):
            rpc.api.scene.runner.failure = ItemFailure(status=status, code=code, detail="No.")
            codes.append((await client.ask("ModelInfer", infer("minilm", code))).code)
        cached = (("cache-control", "only-if-cached"),)
        missing = await client.ask("ModelInfer", infer("minilm", "new"), metadata=cached)

    assert codes == [StatusCode.UNAVAILABLE, StatusCode.INTERNAL, StatusCode.INVALID_ARGUMENT]
    assert missing.code is StatusCode.NOT_FOUND


async def test_the_deadline_of_a_call_is_that_of_the_request() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        asked = (("x-request-timeout", "0.1"),)
        by_header = await client.ask("ModelInfer", infer("minilm", "a"), metadata=asked)
        by_call = await client.ask("ModelInfer", infer("minilm", "b"), timeout=0.2)
        deadline, ended = rpc.api.scene.runner.works[-1].deadline, asyncio.get_running_loop().time()
        await until(lambda: len(rpc.api.events.events) == 2)

    assert by_header.code is by_call.code is StatusCode.DEADLINE_EXCEEDED
    assert deadline <= ended + 0.2
    assert by_header.trailing["x-request-id"].startswith("req_")
    assert [event.status for event in rpc.api.events.events] == [504, 504]


async def test_a_call_that_is_cancelled_ends_and_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        calls = [client.begin("ModelInfer", infer("minilm", text)) for text in "ab"]
        await until(lambda: rpc.api.scene.runner.begun == 2)
        for call in calls:
            call.cancel()
        rpc.api.scene.runner.gate.set()
        # As over HTTP, work that was begun is finished, and kept.
        await until(lambda: len(rpc.api.events.events) == 2)
        again = await client.ask("ModelInfer", infer("minilm", "a"))

    assert "hit" in again.trailing["cache-status"]
    await until(lambda: asyncio.all_tasks() <= before)


async def test_messages_are_bounded_and_may_be_compressed() -> None:
    text = "long " * 1000
    async with running_rpc() as rpc, rpc.client() as client:
        limit = rpc.api.document().request.max_body_bytes
        small = await client.ask(
            "ModelInfer", infer("minilm", text), compression=grpc.Compression.Gzip
        )
        large = await client.ask("ModelInfer", infer("minilm", "x" * limit))
        bomb = await client.ask(
            "ModelInfer", infer("minilm", "x" * (2 * limit)), compression=grpc.Compression.Gzip
        )

    assert small.code is StatusCode.OK
    assert large.code is bomb.code is StatusCode.RESOURCE_EXHAUSTED
    assert len(rpc.api.events.events) == 1


async def test_a_stream_answers_in_order_and_goes_on_after_an_error() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        stream = client.stream()
        for model, name in (("minilm", "1"), ("nobody", "2"), ("minilm", "3")):
            await stream.write(infer(model, name, id=name))
        await stream.done_writing()
        answers = [answer async for answer in stream]

        assert await stream.code() is StatusCode.OK
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "3"]
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert answers[2].infer_response.parameters["triton_final_response"].bool_param
    assert floats(answers[2].infer_response) == [0.25, -0.5]


async def test_more_than_a_stream_has_places_for_is_answered() -> None:
    count = 100
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        stream = client.stream()
        for number in range(count):
            await stream.write(infer("minilm", str(number), id=str(number)))
        await until(lambda: rpc.api.scene.runner.begun > 10)
        begun = rpc.api.scene.runner.begun
        rpc.api.scene.runner.gate.set()
        await stream.done_writing()
        answers = [answer.infer_response.id async for answer in stream]

    assert begun < count / 2
    assert answers == [str(number) for number in range(count)]


async def test_streams_that_have_ended_leave_room_for_others() -> None:
    codes = []
    async with running_rpc() as rpc, rpc.client() as client:
        for _ in range(65):
            stream = client.stream()
            await stream.done_writing()
            codes.append(await stream.code())

    assert set(codes) == {StatusCode.OK}


async def test_a_stream_whose_client_goes_away_ends() -> None:
    before = asyncio.all_tasks()
    async with running_rpc() as rpc:
        async with rpc.client() as client:
            rpc.api.scene.runner.gate.clear()
            stream = client.stream()
            await stream.write(infer("minilm", "a"))
            await until(lambda: rpc.api.scene.runner.begun == 1)
        rpc.api.scene.runner.gate.set()
        await until(lambda: len(rpc.api.events.events) == 1)
    await until(lambda: asyncio.all_tasks() <= before)


async def test_calls_under_way_are_answered_while_the_gateway_stops() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        call = client.begin("ModelInfer", infer("minilm", "a"))
        stream = client.stream()
        await stream.write(infer("minilm", "b"))
        await until(lambda: rpc.api.scene.runner.begun == 2)
        rpc.stop.set()
        await asyncio.sleep(0)
        rpc.api.scene.runner.gate.set()

        answer = await stream.read()
        assert floats(await call) == floats(answer.infer_response) == [0.25, -0.5]
        assert await stream.code() is StatusCode.UNAVAILABLE


async def test_headers_of_http_do_not_reach_through_metadata() -> None:
    metadata = (
        ("content-encoding", "gzip"),
        ("inference-header-content-length", "3"),
        ("accept-encoding", "gzip"),
        ("x-request-id", "mine"),
    )
    async with running_rpc() as rpc, rpc.client() as client:
        reply = await client.ask("ModelInfer", infer("minilm", "a"), metadata=metadata)

    assert reply.code is StatusCode.OK
    assert reply.trailing["x-client-request-id"] == "mine"
    assert not {"content-type", "content-length", "vary", "cache-control"} & set(reply.trailing)
    assert AUTHORIZATION["authorization"] not in str(reply.trailing)


async def test_calls_and_connections_at_a_time_are_bounded() -> None:
    async with running_rpc(max_connections=1) as rpc, rpc.client() as client:
        rpc.api.scene.runner.gate.clear()
        call = client.begin("ModelInfer", infer("minilm", "a"))
        await until(lambda: rpc.api.scene.runner.begun == 1)
        beyond = await client.ask("ModelInfer", infer("minilm", "b"))
        async with rpc.client() as other:
            refused = await other.ask("ServerLive")
        rpc.api.scene.runner.gate.set()

        assert floats(await call) == [0.25, -0.5]
    assert beyond.code is StatusCode.RESOURCE_EXHAUSTED
    assert refused.code is StatusCode.UNAVAILABLE


async def test_a_port_in_use_is_refused_by_its_setting() -> None:
    async with running_rpc() as rpc:
        with pytest.raises(ConfigurationError, match="SLUICEGATE_GRPC_PORT"):
            async with running_rpc(grpc_port=rpc.port):
                pass


async def test_large_messages_count_against_the_memory_for_bodies() -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        budget = rpc.api.bodies.budget
        budget.limit_bytes = 16 * rpc.api.document().request.max_body_bytes
        for other in range(4):  # which leave less than the message is long
            assert budget.try_hold(other, (budget.limit_bytes - budget.used_bytes) * 8 // 9)
        large = await client.ask("ModelInfer", infer("minilm", "x" * 300_000))
        small = await client.ask("ModelInfer", infer("minilm", "x"))

    assert (large.code, small.code) == (StatusCode.UNAVAILABLE, StatusCode.OK)
    assert "Large bodies" in large.details


async def test_a_message_that_is_too_large_ends_its_stream_alone() -> None:
    before = asyncio.all_tasks()
    async with running_rpc() as rpc, rpc.client() as client:
        limit = rpc.api.document().request.max_body_bytes
        stream = client.stream()
        await stream.write(infer("minilm", "a"))
        answer = await stream.read()
        await stream.write(infer("minilm", "x" * limit))

        assert await stream.code() is StatusCode.RESOURCE_EXHAUSTED
        other = await client.ask("ModelInfer", infer("minilm", "a"))
    assert floats(answer.infer_response) == floats(other.message)
    await until(lambda: asyncio.all_tasks() <= before)
