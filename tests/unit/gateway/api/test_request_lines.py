"""Lines of requests in the log: of failures, of a share of the others, and no more than allowed."""

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sluicegate.gateway.api.request_events import RequestLines, is_sampled
from sluicegate.gateway.events.hit_run import HitRun
from sluicegate.gateway.types import ItemFailure, RequestId
from tests.support.api import KEY, Api
from tests.support.events import make_event

pytestmark = pytest.mark.anyio
SECRET_TEXT = "a text that nobody else may read"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, logger="sluicegate.gateway.requests")
    # Others, such as of the client, may be on as well.
    with caplog.filtering(logging.Filter("sluicegate.gateway.requests")):
        yield caplog


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return vars(record)


async def call(api: Api, body: dict[str, Any], path: str = "/v1/classify") -> httpx.Response:
    transport = httpx.ASGITransport(app=api.routed())  # type: ignore[arg-type]  # as a server's
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        return await client.post(path, json=body, headers={"authorization": f"Bearer {KEY}"})


async def test_a_line_says_who_asked_for_what_and_how_it_went(
    log: pytest.LogCaptureFixture,
) -> None:
    api = Api()

    answer = await call(api, {"model": "sentiment", "input": [SECRET_TEXT, "b"]})
    await api.request_lines.write()

    assert answer.status_code == 200, answer.text
    (line,) = map(fields, log.records)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["route"], line["model"], line["status"]) == ("/v1/classify", "sentiment", 200)
    assert (line["tenant"], line["key"]) == ("acme", "key_1")
    assert line["items"] == {"computed": 2}
    assert set(line["phases"]) == {"admission", "inference"}
    assert line["answer_bytes"] == len(answer.content)
    assert line["request_bytes"] > len(SECRET_TEXT)
    assert SECRET_TEXT not in str(line)
    assert KEY not in str(line)


async def test_hits_of_a_run_have_lines_by_their_ids(log: pytest.LogCaptureFixture) -> None:
    chosen = RequestLines(share=0.25, per_second=100)
    run = HitRun(make_event(1))
    run.first = 5

    chosen.add_hits(run, "req_x", 8, 0.5)
    await chosen.write()

    assert [fields(line)["request_id"] for line in log.records] == [
        "req_x0000000007",
        "req_x000000000b",
    ]
    every = [RequestId(f"req_x{number:010x}") for number in range(5, 13)]
    assert [id_ for id_ in every if is_sampled(id_, 4)] == ["req_x0000000007", "req_x000000000b"]


async def test_a_failure_has_a_line_where_nothing_is_sampled(
    log: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    api.request_lines.every = 0
    api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="Full.")

    answer = await call(api, {"model": "sentiment", "input": "x"})
    refused = await call(api, {"model": "nothing", "input": "x"})
    await api.request_lines.write()

    assert (answer.status_code, refused.status_code) == (503, 404)
    (line,) = log.records
    assert (fields(line)["status"], line.levelno) == (503, logging.WARNING)
    assert fields(line)["code"]


async def test_a_storm_of_failures_is_bounded_and_counted(log: pytest.LogCaptureFixture) -> None:
    bounded = RequestLines(share=1.0, per_second=4)
    run = HitRun(make_event(1))

    bounded.add_hits(run, "req_x", 10, 0.1)
    for number in range(10):
        bounded.add_failure(f"req_{number}", "/v1/usage", None, status=503, code="overloaded")
    await bounded.write()
    await bounded.write()

    messages = [line.message for line in log.records]
    assert messages == ["request"] * 4 + ["lines of requests were left out"]
    assert [line.levelno for line in log.records[:4]] == [logging.INFO] * 2 + [logging.WARNING] * 2
    assert fields(log.records[-1])["count"] == 16


async def test_what_a_caller_does_wrong_on_other_routes_is_no_failure(
    log: pytest.LogCaptureFixture,
) -> None:
    bounded = RequestLines(share=0.0, per_second=4)

    bounded.add_failure("req_1", "/v1/usage", None, status=404, code="not_found")
    await bounded.write()

    assert log.records == []


async def test_what_is_left_is_written_at_the_end(log: pytest.LogCaptureFixture) -> None:
    async with RequestLines(share=1.0, per_second=4) as entered:
        entered.add_hits(HitRun(make_event(1)), "req_x", 1, 0.1)

    assert len(log.records) == 1


@pytest.mark.parametrize("text", ["", "short", "idempotent-key-of-a-caller", "zz"])
def test_an_id_of_any_form_is_sampled_or_not(text: str) -> None:
    assert is_sampled(RequestId(text), 1)
    assert is_sampled(RequestId(text), 7) in (True, False)


async def test_a_failure_of_a_route_without_inference_has_a_line(
    log: pytest.LogCaptureFixture,
) -> None:
    api = Api()

    answer = await call(api, {}, "/v1/keys/rotate")
    await api.request_lines.write()

    assert answer.status_code == 503
    (line,) = map(fields, log.records)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["route"], line["code"]) == ("/v1/keys/rotate", "dependency_unavailable")
    assert (line["tenant"], line["key"]) == ("acme", "key_1")
