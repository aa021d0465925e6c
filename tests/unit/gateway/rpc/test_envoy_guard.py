"""Envoy asks a guard about requests to a language model and their answers, by a real client."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Self

import grpc
import grpc.aio
import msgspec
import pytest
from grpc import StatusCode

from sluicegate.gateway.rpc import envoy_guard
from sluicegate.gateway.rpc.envoy_guard import CHECK, PROCESS
from sluicegate.gateway.rpc.messages import ENVOY, MessageTable
from sluicegate.gateway.types import ItemFailure
from sluicegate.wire.guards import GuardConfig, RouterConfig
from tests.support.api import KEY
from tests.support.rpc import RunningRpc, running_rpc

pytestmark = pytest.mark.anyio
_TYPES = MessageTable(ENVOY)
_BUFFERED = {"request_body_mode": 2, "response_body_mode": 2}
_GUARD = {
    "model": "chat-detectors",
    "detectors": [{"kind": "length", "name": "long", "max_characters": 99}],
    "message": "Not here.",
}
_ROUTER = {
    "model": "chat-detectors",
    "detectors": [{"kind": "words", "name": "names", "words": ["Ada"]}],
    "rules": [{"detector": "names", "target": "large"}],
    "default": "small",
}
# What Envoy 1.40 sent of `POST /v1/chat/completions` with a message "Ada".
_SENT_HEAD = (
    "EuwBCukBCh0KCjphdXRob3JpdHkaDzEyNy4wLjAuMToxODE5MQodCgU6cGF0aBoUL3YxL2NoYXQvY29tcGxldGlvbnMKDwoHOm1ldGhv"
    "ZBoEUE9TVAoPCgc6c2NoZW1lGgRodHRwCiAKDGNvbnRlbnQtdHlwZRoQYXBwbGljYXRpb24vanNvbgoUCg5jb250ZW50LWxlbmd0aBoC"
    "NDYKGQoReC1mb3J3YXJkZWQtcHJvdG8aBGh0dHAKNAoMeC1yZXF1ZXN0LWlkGiQ1NmI5YzQ2Mi0yYzBhLTRjMDctYTA1My0yOTk3MTRi"
    "YzY0NGFCAFoECAIQAg=="
)
_SENT_BODY = "IjIKLnsibWVzc2FnZXMiOlt7InJvbGUiOiJ1c2VyIiwiY29udGVudCI6IkFkYSJ9XX0QAUIA"
_SENT_CHECK = (
    "CtIDChMKEQoPEgkxMjcuMC4wLjEYrM8DEhMKEQoPEgkxMjcuMC4wLjEYkI4BIqEDCgsIjs632AYQ+KajPxKRAwoTMTQwMzg0NDg4ODUx"
    "MzMxMDI3NBIEUE9TVBoiChl4LWVudm95LWF1dGgtcGFydGlhbC1ib2R5EgVmYWxzZRodCgU6cGF0aBIUL3YxL2NoYXQvY29tcGxldGlv"
    "bnMaNAoMeC1yZXF1ZXN0LWlkEiQwOGRjYjBhNC1lMzViLTQ1NmEtYjI3MS01ODBjNTliODFlYjkaFAoOY29udGVudC1sZW5ndGgSAjQ2"
    "GiAKDGNvbnRlbnQtdHlwZRIQYXBwbGljYXRpb24vanNvbhoPCgc6c2NoZW1lEgRodHRwGg8KBzptZXRob2QSBFBPU1QaGQoReC1mb3J3"
    "YXJkZWQtcHJvdG8SBGh0dHAaHQoKOmF1dGhvcml0eRIPMTI3LjAuMC4xOjE4MTkyIhQvdjEvY2hhdC9jb21wbGV0aW9ucyoPMTI3LjAu"
    "MC4xOjE4MTkyMgRodHRwSC5SCEhUVFAvMS4xYi57Im1lc3NhZ2VzIjpbeyJyb2xlIjoidXNlciIsImNvbnRlbnQiOiJBZGEifV19WgBq"
    "AA=="
)


def judged(item: bytes) -> bytes:
    """Return what a guard finds: names to redact, and attacks to block."""
    text = msgspec.msgpack.decode(item, type=str)
    found = [
        {
            "detector": "names",
            "action": "redact",
            "label": "PER",
            "score": 1.0,
            "start": text.index(name),
            "end": text.index(name) + len(name),
        }
        for name in ("Ada", "Bob")
        if name in text
    ]
    verdict = "block" if "attack" in text else "redact" if found else "allow"
    return msgspec.json.encode({"verdict": verdict, "findings": found})


@pytest.fixture
async def rpc(anyio_backend: str) -> AsyncIterator[RunningRpc]:
    async with running_rpc() as running:
        running.api.scene.runner.result = judged
        guard = msgspec.convert(_GUARD, GuardConfig)
        lenient = msgspec.structs.replace(guard, on_error="allow")
        router = msgspec.convert(_ROUTER, RouterConfig)
        running.api.configure(
            guards={"chat": guard, "lenient": lenient}, routers={"models": router}
        )
        yield running


class Envoy:
    """Sends the messages of one HTTP request."""

    def __init__(
        self,
        rpc: RunningRpc,
        *,
        guard: str = "chat",
        router: str = "",
        key: str = KEY,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{rpc.port}", options=own)
        self._metadata = [("authorization", f"Bearer {key}"), *metadata]
        self._metadata += [("sluicegate-guard", guard)] if guard else []
        self._metadata += [("sluicegate-router", router)] if router else []
        self._stream: Any = None

    async def __aenter__(self) -> Self:
        serialize: Callable[[bytes], bytes] = bytes
        process = self.channel.stream_stream(PROCESS, request_serializer=serialize)
        self._stream = process(metadata=self._metadata)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._stream.cancel()
        await self.channel.close()

    async def send(self, raw: bytes) -> Any:
        """Return the answer to a message."""
        await self._stream.write(raw)
        answer = await self._stream.read()
        return answer and _TYPES["ProcessingResponse"].FromString(answer)

    async def head(self, **fields: Any) -> Any:
        """Return the answer to the head of a request."""
        fields = {"request_headers": {}, "protocol_config": _BUFFERED} | fields
        return await self.send(_TYPES["ProcessingRequest"](**fields).SerializeToString())

    async def body(self, kind: str, body: bytes) -> Any:
        """Return the answer to a body."""
        message = _TYPES["ProcessingRequest"](**{kind: {"body": body}})
        return await self.send(message.SerializeToString())

    async def ended(self) -> tuple[StatusCode, str]:
        """Return how the stream ended."""
        with contextlib.suppress(asyncio.InvalidStateError):  # it has ended
            await self._stream.done_writing()
        return await self._stream.code(), await self._stream.details()

    async def code(self) -> StatusCode:
        """Return how the stream ends without a half-close."""
        found: StatusCode = await self._stream.code()
        return found

    async def check(self, raw: bytes) -> Any:
        """Return the answer to a `CheckRequest`."""
        serialize: Callable[[bytes], bytes] = bytes
        check = self.channel.unary_unary(CHECK, request_serializer=serialize)
        answer = await check(raw, metadata=self._metadata, timeout=30.0)
        return _TYPES["CheckResponse"].FromString(answer)


def asked(text: Any) -> bytes:
    """Return a request to a language model."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def answered(text: str, **message: Any) -> bytes:
    """Return the answer of a language model."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text} | message}
    return json.dumps({"choices": [choice]}).encode()


def content(answer: Any) -> str:
    """Return the text in the new body of a request or an answer."""
    common = (
        answer.request_body if answer.HasField("request_body") else answer.response_body
    ).response
    (length,) = common.header_mutation.set_headers
    body = common.body_mutation.body
    assert (length.header.key, length.header.raw_value) == ("content-length", b"%d" % len(body))
    found = json.loads(body)
    message = found["messages"][0] if "messages" in found else found["choices"][0]["message"]
    return str(message["content"])


async def test_a_redacted_text_is_restored_in_the_answer(rpc: RunningRpc) -> None:
    async with Envoy(rpc) as envoy:
        head = await envoy.head()
        request = await envoy.body("request_body", asked("👩‍🚀 Ada asks"))
        await envoy.send(_TYPES["ProcessingRequest"](response_headers={}).SerializeToString())
        call = {"function": {"name": "f", "arguments": '{"to":"<PER_1>"}'}}
        answer = await envoy.body("response_body", answered("To <PER_1>", tool_calls=[call]))
        end = await envoy.ended()

    assert head.request_headers.response.header_mutation.remove_headers == ["accept-encoding"]
    assert content(request) == "👩‍🚀 <PER_1> asks"
    assert content(answer) == "To Ada"
    assert rb"{\"to\":\"Ada\"}" in answer.response_body.response.body_mutation.body
    assert end[0] is StatusCode.OK


_USER = {"role": "user", "content": "Mail Ada"}
_CALL = {"name": "mail", "arguments": '{"to": "<PER_1>", "count": 1.50}'}


@pytest.mark.parametrize(
    ("field", "answer", "result"),
    [
        (
            "messages",
            {
                "id": "msg_01",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "content": [
                    {"type": "text", "text": "To <PER_1>"},
                    {
                        "type": "tool_use",
                        "id": "toolu_01",
                        "name": "mail",
                        "input": {"to": ["<PER_1>"], "count": 1.5},
                    },
                ],
                "stop_reason": "tool_use",
                "stop_sequence": None,
                "usage": {"input_tokens": 9, "output_tokens": 9},
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "Ada"}],
            },
        ),
        (
            "messages",
            {
                "object": "chat.completion",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls",
                        "message": {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [{"id": "1", "type": "function", "function": _CALL}],
                        },
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "Ada"},
        ),
        (
            "input",
            {"object": "response", "output": [{"type": "function_call", "call_id": "1"} | _CALL]},
            {"type": "function_call_output", "call_id": "1", "output": "Ada"},
        ),
    ],
)
async def test_a_history_with_restored_calls_is_redacted_again(
    rpc: RunningRpc, field: str, answer: Any, result: Any
) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.head()
        await envoy.body("request_body", json.dumps({field: [_USER]}).encode())
        restored = await envoy.body("response_body", json.dumps(answer).encode())
    said = _said(json.loads(restored.response_body.response.body_mutation.body))
    async with Envoy(rpc) as envoy:
        await envoy.head()
        history = {"max_tokens": 9, field: [_USER, said, result]}
        request = await envoy.body("request_body", json.dumps(history).encode())
        again = await envoy.body("response_body", answered("<PER_1>"))

    assert "PER" not in json.dumps(said)
    sent = request.request_body.response.body_mutation.body
    assert b"Ada" not in sent
    assert json.loads(sent)[field][1] == _said(answer)
    assert content(again) == "Ada"


def _said(answer: Any) -> Any:
    """Return the part of an answer that clients send again."""
    if "choices" in answer:
        return answer["choices"][0]["message"]
    return (
        answer["output"][0] if "output" in answer else {k: answer[k] for k in ("role", "content")}
    )


async def test_a_call_that_cannot_be_redacted_is_blocked(rpc: RunningRpc) -> None:
    call = {"function": {"name": "mail_Ada", "arguments": "{}"}}
    async with Envoy(rpc) as envoy:
        await envoy.head()
        history = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
        answer = await envoy.body("request_body", json.dumps(history).encode())

    assert answer.immediate_response.status.code == 403
    assert "cannot be redacted" in json.loads(answer.immediate_response.body)["error"]["message"]


async def test_a_new_placeholder_of_the_answer_is_not_restored(rpc: RunningRpc) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.head()
        await envoy.body("request_body", asked("Ada"))
        echoed = await envoy.body("response_body", answered("<PER_1>, Bob, <PER_7>"))
    async with Envoy(rpc) as envoy:
        await envoy.head()
        await envoy.body("request_body", asked("Ada"))
        own = await envoy.body("response_body", answered("Bob"))

    assert content(echoed) == "Ada, <PER_2>, <PER_7>"
    assert content(own) == "<PER_1>"


async def test_a_caller_cannot_choose_what_is_restored(rpc: RunningRpc) -> None:
    chosen = [("sluicegate-placeholders", '{"<PER_1>":"Mallory"}')]
    async with Envoy(rpc, metadata=chosen) as envoy:
        await envoy.head()
        request = await envoy.body("request_body", asked("Ada"))
        answer = await envoy.body("response_body", answered("<PER_1>"))
    async with Envoy(rpc, metadata=chosen) as envoy:
        await envoy.head()
        unknown = await envoy.body("response_body", answered("<PER_1>"))

    assert content(request) == "<PER_1>"
    assert content(answer) == "Ada"
    assert not unknown.response_body.response.HasField("body_mutation")


async def test_the_route_of_bodies_is_not_served_over_http(rpc: RunningRpc) -> None:
    async with rpc.api.client() as client:
        response = await client.post("/envoy/chat", content=asked("hello"))

    assert response.status_code == 404


@pytest.mark.parametrize(
    ("status", "body", "changed"),
    [
        ("502", b"<html>Bad Gateway</html>", ""),
        ("200", b"<html>Bad Gateway</html>", "immediate_response"),
        ("429", answered("attack"), "immediate_response"),
    ],
)
async def test_an_error_without_json_passes(
    rpc: RunningRpc, status: str, body: bytes, changed: str
) -> None:
    head = {"headers": {"headers": [{"key": ":status", "raw_value": status.encode()}]}}
    message = _TYPES["ProcessingRequest"](response_headers=head)
    async with Envoy(rpc) as envoy:
        await envoy.head()
        await envoy.body("request_body", asked("Ada"))
        await envoy.send(message.SerializeToString())
        answer = await envoy.body("response_body", body)

    assert answer.WhichOneof("response") == (changed or "response_body")
    assert not answer.response_body.response.HasField("body_mutation")


async def test_an_answer_cannot_repeat_a_long_text_without_end(rpc: RunningRpc) -> None:
    span = {"detector": "all", "action": "redact", "label": "PER", "score": 1.0, "start": 0}
    long = msgspec.json.encode({"verdict": "redact", "findings": [span | {"end": 100_000}]})
    allowed = msgspec.json.encode({"verdict": "allow", "findings": []})
    rpc.api.scene.runner.result = lambda item: long if item.endswith(b"x") else allowed
    async with Envoy(rpc) as envoy:
        await envoy.head()
        request = await envoy.body("request_body", asked("x" * 100_000))
        answer = await envoy.body("response_body", answered("<PER_1>" * 100))

    assert content(request) == "<PER_1>"
    assert "repeats too much" in json.loads(answer.immediate_response.body)["error"]["message"]


async def test_a_long_streamed_answer_is_restored(rpc: RunningRpc) -> None:
    rpc.api.configure(request=msgspec.structs.replace(rpc.api.document().request, max_values=20))
    events = [
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": one}}]}).encode()
        for one in ("<PER_1>", " a" * 9_000, *"b" * 50)
    ]
    async with Envoy(rpc) as envoy:
        await envoy.head()
        await envoy.body("request_body", asked("Ada"))
        answer = await envoy.body("response_body", b"\n\n".join(events))
        with pytest.raises(grpc.aio.AioRpcError):
            await envoy.body("response_body", b"data: [" + b"1," * 20_000 + b"1]")
        refused = await envoy.ended()

    changed = answer.response_body.response.body_mutation.body
    assert changed.startswith(b'data: {"choices":[{"index":0,"delta":{"content":"Ada a')
    assert "more than 20 JSON values" in refused[1]


async def test_a_body_without_findings_stays_as_it_is(rpc: RunningRpc) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.head()
        request = await envoy.body("request_body", asked("hello"))
        empty = await envoy.body("response_body", b"")

    assert request.WhichOneof("response") == "request_body"
    assert not request.request_body.response.HasField("body_mutation")
    assert not empty.response_body.response.HasField("body_mutation")


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("request_body", asked("attack"), "Not here."),
        ("response_body", answered("attack"), "Not here."),
        ("request_body", json.dumps({"user": "Ada"}).encode(), "Not here."),
        ("request_body", json.dumps({"tools": ["attack"]}).encode(), "Not here."),
        ("request_body", b"no json", "could not be looked at"),
        ("request_body", asked([{"type": "image_url"}]), "could not be looked at"),
        ("response_body", b"\x1f\x8b\x08", "could not be looked at"),
    ],
)
async def test_a_blocked_body_gets_an_error_of_openai(
    rpc: RunningRpc, kind: str, body: bytes, reason: str
) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.head()
        answer = (await envoy.body(kind, body)).immediate_response
        end = await envoy.ended()

    assert answer.status.code == 403
    (header,) = answer.headers.set_headers
    assert (header.header.key, header.header.raw_value) == ("content-type", b"application/json")
    error = json.loads(answer.body)["error"]
    assert reason in error["message"]
    assert error["code"] == "content_filter"
    assert end[0] is StatusCode.OK


async def test_definitions_of_tools_are_not_redacted(rpc: RunningRpc) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.head()
        answer = await envoy.body("request_body", json.dumps({"tools": ["Ada"]}).encode())

    assert answer.WhichOneof("response") == "request_body"


@pytest.mark.parametrize("body", [b"no json", asked([{"type": "image_url"}]), asked("hello")])
async def test_what_was_not_looked_at_passes_if_the_guard_says_so(
    rpc: RunningRpc, body: bytes
) -> None:
    rpc.api.scene.runner.failure = ItemFailure(
        status=503, code="upstream_unavailable", detail="no backend", retryable=True
    )
    async with Envoy(rpc, guard="lenient") as envoy, Envoy(rpc) as strict:
        await envoy.head()
        await strict.head()
        answers = [await one.body("request_body", body) for one in (envoy, strict)]

    kinds = [one.WhichOneof("response") for one in answers]
    assert kinds == ["request_body", "immediate_response"]


async def test_an_answer_that_is_no_json_passes_as_it_is(rpc: RunningRpc) -> None:
    async with Envoy(rpc, guard="lenient") as envoy:
        await envoy.head()
        await envoy.body("request_body", asked("Ada"))
        answer = await envoy.body("response_body", b"<PER_1>")

    assert answer.WhichOneof("response") == "response_body"
    assert not answer.response_body.response.HasField("body_mutation")


@pytest.mark.parametrize(
    ("fields", "guard", "key", "code", "detail"),
    [
        (
            {"protocol_config": {"request_body_mode": 1}},
            "chat",
            KEY,
            "INVALID_ARGUMENT",
            "BUFFERED",
        ),
        ({"protocol_config": {}}, "chat", KEY, "INVALID_ARGUMENT", "BUFFERED"),
        ({"observability_mode": True}, "chat", KEY, "INVALID_ARGUMENT", "observability_mode"),
        ({}, "", KEY, "INVALID_ARGUMENT", "initial_metadata"),
        ({}, "other", KEY, "NOT_FOUND", "no guard `other`"),
        ({}, "chat", "sk-wrong", "UNAUTHENTICATED", "API key"),
    ],
)
async def test_a_stream_that_cannot_be_judged_ends_with_an_error(
    rpc: RunningRpc, fields: Any, guard: str, key: str, code: str, detail: str
) -> None:
    async with Envoy(rpc, guard=guard, key=key) as envoy:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await envoy.head(**fields)
            await envoy.body("request_body", asked("hello"))
        end = await envoy.ended()

    assert end[0] is StatusCode[code]
    assert detail in end[1]


async def test_what_envoy_sends_is_understood(rpc: RunningRpc) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.send(base64.b64decode(_SENT_HEAD))
        request = await envoy.send(base64.b64decode(_SENT_BODY))
        checked = await envoy.check(base64.b64decode(_SENT_CHECK))

    assert content(request) == "<PER_1>"
    assert checked.denied_response.status.code == 403


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        ({"method": "POST", "raw_body": asked("hello")}, 0, ""),
        ({"method": "POST", "body": asked("hello").decode()}, 0, ""),
        ({"method": "GET"}, 0, ""),
        ({"method": "POST", "raw_body": asked("attack")}, 7, "Not here."),
        ({"method": "POST", "raw_body": asked("Ada")}, 7, "not allowed"),
        ({"method": "POST", "raw_body": asked("hello")[:-9]}, 7, "could not be looked at"),
        ({"method": "POST"}, 7, "could not be looked at"),
    ],
)
async def test_a_request_that_is_not_allowed_is_denied(
    rpc: RunningRpc, request_: Any, code: int, reason: str
) -> None:
    message = _TYPES["CheckRequest"](attributes={"request": {"http": request_}})
    async with Envoy(rpc) as envoy:
        answer = await envoy.check(message.SerializeToString())

    assert answer.status.code == code
    types = [one.header.value for one in answer.denied_response.headers]
    assert types == (["application/json"] if code else [])
    assert answer.WhichOneof("http_response") == ("denied_response" if code else "ok_response")
    if code:
        assert reason in json.loads(answer.denied_response.body)["error"]["message"]


def target(answer: Any) -> str:
    """Return the target that a request's answer sets, by which Envoy finds the route anew."""
    common = answer.request_body.response
    assert common.clear_route_cache
    *_, header = common.header_mutation.set_headers
    assert header.header.key == "sluicegate-target"
    return str(header.header.raw_value.decode())


@pytest.mark.parametrize(
    ("body", "chosen"),
    [
        ({"messages": [{"role": "user", "content": "Ada"}]}, "large"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Ada"}]}]}, "large"),
        (
            {
                "messages": [
                    {"role": "user", "content": "Ada"},
                    {"role": "assistant", "content": "Ada"},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Ada"},
                ]
            },
            "small",
        ),
        ({"input": "Ada"}, "large"),
        ({"prompt": "Ada"}, "large"),
        ({"prompt": ["Hi", "Ada"]}, "large"),
        (
            {
                "messages": [
                    {"role": "user", "content": "Ada"},
                    {"role": "user", "content": [{"type": "tool_result", "content": "Hi"}]},
                ]
            },
            "large",
        ),
        ({"messages": 7}, "small"),
        ([], "small"),
    ],
)
async def test_the_last_text_of_the_user_chooses_the_route(
    rpc: RunningRpc, body: Any, chosen: str
) -> None:
    async with Envoy(rpc, guard="", router="models") as envoy:
        head = (await envoy.head()).request_headers.response
        request = await envoy.body("request_body", json.dumps(body).encode())
        answer = await envoy.body("response_body", answered("Ada"))

    assert head.header_mutation.remove_headers == ["accept-encoding", "sluicegate-target"]
    assert head.clear_route_cache
    assert target(request) == chosen
    assert not request.request_body.response.HasField("body_mutation")
    assert not answer.response_body.HasField("response")


async def test_a_request_is_redacted_and_has_a_route(rpc: RunningRpc) -> None:
    async with Envoy(rpc, router="models") as envoy:
        await envoy.head()
        request = await envoy.body("request_body", asked("Ada"))
    async with Envoy(rpc, router="models") as envoy:
        await envoy.head()
        blocked = await envoy.body("request_body", asked("attack"))

    assert target(request) == "large"
    assert b"<PER_1>" in request.request_body.response.body_mutation.body
    assert blocked.immediate_response.status.code == 403


async def test_a_check_needs_a_guard_even_if_the_call_names_a_router(rpc: RunningRpc) -> None:
    request_ = {"method": "POST", "raw_body": asked("attack")}
    message = _TYPES["CheckRequest"](attributes={"request": {"http": request_}})
    async with Envoy(rpc, guard="", router="models") as envoy:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await envoy.check(message.SerializeToString())

    assert "names no guard" in (refused.value.details() or "")


async def test_an_unknown_router_ends_the_stream(rpc: RunningRpc) -> None:
    async with Envoy(rpc, guard="", router="other") as envoy:
        await envoy.head()
        with pytest.raises(grpc.aio.AioRpcError):
            await envoy.body("request_body", asked("Ada"))
        code, details = await envoy.ended()

    assert code is StatusCode.NOT_FOUND
    assert "no router" in details


async def test_streams_leave_places_for_other_calls(anyio_backend: str) -> None:
    async with running_rpc(max_connections=4) as rpc, contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Envoy(rpc)) for _ in range(2)]
        for envoy in opened:
            await envoy.head()
        third = await stack.enter_async_context(Envoy(rpc))
        refused = await third.ended()
        health = await third.channel.unary_unary("/grpc.health.v1.Health/Check")(b"")

    assert refused[0] is StatusCode.RESOURCE_EXHAUSTED
    assert health


@pytest.mark.parametrize("has_head", [False, True])
async def test_a_request_has_a_time_to_arrive(
    has_head: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envoy_guard, "_LONGEST_UPLOAD", 0.0)
    async with running_rpc(head_timeout=10.0 if has_head else 0.1) as rpc, Envoy(rpc) as envoy:
        if has_head:
            await envoy.head()
        code = await envoy.code()

    assert code is StatusCode.DEADLINE_EXCEEDED


async def test_a_stream_ends_after_the_last_body(rpc: RunningRpc) -> None:
    async with Envoy(rpc) as envoy:
        await envoy.head(protocol_config={"request_body_mode": 2})
        body = {"body": asked("hello"), "end_of_stream": True}
        message = _TYPES["ProcessingRequest"](request_body=body)
        await envoy.send(message.SerializeToString())
        code = await envoy.code()

    assert code is StatusCode.OK
