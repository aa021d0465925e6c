"""What callers ask besides inference: models, usage, health."""

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest

from sluicegate.gateway.api.health import Readiness
from sluicegate.gateway.api.metadata import UsageLine
from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.types import Rule
from tests.support.api import NARROW_KEY, Api, problem

pytestmark = pytest.mark.anyio
_LINE = UsageLine(
    group={"model": "sentiment"},
    requests=1,
    items=2,
    hit=1,
    collapsed=0,
    computed=1,
    failed=0,
    rows=1,
    tokens=5,
    cost="0.000001200",
    currency="EUR",
)


@pytest.fixture
def api(anyio_backend: str) -> Api:
    return Api()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def names(client: httpx.AsyncClient) -> list[str]:
    return [model["name"] for model in (await client.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/sentiment"])
async def test_a_caller_that_has_the_answer_is_told_that_it_still_holds(
    path: str, client: httpx.AsyncClient
) -> None:
    first = await client.get(path)
    tag = first.headers["etag"]

    same = await client.get(path, headers={"if-none-match": f'"other", W/{tag}'})
    other = await client.get(path, headers={"if-none-match": '"other"'})

    assert first.headers["cache-control"] == "private, no-cache"
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert (other.status_code, other.json()) == (200, first.json())


async def test_another_answer_has_another_tag(client: httpx.AsyncClient) -> None:
    every = await client.get("/v1/models")
    one = await client.get("/v1/models/sentiment")

    assert every.headers["etag"] != one.headers["etag"]


async def test_models_are_listed_as_openais_clients_read_them(client: httpx.AsyncClient) -> None:
    found = (await client.get("/v1/models")).json()

    assert found["object"] == "list"
    assert found["data"][0] == {
        "id": "sentiment",
        "name": "sentiment",
        "object": "model",
        "created": 0,
        "owned_by": "sluicegate",
        "tasks": ["classify"],
        "revision": "aaaaaaaaaaaa",
        "profile": "fp32",
        "max_tokens": 256,
        "regions": ["eu"],
    }


async def test_one_model_is_shown_as_in_the_list(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()["data"]

    assert (await client.get("/v1/models/other")).json() == listed[1]


async def test_a_key_sees_the_models_that_it_may_use(client: httpx.AsyncClient) -> None:
    client.headers["authorization"] = f"Bearer {NARROW_KEY}"

    assert await names(client) == ["other"]
    problem(await client.get("/v1/models/sentiment"), 404, "model_not_found")


async def test_a_model_that_is_switched_off_is_not_seen(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(models={"other": ModelConfig(enabled=False)})

    assert await names(client) == ["sentiment"]
    problem(await client.get("/v1/models/other"), 404, "model_not_found")


async def test_an_encoder_without_tasks_is_not_listed(client: httpx.AsyncClient) -> None:
    """It is there for the models that build on it; nobody can ask it anything."""
    assert "helper" not in await names(client)
    problem(await client.get("/v1/models/helper"), 404, "model_not_found")


async def test_usage_is_that_of_the_callers_tenant(api: Api, client: httpx.AsyncClient) -> None:
    api.usage.lines = [_LINE]

    response = await client.get(
        "/v1/usage", params={"from": "2026-11-01", "to": "2026-11-02T12:00:00+02:00"}
    )

    assert response.json() == {
        "since": "2026-11-01T00:00:00+00:00",
        "until": "2026-11-02T10:00:00+00:00",
        "data": [
            {"group": {"model": "sentiment"}, "requests": 1, "items": 2, "hit": 1}
            | {"collapsed": 0, "computed": 1, "failed": 0, "rows": 1, "tokens": 5}
            | {"cost": "0.000001200", "currency": "EUR"}
        ],
    }
    ((caller, since, _, groups),) = api.usage.asked
    assert (caller.tenant, caller.models, list(groups)) == ("acme", None, ["model"])
    assert since == datetime(2026, 11, 1, tzinfo=UTC)


async def test_usage_is_of_this_month_so_far_by_default(
    api: Api, client: httpx.AsyncClient
) -> None:
    await client.get("/v1/usage", params={"group_by": ["day", "key"]})

    ((_, since, until, groups),) = api.usage.asked
    assert (since.day, since.hour, since.minute, since.second) == (1, 0, 0, 0)
    assert since < until
    assert list(groups) == ["day", "key"]


async def test_a_limited_key_sees_the_usage_of_its_models_by_groups_in_one_list(
    api: Api, client: httpx.AsyncClient
) -> None:
    await client.get(
        "/v1/usage?group_by=day,model&group_by=task",
        headers={"authorization": f"Bearer {NARROW_KEY}"},
    )

    ((caller, _, _, groups),) = api.usage.asked
    assert caller.models is not None
    assert list(groups) == ["day", "model", "task"]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({"from": "yesterday"}, "`from`"),
        ({"to": ""}, "`to`"),
        ({"from": "2026-02-01", "to": "2026-01-01"}, "`to`"),
        ({"from": "2026-02-01", "to": "2026-02-01"}, "`to`"),
        ({"from": "0001-01-01T00:00:00+23:00"}, "`from`"),
        ({"to": "9999-12-31T23:59:59-23:00"}, "`to`"),
        ({"group_by": "tenant"}, "`group_by"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_by_name(
    client: httpx.AsyncClient, query: dict[str, str], name: str
) -> None:
    response = await client.get("/v1/usage", params=query)

    assert name in problem(response, 400, "invalid_request")


async def test_a_store_that_is_down_is_told_with_when_to_come_back(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.usage.trouble = DependencyUnavailable("the ledger cannot be reached", retry_after=1.0)

    response = await client.get("/v1/usage")

    problem(response, 503, "dependency_unavailable")
    assert response.headers["retry-after"] == "1"


async def test_a_store_that_does_not_answer_is_given_up_at_the_deadline(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.usage.answers.clear()

    response = await client.get("/v1/usage", headers={"x-request-timeout": "0.05"})

    assert "in time" in problem(response, 503, "dependency_unavailable")


async def test_a_fault_of_ours_says_nothing_but_its_id(
    api: Api, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    api.usage.trouble = RuntimeError("an inner detail")

    response = await client.get("/v1/usage")

    assert "inner" not in problem(response, 500, "internal_error")
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.__dict__["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/other", "/v1/usage"])
async def test_a_key_is_needed(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path, headers={"authorization": ""})

    problem(response, 401, "authentication_failed")
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_reading_counts_against_the_limit_on_requests(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.limit(Rule(name="hour", unit="requests", capacity=1, window=3600.0))

    first = await client.get("/v1/models")
    second = await client.get("/v1/models")

    assert first.headers["ratelimit"].startswith('"hour";r=0')
    problem(second, 429, "rate_limited")
    assert int(second.headers["retry-after"]) > 1
    assert second.headers["ratelimit-policy"] == '"hour";q=1;w=3600'


async def test_health_says_what_is_missing_without_a_key(
    api: Api, client: httpx.AsyncClient
) -> None:
    client.headers.pop("authorization")
    ready = await client.get("/health/ready")
    api.ready = Readiness(ready=False, missing=["backends: none is ready"])
    not_ready = await client.get("/health/ready")
    live = await client.get("/health/live")

    assert (ready.status_code, live.status_code, not_ready.status_code) == (200, 200, 503)
    assert not_ready.json()["missing"] == ["backends: none is ready"]
    assert "x-request-id" in live.headers
