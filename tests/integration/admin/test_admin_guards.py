"""A guard is tried on texts before it is published, and nothing else changes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.guards import ClassifierDetector
from sluicegate.wire.protocol import Call, Done, Failed, GuardParameters, Report
from testing.stub_backend import stub_model
from tests.support.admin import client_of, refused
from tests.support.dispatching import state
from tests.support.scripted_client import Hang, Script, ScriptedClient, Step

pytestmark = pytest.mark.anyio
_DOCUMENT = """
regions:
  - name: eu
    pools: [{backends: [{id: eu-0, url: "http://127.0.0.1:1"}]}]
guards:
  chat:
    model: detectors
    on_error: allow
    detectors: [{name: anger, kind: classifier, model: mood, labels: {angry: 0.9}}]
"""


async def judge(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
    """Block texts whose number is at least the threshold; refuse the text `long`.

    A second detector fails on 0.95.
    """
    (detector,) = msgspec.msgpack.decode(call.parameters, type=GuardParameters).detectors
    assert isinstance(detector, ClassifierDetector)
    for index, item in reversed([*enumerate(call.items)]):
        text = msgspec.msgpack.decode(item.body)
        if text == "long":
            yield Failed(index=index, status=422, code="x", detail="too long", retryable=False)
            continue
        found = [{"detector": detector.name}] * 2 if float(text) >= detector.labels["angry"] else []
        result: dict[str, Any] = {"verdict": "block" if found else "allow", "findings": found}
        if text == "0.95":
            result["error"] = {"code": "y", "detail": "broken"}
        yield Done(index=index, result=msgspec.json.encode(result), rows=1, tokens=1)
    yield Report()


async def silent(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
    yield Report()


async def refuse(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
    yield CallFailed(Cause.REFUSED, "too many items")


async def cut(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
    yield CallFailed(Cause.CUT, "the connection was lost")


@pytest.fixture
def backend() -> ScriptedClient:
    client = ScriptedClient(judge)
    client.states["eu-0"] = state("eu-0", models=[stub_model("detectors")])
    return client


@pytest.fixture
async def admin(
    settings: Settings, redis: Redis, ledger: Ledger, backend: ScriptedClient
) -> AsyncIterator[httpx.AsyncClient]:
    (settings.config / "g.yaml").write_text(_DOCUMENT)
    async with client_of(settings, redis, ledger, backend) as client:
        yield client


def proposed(threshold: float, **changes: Any) -> dict[str, Any]:
    detector = {"kind": "classifier", "name": "anger", "model": "mood"}
    return {"model": "detectors", "detectors": [detector | {"labels": {"angry": threshold}}]} | (
        changes
    )


async def test_verdicts_of_present_and_proposed_guards_are_compared(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    body = {"texts": ["0.2", "0.6", "long", "0.95"], "proposed": proposed(0.5)}

    answer = await admin.post("/admin/guards/chat/try", json=body)

    assert answer.json() == {
        "present": {
            "verdicts": {"allow": 3, "block": 1},
            "detectors": {"anger": 1},
            "errors": ["too long", "broken"],
        },
        "proposed": {
            "verdicts": {"allow": 1, "block": 3},
            "detectors": {"anger": 2},
            "errors": ["too long", "broken"],
        },
    }
    assert ledger.audit.entries() == []


async def test_a_guard_is_tried_alone(admin: httpx.AsyncClient) -> None:
    present = await admin.post("/admin/guards/chat/try", json={"texts": ["1"]})
    new = await admin.post(
        "/admin/guards/new/try", json={"texts": ["1"], "proposed": proposed(0.5)}
    )

    assert present.json()["proposed"] is None
    assert present.json()["present"]["verdicts"] == {"block": 1}
    assert new.json()["present"] is None
    assert new.json()["proposed"]["verdicts"] == {"block": 1}


async def test_what_cannot_be_tried_is_refused(
    admin: httpx.AsyncClient, backend: ScriptedClient
) -> None:
    detector = {"kind": "pattern", "name": "key", "pattern": "("}
    invalid = {"model": "detectors", "detectors": [detector]}
    for path, body, status, code, text in [
        ("other", {"texts": ["1"]}, 404, "not_found", "no guard `other`"),
        ("chat", {"texts": []}, 400, "invalid_request", "texts"),
        (
            *("chat", {"texts": ["1"], "proposed": invalid}, 400),
            *("invalid_request", "detectors.0.pattern"),
        ),
        (
            *("A!", {"texts": ["1"], "proposed": proposed(0.5)}, 400),
            *("invalid_request", "the name `A!` in the path"),
        ),
        (
            *("chat", {"texts": ["1"], "proposed": proposed(0.5, model="gone")}, 503),
            *("upstream_unavailable", "No backend serves the model `gone`"),
        ),
    ]:
        answer = await admin.post(f"/admin/guards/{path}/try", json=body)

        assert text in refused(answer, status, code)["detail"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (cut, "did not answer: the connection was lost"),
        (refuse, "refused the call: too many items"),
        (silent, "answered 0 of 1 items"),
    ],
)
async def test_a_failed_call_is_named(
    admin: httpx.AsyncClient, backend: ScriptedClient, script: Script, text: str
) -> None:
    backend.script = script

    answer = await admin.post("/admin/guards/chat/try", json={"texts": ["1"]})

    assert text in refused(answer, 503, "upstream_unavailable")["detail"]


async def test_the_other_call_of_a_trial_ends_if_one_fails(
    admin: httpx.AsyncClient, backend: ScriptedClient
) -> None:
    ended = asyncio.Event()

    async def fail_once(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
        if call is backend.calls[-1][1]:
            yield CallFailed(Cause.CUT, "the connection was lost")
        try:
            yield Hang()
        finally:
            ended.set()

    backend.script = fail_once

    answer = await admin.post(
        "/admin/guards/chat/try", json={"texts": ["1"], "proposed": proposed(0.5)}
    )

    refused(answer, 503, "upstream_unavailable")
    async with asyncio.timeout(10.0):
        await ended.wait()


async def test_without_the_cache_redis_nothing_is_sampled_or_counted(
    settings: Settings, redis: Redis, ledger: Ledger, backend: ScriptedClient
) -> None:
    (settings.config / "g.yaml").write_text(_DOCUMENT)
    lonely = msgspec.structs.replace(settings, cache_url="redis://127.0.0.1:1/0")
    async with client_of(lonely, redis, ledger, backend) as admin:
        assert (await admin.post("/admin/config/reload")).status_code == 200
        document = (await admin.get("/admin/config")).json()["document"]
        document["guards"]["chat"] |= {"message": "No.", "holdback": 1}
        # No verdict depends on these fields.
        uncounted = await admin.put("/admin/config?dry_run=true", json=document)
        document["guards"]["chat"]["detectors"][0]["labels"]["angry"] = 0.5

        listed = await admin.get("/admin/guards/chat/decisions")
        unknown = await admin.get("/admin/guards/other/decisions")
        counted = await admin.put("/admin/config?dry_run=true", json=document)

    assert "cache Redis" in refused(listed, 503, "dependency_unavailable")["detail"]
    assert "no guard `other`" in refused(unknown, 404, "not_found")["detail"]
    assert (counted.status_code, counted.json()["guards"]) == (200, None)
    assert uncounted.json()["guards"] == {}
