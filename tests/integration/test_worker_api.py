"""A whole worker over a real socket: real Valkey, ledger and event log; stubs for backends."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from testing.loopback import no_authorities
from testing.raw_http import KEY, Response, post
from testing.stub_backend import StubBackend, answer, answer_when, fail_items, hang
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_PATH = "/v1/classify"
_LIMIT = 4_096


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for the module, since its tests share a worker."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared_stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey, shared_stub: StubBackend
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()
    request = {"max_body_bytes": _LIMIT, "max_items": 5}
    folder = tmp_path_factory.mktemp("worker")
    async with running_worker(folder, valkey_server.url, [shared_stub], request=request) as running:
        yield running


@pytest.fixture
def stub(shared_stub: StubBackend) -> StubBackend:
    """The worker's backend, behaving."""
    shared_stub.behaviour = answer
    shared_stub.calls.clear()
    return shared_stub


def echoes(response: Response) -> list[str]:
    """Return what the backend was given, as it gave it back."""
    assert response.status == 200, response
    return [result["echo"] for result in response.json()["results"]]


async def ask(worker: RunningWorker, request: bytes) -> Response:
    async with worker.connect() as connection:
        await connection.send(request)
        return await connection.response()


async def test_requests_sent_at_once_are_answered_in_their_order(
    worker: RunningWorker, stub: StubBackend
) -> None:
    texts = [f"pipelined {number}" for number in range(20)]

    async with worker.connect() as connection:
        await connection.send(b"".join(post(_PATH, classify(text)) for text in texts))
        responses = [await connection.response() for _ in texts]

    assert [echoes(response) for response in responses] == [[text] for text in texts]
    assert len({response.headers["x-request-id"] for response in responses}) == len(texts)


async def test_a_request_may_arrive_byte_by_byte(worker: RunningWorker, stub: StubBackend) -> None:
    request = post(_PATH, classify("drop by drop"))

    async with worker.connect() as connection:
        await connection.send(*(request[n : n + 1] for n in range(len(request))))

        assert echoes(await connection.response()) == ["drop by drop"]


async def test_a_body_may_come_in_chunks(worker: RunningWorker, stub: StubBackend) -> None:
    body = classify("in chunks")
    pieces = [body[:7], body[7:8], body[8:]]
    head = post(_PATH, None, headers={"transfer-encoding": "chunked"})

    async with worker.connect() as connection:
        await connection.send(head, *(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces), b"0\r\n\r\n")

        assert echoes(await connection.response()) == ["in chunks"]


async def test_who_asks_before_sending_is_told_to_go_on(
    worker: RunningWorker, stub: StubBackend
) -> None:
    body = classify("may I")
    length = {"content-length": str(len(body)), "expect": "100-continue"}

    async with worker.connect() as connection:
        await connection.send(post(_PATH, None, headers=length))
        status, _ = await connection.head()
        await connection.send(body)

        assert status == 100
        assert echoes(await connection.response()) == ["may I"]


@pytest.mark.parametrize(
    ("key", "length", "status"), [(KEY, _LIMIT + 1, 413), ("sk-nobody-has-this-one", 10, 401)]
)
async def test_who_asks_before_sending_may_be_refused_and_must_connect_anew(
    worker: RunningWorker, key: str, length: int, status: int
) -> None:
    headers = {"content-length": str(length), "expect": "100-continue"}

    async with worker.connect() as connection:
        await connection.send(post(_PATH, None, key=key, headers=headers))
        refused = await connection.response()

        assert refused.status == status
        assert refused.headers["connection"] == "close"
        assert await connection.is_closed()


@pytest.mark.parametrize("path", ["/health/live", "/v1/models", "/openapi.json"])
async def test_head_says_what_get_would(worker: RunningWorker, path: str) -> None:
    async with worker.connect() as connection:
        await connection.send(post(path, None, method="GET"))
        read = await connection.response()
        await connection.send(post(path, None, method="HEAD"))
        head = await connection.response(to_head=True)
        await connection.send(post(path, None, method="GET"))
        again = await connection.response()

    assert (read.status, head.status, again.status) == (200, 200, 200)
    assert head.headers["content-length"] == read.headers["content-length"]
    assert head.headers["content-type"] == read.headers["content-type"]


async def test_other_methods_are_refused_and_the_connection_goes_on(
    worker: RunningWorker, stub: StubBackend
) -> None:
    async with worker.connect() as connection:
        await connection.send(post(_PATH, None, method="GET"))
        read = await connection.response()
        await connection.send(post(_PATH, None, method="HEAD"))
        head = await connection.response(to_head=True)
        await connection.send(post(_PATH, classify("after other methods")))
        answered = await connection.response()

    assert (read.status, read.json()["code"], head.status) == (405, "method_not_allowed", 405)
    assert read.headers["allow"] == head.headers["allow"] == "POST"
    assert echoes(answered) == ["after other methods"]


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("length", [100_000, 50_000_000])
async def test_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(
    worker: RunningWorker, stub: StubBackend, length: int, *, is_chunked: bool
) -> None:
    body = classify("x" * length)
    request = post(_PATH, body)
    if is_chunked:
        head = post(_PATH, None, headers={"transfer-encoding": "chunked"})
        request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    async with worker.connect() as connection:
        await connection.send(request)
        refused = await connection.response()
        await connection.send(post(_PATH, classify("after one too large")))
        answered = await connection.response()

    assert (refused.status, refused.json()["code"]) == (413, "payload_too_large")
    assert str(_LIMIT) in refused.json()["detail"]
    assert echoes(answered) == ["after one too large"]


async def test_who_leaves_before_the_body_is_there_is_forgotten(
    worker: RunningWorker, stub: StubBackend
) -> None:
    request = post(_PATH, classify("never sent whole"))

    async with worker.connect() as connection:
        await connection.send(request[:-5])
        connection.reset()

    assert echoes(await ask(worker, post(_PATH, classify("the next")))) == ["the next"]
    assert len(stub.calls) == 1


async def test_the_work_of_who_leaves_is_there_for_the_next(
    worker: RunningWorker, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    request = post(_PATH, classify("left behind"))

    async with worker.connect() as connection:
        await connection.send(request)
        await stub.wait_for(lambda: len(stub.calls) == 1)
        connection.reset()
    second = asyncio.create_task(ask(worker, request))
    gate.set()

    assert echoes(await second) == ["left behind"]
    assert len(stub.calls) == 1


async def test_what_is_no_http_is_refused_and_harms_nobody(
    worker: RunningWorker, stub: StubBackend
) -> None:
    refused = await ask(worker, b"\x16\x03\x01 hello\r\n\r\n")

    assert refused.status == 400
    assert echoes(await ask(worker, post(_PATH, classify("after nonsense")))) == ["after nonsense"]


async def test_an_unknown_route_is_a_problem(worker: RunningWorker) -> None:
    response = await ask(worker, post("/v1/nothing", b"{}"))

    assert (response.status, response.json()["code"]) == (404, "not_found")
    assert response.headers["x-request-id"] == response.json()["request_id"]


async def test_a_deadline_is_kept(worker: RunningWorker, stub: StubBackend) -> None:
    stub.behaviour = hang
    response = await ask(
        worker, post(_PATH, classify("hangs"), headers={"x-request-timeout": "0.2"})
    )

    assert (response.status, response.json()["code"]) == (504, "deadline_exceeded")


async def test_an_item_that_fails_alone_leaves_the_others(
    worker: RunningWorker, stub: StubBackend
) -> None:
    stub.behaviour = fail_items(1, code="empty_input", status=422, retryable=False)

    response = await ask(worker, post(_PATH, classify("fine", "bad", on_error="continue")))

    fine, bad = response.json()["results"]
    assert fine["echo"] == "fine"
    assert bad["error"]["code"] == "empty_input"
    assert response.json()["usage"]["failed"] == 1


async def test_usage_is_asked_of_the_ledger(worker: RunningWorker) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{worker.port}"
    async with httpx.AsyncClient(base_url=url, verify=no_authorities()) as client:
        response = await client.get("/v1/usage", headers=headers, params={"to": "2261-01-01"})

    assert response.status_code == 200, response.text
    assert response.json()["data"] == []


async def test_neither_metrics_nor_logs_hold_texts_keys_or_tenants(
    worker: RunningWorker, stub: StubBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    refused_model = classify("a private text", model="private-model")
    for body in (classify("a private text"), refused_model, b'{"a private text'):
        await ask(worker, post(_PATH, body))

    await until(lambda: 'sluicegate_items_total{model="stub"' in worker.metrics(), what="a flush")
    exposed = worker.metrics()
    for secret in ("private", KEY, "acme"):
        assert secret not in exposed
        assert secret not in caplog.text


async def test_a_backend_that_died_costs_misses_but_no_hits(
    worker: RunningWorker, stub: StubBackend
) -> None:
    await ask(worker, post(_PATH, classify("known")))
    await stub.stop()
    try:
        known = await ask(worker, post(_PATH, classify("known")))
        unknown = await ask(worker, post(_PATH, classify("unknown")))
    finally:
        await stub.start()

    assert "hit" in known.headers["cache-status"]
    assert (unknown.status, unknown.json()["code"]) == (503, "upstream_unavailable")
    assert int(unknown.headers["retry-after"]) >= 1
