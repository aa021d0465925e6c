"""What customers see of their account at a real worker: keys, requests, usage, pages."""

from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.types import Usage
from testing.raw_http import KEY, Response, post
from testing.valkey import Valkey
from tests.support.events import START, make_event
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
OTHER, ROTATED = "sk-a-key-of-another-tenant", "sk-a-key-that-is-rotated"
HOUR = 3_600 * 1_000_000_000
FIRST = "req_00000000000000ab00000000f"


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey, anyio_backend: str
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()  # tests before may have published a document
    url = valkey_server.url
    async with running_worker(tmp_path_factory.mktemp("worker"), url) as worker:
        with Ledger.create(worker.settings.ledger) as ledger:
            ledger.accounts.create_tenant("other")
            ledger.accounts.create_key("other", key_hash=hash_key(OTHER))
            ledger.accounts.create_key("acme", key_hash=hash_key(ROTATED))
            events = [
                msgspec.structs.replace(
                    make_event(0, time=START + number, usage=Usage.of(computed=1, rows=1)),
                    id=f"{FIRST}{number:x}",
                )
                for number in range(3)
            ]
            own = make_event(7, time=START + 2 * HOUR, usage=Usage.of(computed=2))
            own = msgspec.structs.replace(own, client_id="order-1", backend_region="us")
            events.append(own)
            ledger.recorder.record([EventBlock(log_id="w", first=1, last=4, events=events)])
        await worker.parts._principals.read_again()
        yield worker


async def ask(
    worker: RunningWorker,
    path: str,
    body: bytes | None = None,
    *,
    key: str = KEY,
    headers: Mapping[str, str] | None = None,
) -> Response:
    method = "GET" if body is None else "POST"
    async with worker.connect() as connection:
        await connection.send(post(path, body, key=key, method=method, headers=headers))
        return await connection.response()


async def test_an_owner_rotates_a_key_and_both_texts_are_valid_for_a_while(
    worker: RunningWorker,
) -> None:
    headers = {"idempotency-key": "rotate-once"}
    before = (await ask(worker, "/v1/usage", key=ROTATED)).status
    first = await ask(worker, "/v1/keys/rotate", b"{}", key=ROTATED, headers=headers)
    again = await ask(worker, "/v1/keys/rotate", b"{}", key=ROTATED, headers=headers)
    texts = [first.json()["key"], again.json()["key"]]
    # What was lost on the way is not valid.
    meanwhile = [(await ask(worker, "/v1/usage", key=key)).status for key in (ROTATED, *texts)]
    last = await ask(worker, "/v1/keys/rotate", b'{"former_valid_for": 0}', key=texts[1])

    assert meanwhile == [200, 401, 200]
    assert (before, first.status, again.status, last.status) == (200, 200, 200, 200)
    # No text is stored to be replayed, nor by anybody between.
    assert first.headers["cache-control"] == "private, no-store"
    assert "idempotency-replayed" not in again.headers
    assert texts[0] != texts[1]
    assert {answer.json()["id"] for answer in (first, again, last)} == {first.json()["id"]}
    statuses = [
        (await ask(worker, "/v1/usage", key=key)).status
        for key in (ROTATED, *texts, last.json()["key"])
    ]
    assert statuses == [401, 401, 401, 200]


async def test_a_key_is_not_kept_for_longer_than_a_week(worker: RunningWorker) -> None:
    found = await ask(worker, "/v1/keys/rotate", b'{"former_valid_for": 1e6}', key=OTHER)

    assert (found.status, found.json()["code"]) == (400, "invalid_request")
    assert "former_valid_for" in found.json()["detail"]


async def test_a_request_is_found_by_its_id_also_in_a_row_of_several(
    worker: RunningWorker,
) -> None:
    alone = await ask(worker, f"/v1/requests/{make_event(7).id}")
    among = [await ask(worker, f"/v1/requests/{FIRST}{number}") for number in range(4)]

    assert alone.status == 200
    assert (alone.json()["model"], alone.json()["usage"]["computed"]) == ("sentiment", 2)
    assert [each.status for each in among] == [200, 200, 200, 404]
    assert among[1].json()["id"] == f"{FIRST}1"
    assert among[1].json()["usage"] is None


@pytest.mark.parametrize("request_id", [f"{FIRST}1", "req_", "x", "%00" * 20 + "0" * 10])
async def test_no_request_of_another_tenant_is_found(
    worker: RunningWorker, request_id: str
) -> None:
    found = await ask(worker, f"/v1/requests/{request_id}", key=OTHER)

    assert (found.status, found.json()["code"]) == (404, "not_found")


async def test_requests_are_found_by_the_callers_own_id(worker: RunningWorker) -> None:
    listed = await ask(worker, "/v1/requests?client_id=order-1")
    others = await ask(worker, "/v1/requests?client_id=order-1", key=OTHER)
    wrong = await ask(worker, "/v1/requests")

    (found,) = listed.json()["data"]
    assert (found["id"], found["client_id"]) == (make_event(7).id, "order-1")
    assert found["backend_region"] == "us"
    assert others.json() == {"data": []}
    assert (wrong.status, wrong.json()["code"]) == (400, "invalid_request")


async def test_usage_is_told_by_the_region_of_backends(worker: RunningWorker) -> None:
    found = await ask(worker, "/v1/usage?from=2026-09-01&to=2026-09-02&group_by=backend_region")

    lines = {line["group"]["backend_region"]: line["computed"] for line in found.json()["data"]}
    assert lines == {"": 3, "us": 2}


async def test_usage_is_told_by_the_hour(worker: RunningWorker) -> None:
    span = "from=2026-09-01&to=2026-09-02"
    hours = await ask(worker, f"/v1/usage?{span}&bucket=hour")
    days = await ask(worker, f"/v1/usage?{span}&bucket=day&group_by=task")

    lines = [(line["group"], line["computed"]) for line in hours.json()["data"]]
    assert lines == [
        ({"hour": "2026-09-01T00:00:00Z", "model": "sentiment"}, 3),
        ({"hour": "2026-09-01T02:00:00Z", "model": "sentiment"}, 2),
    ]
    (line,) = days.json()["data"]
    assert (line["group"], line["computed"]) == ({"day": "2026-09-01", "task": "classify"}, 5)


@pytest.mark.parametrize("path", ["/", "/v1"])
async def test_who_looks_in_is_told_what_this_is(worker: RunningWorker, path: str) -> None:
    program = await ask(worker, path, key="nobody")
    browser = await ask(worker, path, headers={"accept": "text/html,*/*;q=0.8"})

    assert (program.status, program.json()["name"]) == (200, "Sluicegate")
    assert program.json()["links"]["documentation"] == "/docs"
    assert browser.headers["content-type"].startswith("text/html")
    assert b'href="/docs"' in browser.body
    assert browser.headers["vary"] == "Accept"


@pytest.mark.parametrize("name", ["x-request-id", "x-client-request-id"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/classify"])
async def test_what_a_caller_names_a_request_by_is_repeated(
    worker: RunningWorker, path: str, name: str
) -> None:
    body = classify("a") if path == "/v1/classify" else None
    named = await ask(worker, path, body, headers={name: "order-17/a"})
    odd = await ask(worker, path, body, headers={name: "two words"})
    plain = await ask(worker, path, body)

    assert named.headers["x-client-request-id"] == "order-17/a"
    assert named.headers["x-request-id"].startswith("req_")
    assert not {"x-client-request-id"} & (odd.headers | plain.headers).keys()
