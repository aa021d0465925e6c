"""Requests with `Idempotency-Key` at two workers: each is answered alike, and billed once."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

from sluicegate.gateway.api import idempotent_requests
from sluicegate.gateway.api.idempotent_requests import name_of
from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.events.reader import LogReader, list_logs
from sluicegate.gateway.idempotency.store import IdempotencyStore, StoredKey
from sluicegate.gateway.ledger.types import GroupBy
from sluicegate.gateway.types import RequestEvent, Rule
from testing.raw_http import Response, post
from testing.stub_backend import StubBackend, answer, answer_when, fail_items, refuse
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.ledgers import open_ledger, record
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_LEASE = 0.3


class Scene:
    """Two workers of one state Redis, and what they recorded since a test began."""

    def __init__(
        self, folder: Path, state: Valkey, stub: StubBackend, workers: Sequence[RunningWorker]
    ) -> None:
        self.one, self.two = workers
        self.state = state
        self.stub = stub
        self._folder = folder
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """Forget what was recorded and called."""
        self._before = {log: len(events) for log, events in self._logs().items()}
        self.stub.behaviour = answer
        self.stub.calls.clear()

    def events(self) -> dict[str, list[RequestEvent]]:
        """Return the events of this test, by their log."""
        return {log: events[self._before.get(log, 0) :] for log, events in self._logs().items()}

    def answered(self) -> list[RequestEvent]:
        """Return the events of answers."""
        return [e for events in self.events().values() for e in events if e.status == 200]

    def billed(self, folder: Path) -> int:
        """Return how many items a ledger counts that is given all events twice."""
        with open_ledger(folder) as ledger:
            for _ in range(2):
                for log, events in self.events().items():
                    record(ledger, log, len(events), events)
            since, until = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
            rows = ledger.usage("acme", since, until, [GroupBy.TASK], prices=(PriceConfig(),))
            return sum(row.hit + row.collapsed + row.computed for row in rows)

    def _logs(self) -> dict[str, list[RequestEvent]]:
        found = {}
        for worker in ("one", "two"):
            for log in list_logs(self._folder / worker / "events"):
                batch = LogReader(log).read(1000)
                payloads = [] if batch is None else batch.payloads
                found[log.name] = [msgspec.msgpack.decode(p, type=RequestEvent) for p in payloads]
        return found


@pytest.fixture(scope="module")
async def stage(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("workers")
    async with AsyncExitStack() as stack:
        cache = stack.enter_context(Valkey())
        # On a busy disk `everysec` would put off writing: what a test kills must have everything.
        state = stack.enter_context(Valkey("--appendonly", "yes", "--appendfsync", "always"))
        stub = await stack.enter_async_context(StubBackend())
        workers = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            running = running_worker(
                folder / name,
                cache.url,
                [stub],
                state_url=state.url,
                rules=(
                    Rule(name="year", unit="requests", capacity=10_000, window=1e9),
                    Rule(name="once", unit="requests", capacity=1, window=1e9, model="absent"),
                ),
                idempotency={"lease": _LEASE},
                cache={"lease": 0},
            )
            workers.append(await stack.enter_async_context(running))
        yield Scene(folder, state, stub, workers)


@pytest.fixture
def scene(stage: Scene) -> Scene:
    stage.begin()
    return stage


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return str(uuid.uuid4())


async def ask(
    worker: RunningWorker,
    key: str,
    *texts: str,
    path: str = "/v1/classify",
    model: str = "stub",
    on_error: str = "",
    **headers: str,
) -> Response:
    named = {"idempotency-key": key} if key else {}
    fields = {"model": model} | ({"on_error": on_error} if on_error else {})
    body = classify(*(texts or (f"the text of {key}",)), **fields)
    async with worker.connect() as connection:
        await connection.send(post(path, body, headers=named | headers))
        return await connection.response()


async def ask_until_it_is_answered(worker: RunningWorker, key: str) -> Response:
    """Repeat a request while its owner has it, or the store is away."""
    found: list[Response] = []

    async def is_answered() -> bool:
        found.append(await ask(worker, key))
        return found[-1].status not in (409, 503)

    await eventually(is_answered)
    return found[-1]


async def begin_waiting(scene: Scene, key: str) -> tuple[asyncio.Task[Response], asyncio.Event]:
    """Ask the first worker, whose backend answers once the event is set."""
    gate = asyncio.Event()
    scene.stub.behaviour = answer_when(gate)
    first = asyncio.create_task(ask(scene.one, key, **{"x-request-timeout": "60"}))
    await scene.stub.wait_for(lambda: len(scene.stub.calls) == 1)
    return first, gate


def die(store: IdempotencyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but claims reach Redis any more, as of a process that was killed."""
    call = store.call

    async def lost(action: str, key: StoredKey, value: bytes = b"") -> list[Any]:
        if action != "claim":
            raise ConnectionError
        return await call(action, key, value)

    monkeypatch.setattr(store, "call", lost)


async def test_a_retry_is_replayed_by_another_worker_and_is_no_event(
    scene: Scene, key: str
) -> None:
    first = await ask(scene.one, key)
    second = await ask(scene.two, key)
    third = await ask(scene.two, key)

    assert (second.status, second.body) == (200, first.body)
    assert second.headers["idempotency-replayed"] == "true"
    for name in ("content-type", "x-request-id", "cache-control"):
        assert second.headers[name] == first.headers[name]
    assert "idempotency-replayed" not in first.headers
    # A replay is charged as a request.
    left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in (second, third)]
    assert left[1] == left[0] - 1
    assert [event.id for event in scene.answered()] == [first.headers["x-request-id"]]


async def test_what_a_caller_names_a_retry_by_is_repeated(scene: Scene, key: str) -> None:
    texts = (f"the text of {key}", "another text", "two words")
    first = await ask(scene.one, key, texts[0], **{"x-request-id": "try-1"})
    retry = await ask(scene.two, key, texts[0], **{"x-request-id": "try-2"})
    other = await ask(scene.two, key, texts[1], **{"x-request-id": "try-3"})
    form = await ask(scene.two, "two words", texts[2], **{"x-request-id": "try-4"})
    plain = await ask(scene.two, key, texts[0])

    answers = (first, retry, other, form, plain)
    assert [each.status for each in answers] == [200, 200, 422, 400, 200]
    names = [each.headers.get("x-client-request-id") for each in answers]
    assert names == ["try-1", "try-2", "try-3", "try-4", None]


async def test_an_answer_that_inflates_beyond_what_is_kept_is_not_stored(
    scene: Scene, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotent_requests, "_LARGEST_INFLATED", 64 * 1024)
    texts = ["x" * 2_000 + f"{key} {number}" for number in range(40)]
    first = await ask(scene.one, key, *texts, **{"accept-encoding": "gzip"})
    second = await ask(scene.two, key, *texts)

    assert (first.status, first.headers["content-encoding"]) == (200, "gzip")
    assert len(first.body) < 64 * 1024
    assert (second.status, "idempotency-replayed" in second.headers) == (200, False)
    assert second.headers["x-request-id"] == first.headers["x-request-id"]


async def test_a_key_is_of_one_request(scene: Scene, key: str) -> None:
    await ask(scene.one, key)
    body = await ask(scene.two, key, "another text")
    route = await ask(scene.two, key, f"the text of {key}", path="/v1/embed")
    openai = await ask(scene.two, key, f"the text of {key}", path="/v1/embeddings")
    form = await ask(scene.two, "two words")
    unknown = await ask(scene.two, key, authorization="Bearer nobody")

    assert [body.status, route.status] == [422, 422]
    assert body.json()["code"] == "idempotency_key_reused"
    assert openai.json()["error"]["code"] == "idempotency_key_reused"
    assert (form.status, form.json()["code"]) == (400, "invalid_request")
    assert unknown.status == 401


def outlived_a_lease(scene: Scene, key: str) -> bool:
    """Return whether a claim was renewed after its first lease would have ended."""
    with Redis.from_url(scene.state.url) as client:
        stored: Any = client.hget("sg:idem:{acme}:records", name_of(key.encode()))
    first_seen, lease_ends = int(stored[16:29]), int(stored[29:42])
    return lease_ends > first_seen + 2000 * _LEASE


async def test_a_retry_while_the_first_runs_is_told_to_wait(scene: Scene, key: str) -> None:
    first, gate = await begin_waiting(scene, key)
    await until(lambda: outlived_a_lease(scene, key), what="the first renewed its lease")
    early = await ask(scene.two, key)
    gate.set()
    late = await ask_until_it_is_answered(scene.two, key)

    assert (early.status, early.json()["code"]) == (409, "idempotency_key_in_use")
    assert int(early.headers["retry-after"]) == 1
    assert (late.status, late.body) == (200, (await first).body)
    assert len(scene.stub.calls) == 1


async def test_what_an_owner_leaves_that_dies_while_it_computes_is_answered_by_the_next(
    scene: Scene, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(scene.one.parts.idempotency, monkeypatch)
    first, gate = await begin_waiting(scene, key)
    scene.stub.behaviour = answer
    second = await ask_until_it_is_answered(scene.two, key)
    # It was not dead after all: its answer has the same id.
    gate.set()
    late = await first
    third = await ask(scene.one, key)

    assert (second.status, late.status, third.status) == (200, 200, 200)
    assert late.headers["x-request-id"] == second.headers["x-request-id"]
    assert third.headers["idempotency-replayed"] == "true"
    assert len(scene.answered()) == 2
    assert scene.billed(tmp_path) == 1


async def test_an_answer_that_was_recorded_and_not_stored_is_computed_again_and_billed_once(
    scene: Scene, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(scene.one.parts.idempotency, monkeypatch)
    first = await ask(scene.one, key)
    second = await ask_until_it_is_answered(scene.two, key)

    assert (first.status, second.status) == (200, 200)
    assert "idempotency-replayed" not in second.headers
    assert len(scene.answered()) == 2
    assert scene.billed(tmp_path) == 1


async def test_an_answer_that_nobody_received_is_replayed(
    scene: Scene, key: str, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    scene.stub.behaviour = answer_when(gate)
    body = classify(f"the text of {key}")
    async with scene.one.connect() as connection:
        await connection.send(post("/v1/classify", body, headers={"idempotency-key": key}))
        await scene.stub.wait_for(lambda: len(scene.stub.calls) == 1)
    gate.set()
    second = await ask_until_it_is_answered(scene.two, key)

    assert (second.status, second.headers["idempotency-replayed"]) == (200, "true")
    assert scene.billed(tmp_path) == len(scene.answered()) == 1


async def test_a_large_answer_is_computed_again_and_billed_once(
    scene: Scene, key: str, tmp_path: Path
) -> None:
    texts = [f"{key} {number}" + "x" * 2_000 for number in range(40)]
    first = await ask(scene.one, key, *texts)
    second = await ask(scene.two, key, *texts)

    assert len(first.body) > 64 * 1024
    assert (second.status, second.json()["results"]) == (200, first.json()["results"])
    assert "idempotency-replayed" not in second.headers
    assert second.headers["x-request-id"] == first.headers["x-request-id"]
    assert scene.billed(tmp_path) == len(texts)


async def test_errors_that_a_retry_may_mend_are_not_replayed_and_others_are(
    scene: Scene, key: str, tmp_path: Path
) -> None:
    scene.stub.behaviour = refuse("overloaded")
    busy = await ask(scene.one, key, **{"x-request-timeout": "0.3"})
    scene.stub.behaviour = fail_items(0, code="bad_item", status=422, retryable=False)
    bad = await ask(scene.one, f"{key}-bad")
    scene.stub.behaviour = answer
    mended = await ask_until_it_is_answered(scene.two, key)
    again = await ask(scene.two, f"{key}-bad")

    assert busy.status in (503, 504)
    assert mended.status == 200
    assert busy.headers["x-request-id"] != mended.headers["x-request-id"]
    assert bad.status == again.status == 422
    assert again.body == bad.body
    assert again.headers["idempotency-replayed"] == "true"
    assert scene.billed(tmp_path) == 1


async def test_neither_a_missing_model_nor_a_used_up_limit_is_replayed(
    scene: Scene, key: str
) -> None:
    workers = (scene.one, scene.two, scene.one)
    answers = [await ask(worker, key, model="absent") for worker in workers]

    assert [answer.status for answer in answers] == [404, 429, 429]
    assert not any("idempotency-replayed" in answer.headers for answer in answers)


async def test_an_answer_that_lacks_items_is_neither_replayed_nor_the_bill_of_the_retry(
    scene: Scene, key: str, tmp_path: Path
) -> None:
    texts = [f"{key} {number}" for number in range(3)]
    scene.stub.behaviour = fail_items(1, 2, retryable=False)
    partial = await ask(scene.one, key, *texts, on_error="continue")
    scene.stub.behaviour = answer
    whole = await ask(scene.two, key, *texts, on_error="continue")

    assert (partial.json()["usage"]["failed"], whole.json()["usage"]["failed"]) == (2, 0)
    assert "idempotency-replayed" not in whole.headers
    assert partial.headers["x-request-id"] != whole.headers["x-request-id"]
    # What the first answer had, and the whole second one.
    assert scene.billed(tmp_path) == 1 + 3


async def test_an_item_that_stays_refused_is_replayed_with_the_others(
    scene: Scene, key: str, tmp_path: Path
) -> None:
    texts = [f"{key} {number}" for number in range(3)]
    scene.stub.behaviour = fail_items(1, code="bad_item", status=422, retryable=False)
    first = await ask(scene.one, key, *texts, on_error="continue")
    again = await ask(scene.two, key, *texts, on_error="continue")

    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotency-replayed"] == "true"
    assert scene.billed(tmp_path) == 2


async def test_without_the_store_only_requests_with_a_key_are_refused(
    scene: Scene, key: str
) -> None:
    await ask(scene.one, key)
    scene.state.kill()
    keyed = await ask(scene.one, key)
    plain = await ask(scene.one, "", f"the text of {key}")
    scene.state.start()
    again = await ask_until_it_is_answered(scene.one, key)

    assert (keyed.status, keyed.json()["code"]) == (503, "dependency_unavailable")
    assert int(keyed.headers["retry-after"]) >= 1
    assert plain.status == 200
    assert again.headers["idempotency-replayed"] == "true"


async def test_a_silent_store_is_waited_for_until_the_deadline_only(scene: Scene, key: str) -> None:
    scene.state.pause()
    late = await ask(scene.one, key, **{"x-request-timeout": "0.05"})
    scene.state.resume()
    again = await ask_until_it_is_answered(scene.one, key)

    assert (late.status, late.json()["code"]) == (504, "deadline_exceeded")
    assert (again.status, "idempotency-replayed" in again.headers) == (200, False)


@pytest.mark.parametrize("method", ["DELETE", "PUT", "TRACE", "QUERY"])
async def test_a_method_that_no_route_has_is_refused_whatever_came_with_its_key(
    method: str, scene: Scene, key: str
) -> None:
    """So are methods that a later standard may name."""
    headers = {"idempotency-key": key}
    async with scene.one.connect() as connection:
        statuses = []
        for text in ("one", "another"):
            await connection.send(
                post("/v1/classify", classify(text), method=method, headers=headers)
            )
            statuses.append((await connection.response()).status)

    assert statuses == [405, 405]


@pytest.mark.parametrize("path", ["/v1/classify/", "/v1/infer/sentiment", "/v1/keys/rotate"])
async def test_a_key_is_honoured_on_every_route_that_changes_something(
    path: str, scene: Scene, key: str
) -> None:
    bodies = [msgspec.json.encode({"inputs": [text]}) for text in ("one", "another")]
    async with scene.one.connect() as connection:
        statuses = []
        for body in bodies:
            await connection.send(post(path, body, headers={"idempotency-key": key}))
            statuses.append((await connection.response()).status)

    assert statuses[1] == 422
