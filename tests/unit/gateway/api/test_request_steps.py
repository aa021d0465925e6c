"""An inference route from its headers to its event, with small stand-ins around it."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.api.body_reader import BodyReader
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.incoming_request import IncomingBody, IncomingRequest
from sluicegate.gateway.api.request_state import ParsedBody, RequestState
from sluicegate.gateway.config.document import RequestConfig
from sluicegate.gateway.types import ItemFailure, KeyId, Rule
from sluicegate.wire.protocol import Task
from tests.support.api import AUTHORIZATION, NARROW_KEY, Api, problem
from tests.support.dialects import GUARDS
from tests.support.idempotency import AlwaysKeyed, NotedKey

pytestmark = pytest.mark.anyio
_BODY = {"model": "sentiment", "input": "a text"}


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return Api()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def test_an_answer_is_counted_and_has_left_an_event(
    api: Api, client: httpx.AsyncClient
) -> None:
    response = await client.post("/v1/classify", json=_BODY)

    (event,) = api.events.events
    assert response.status_code == 200
    assert response.headers["cache-control"] == "private, no-store"
    assert event.id == response.headers["x-request-id"]
    assert (event.tenant, event.model, event.status) == ("acme", "sentiment", 200)
    assert response.json()["usage"]["computed"] == event.usage.computed == 1
    assert api.count(200) == 1


async def test_no_event_no_answer(api: Api, client: httpx.AsyncClient) -> None:
    api.events.failing = True

    response = await client.post("/v1/classify", json=_BODY)

    problem(response, 503, "event_log_unavailable")
    assert (api.count(200), api.count(503)) == (None, 1)


async def test_a_failure_is_an_event_that_costs_nothing(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="Busy.")

    response = await client.post("/v1/classify", json=_BODY | {"input": ["a", "b"]})

    problem(response, 503, "overloaded")
    assert response.headers["retry-after"] == "1"
    (event,) = api.events.events
    assert (event.status, event.code, event.model) == (503, "overloaded", "sentiment")
    assert (event.usage.items, event.usage.failed, event.usage.rows) == (2, 2, 0)


async def test_what_fails_after_its_model_is_known_is_that_models(
    api: Api, client: httpx.AsyncClient
) -> None:
    headers = {"cache-control": "only-if-cached"}

    problem(await client.post("/v1/classify", json=_BODY, headers=headers), 504, "not_cached")

    (event,) = api.events.events
    assert event.model == "sentiment"


async def test_a_fault_of_ours_is_a_problem_and_an_event(
    api: Api, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    api.scene.models.bug = RuntimeError("an inner detail")

    response = await client.post("/v1/classify", json=_BODY)

    assert "inner" not in problem(response, 500, "internal_error")
    assert [event.code for event in api.events.events] == ["internal_error"]
    assert "unexpected failure" in caplog.messages


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer sk-nobody-has-this-one", "Basic abc"])
async def test_who_is_unknown_gets_no_further(
    api: Api, client: httpx.AsyncClient, key: str
) -> None:
    response = await client.post("/v1/classify", json=_BODY, headers={"authorization": key})

    problem(response, 401, "authentication_failed")
    assert api.events.events == []
    assert "ratelimit" not in response.headers


async def test_a_key_for_other_models_may_not_use_this_one(
    api: Api, client: httpx.AsyncClient
) -> None:
    client.headers["authorization"] = f"Bearer {NARROW_KEY}"

    response = await client.post("/v1/classify", json=_BODY)

    assert "`sentiment`" in problem(response, 403, "permission_denied")
    assert api.scene.runner.computed == []


async def test_a_used_up_limit_says_which_and_when(api: Api, client: httpx.AsyncClient) -> None:
    api.limit(Rule(name="hour", unit="items", capacity=3, window=3600.0))

    await client.post("/v1/classify", json=_BODY | {"input": ["a", "b"]})
    response = await client.post("/v1/classify", json=_BODY | {"input": ["c", "d"]})

    detail = problem(response, 429, "rate_limited")
    assert "`hour` of items" in detail
    assert "`Retry-After`" in detail
    assert int(response.headers["retry-after"]) > 1
    labels = {"policy": "hour", "decision": "refused"}
    limited = api.registry.get_sample_value("sluicegate_limit_decisions_total", labels)
    assert limited == 1


async def test_more_than_a_limit_ever_allows_must_be_made_smaller(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.limit(Rule(name="hour", unit="items", capacity=3, window=3600.0))

    response = await client.post("/v1/classify", json=_BODY | {"input": ["a"] * 4})

    detail = problem(response, 429, "rate_limited")
    assert "send fewer items" in detail
    assert "3 items" in detail
    assert response.headers["x-should-retry"] == "false"
    assert "retry-after" not in response.headers


async def test_too_many_items_are_refused_with_both_numbers(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(request=RequestConfig(max_items=2))

    response = await client.post("/v1/classify", json=_BODY | {"input": ["a", "b", "c"]})

    assert "3 items are more than 2" in problem(response, 413, "payload_too_large")


async def test_timings_are_told_when_asked_for(client: httpx.AsyncClient) -> None:
    asked = await client.post("/v1/classify", json=_BODY, headers={"x-server-timing": "1"})
    plain = await client.post("/v1/classify", json=_BODY)

    steps = [step.split(";")[0] for step in asked.headers["server-timing"].split(", ")]
    assert steps == ["admission", "inference", "total"]
    assert "server-timing" not in plain.headers


async def test_nothing_is_said_about_models_before_a_backend_was_reached(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.models.infos.clear()

    response = await client.post("/v1/classify", json=_BODY)

    problem(response, 503, "upstream_unavailable")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("task", Task)
async def test_every_task_has_a_route_that_takes_posts_only(
    api: Api, client: httpx.AsyncClient, task: Task
) -> None:
    named = {Task.INFER: "/sentiment", Task.GUARD: "/chat"}
    path = f"/v1/{task}{named.get(task, '')}"
    api.configure(guards=GUARDS)

    posted = await client.post(path, content=b"{")
    read = await client.get(path)

    problem(posted, 400, "invalid_request")
    problem(read, 405, "method_not_allowed")
    assert read.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/v1/infer", "/v1/infer/", "/v1/inference", "/v1/infersentiment", "/v1/nothing", "/v3"]
)
async def test_a_path_that_only_looks_like_a_route_is_none(
    client: httpx.AsyncClient, path: str
) -> None:
    response = await client.post(path, json={"inputs": ["a"]})

    problem(response, 404, "not_found")


async def test_a_reading_route_names_the_methods_it_takes(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/models", json={})

    problem(response, 405, "method_not_allowed")
    assert "GET" in response.headers["allow"]


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_a_reading_route_names_head_beside_get(api: Api, method: str) -> None:
    app = api.routed()
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # as a server's

    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        response = await client.request(method, "/v1/models", headers=AUTHORIZATION)

    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_of_long_bodies_that_arrive_together_one_is_read_in_an_iteration(
    api: Api, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations = 0
    read_in: list[int] = []
    read = BodyReader.read

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    def noted(reader: BodyReader, state: RequestState, raw: bytes) -> ParsedBody:
        read_in.append(iterations)
        return read(reader, state, raw)

    monkeypatch.setattr(BodyReader, "read", noted)
    counting = asyncio.create_task(count())
    texts = [f"{number}{' word' * 2_000}" for number in range(6)]
    responses = await asyncio.gather(
        *[client.post("/v1/classify", json=_BODY | {"input": text}) for text in texts]
    )
    counting.cancel()

    assert [response.status_code for response in responses] == [200] * 6
    assert len(set(read_in)) == 6


async def test_who_waits_for_a_turn_until_the_deadline_is_told(
    api: Api, client: httpx.AsyncClient
) -> None:
    async with api.processor._turn:
        response = await client.post(
            "/v1/classify",
            json=_BODY | {"input": "word " * 2_000},
            headers={"x-request-timeout": "0.01"},
        )

    problem(response, 504, "deadline_exceeded")


def incoming(
    api: Api, *headers: tuple[bytes, bytes], path: str = "/v1/classify"
) -> IncomingRequest:
    fields = [(name.encode(), value.encode()) for name, value in AUTHORIZATION.items()]
    return IncomingRequest("POST", path, [*fields, *headers], keys=api.keys)


@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_claim_has_ended_before_the_answer_is_sent(
    api: Api, monkeypatch: pytest.MonkeyPatch, *, is_failing: bool
) -> None:
    key, seen = NotedKey(), list[bytes | None]()
    monkeypatch.setattr(api.steps, "_idempotency", AlwaysKeyed(key))
    if is_failing:
        api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="Full.")
    match = api.routes.find("/v1/classify")
    assert match is not None

    async def on_reply(_: HttpReply, __: KeyId | None) -> None:
        seen.append(key.stored)

    body = IncomingBody(api.bodies, never, lambda: msgspec.json.encode(_BODY))
    await api.steps.answer(match, incoming(api), body, on_reply)

    assert [stored == b"" for stored in seen] == [is_failing]
    assert None not in seen


async def test_the_deadline_includes_the_time_that_a_step_took(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = list[HttpReply]()
    monkeypatch.setattr(api.steps, "_idempotency", AlwaysKeyed(NotedKey()))
    match = api.routes.find("/v1/classify")
    assert match is not None

    async def on_reply(reply: HttpReply, _: KeyId | None) -> None:
        replies.append(reply)

    raw = msgspec.json.encode(_BODY | {"input": "word " * 2_000})
    request = incoming(api, (b"x-request-timeout", b"60"))
    request.deadline = asyncio.get_running_loop().time()
    async with api.processor._turn:
        await api.steps.answer(
            match, request, IncomingBody(api.bodies, never, lambda: raw), on_reply
        )

    assert [reply.status for reply in replies] == [504]


async def test_a_key_that_is_revoked_while_the_body_arrives_is_refused(api: Api) -> None:
    replies = list[HttpReply]()
    match = api.routes.find("/v1/classify")
    assert match is not None

    async def receive() -> Any:
        api.keys.replace({})
        packed = gzip.compress(msgspec.json.encode(_BODY))
        return {"type": "http.request", "body": packed, "more_body": False}

    async def on_reply(reply: HttpReply, _: KeyId | None) -> None:
        replies.append(reply)

    request = incoming(api, (b"content-encoding", b"gzip"))
    await api.steps.answer(match, request, IncomingBody(api.bodies, receive), on_reply)

    assert [reply.status for reply in replies] == [401]
    assert api.events.events == []
    assert api.bodies.budget.used_bytes == 0


async def test_needless_slashes_change_neither_the_route_nor_the_form_of_errors(
    client: httpx.AsyncClient,
) -> None:
    answered = await client.post("http://api//v1//classify/", json=_BODY)
    refused = await client.post(
        "http://api//v1/embeddings", content=b"x", headers={"content-encoding": "nonsense"}
    )

    assert answered.status_code == 200
    assert (refused.status_code, "error" in refused.json()) == (415, True)


async def test_a_model_of_several_lines_is_one_that_does_not_exist(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post("/v1/infer/a%0Ab", json={"inputs": ["a"]})

    problem(response, 404, "model_not_found")


async def never() -> Any:
    raise AssertionError("the body is there")
