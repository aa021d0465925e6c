"""Hostile callers on real sockets and the product's loop: both ways, and both listeners."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from sluicegate.gateway.admin.serve import serve_admin
from sluicegate.gateway.settings import Settings
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from testing.ports import free_port
from testing.raw_http import KEY, Connection, post
from testing.stub_backend import StubBackend, answer, hang
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.admin import KEY as ADMIN_KEY
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_ENDLESS = b"POST /v1/classify HTTP/1.1\r\nhost: h\r\nx: "
_PART = b"a" * 65_536
_ASK = post("/v1/classify", classify("known"))
_LEFT = "08"
"""CLOSE_WAIT, as the kernel lists it."""


async def takes_all(connection: Connection, times: int) -> bool:
    """Send a part `times` times; return whether the worker read everything."""
    with contextlib.suppress(ConnectionError):
        for _ in range(times):
            if connection.reader.at_eof():
                return False
            await connection.send(_PART)
        return not connection.reader.at_eof()
    return False


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The loop of the product, one for the module."""
    return "asyncio", {"loop_factory": uvloop.new_event_loop}


@pytest.fixture(scope="module")
async def stub(anyio_backend: object) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey, stub: StubBackend
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()  # tests before may have published a document
    folder = tmp_path_factory.mktemp("worker")
    timeouts = ConnectionTimeouts(connections=12)
    async with running_worker(folder, valkey_server.url, [stub], timeouts=timeouts) as found:
        yield found


@pytest.fixture(scope="module")
async def admin(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: object
) -> AsyncIterator[int]:
    """The port of an operators' listener, with a Redis of its own: it publishes a document."""
    with Valkey() as valkey:
        async with listening(tmp_path_factory.mktemp("admin"), valkey.url) as port:
            yield port


@asynccontextmanager
async def listening(folder: Path, url: str) -> AsyncIterator[int]:
    (folder / "config").mkdir()
    (folder / "config" / "g.yaml").write_text("models: {}\n")
    (folder / "metrics").mkdir()
    settings = Settings(
        data_dir=folder,
        config=folder / "config",
        admin_key=ADMIN_KEY,
        state_url=url,
        cache_url=url,
        admin_port=free_port(),
    )
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_admin(settings, stop=stop, registry=CollectorRegistry()))

    async def listens() -> bool:
        try:
            async with Connection(settings.admin_port):
                return True
        except OSError:
            return False

    await eventually(listens)
    yield settings.admin_port
    stop.set()
    await serving


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def refused(connection: Connection, status: int) -> str:
    """Return the id of the problem that the connection ends with."""
    response = await connection.response()
    problem = response.json()
    assert (response.status, problem["status"]) == (status, status), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == problem["request_id"]
    assert response.headers["connection"] == "close"
    assert await connection.is_closed()
    return str(problem["request_id"])


async def test_heads_without_end_are_refused_and_cost_no_memory(
    worker: RunningWorker, admin: int
) -> None:
    before = resident_bytes()
    for port, prefix in ((worker.port, "req_"), (admin, "adm_")):
        for _ in range(2):
            async with Connection(port) as connection:
                await connection.send(_ENDLESS)
                assert not await takes_all(connection, 2_000)
        async with Connection(port) as connection:
            await connection.send(_ENDLESS, _PART, _PART)
            assert (await refused(connection, 431)).startswith(prefix)

    assert resident_bytes() - before < 32 * 1024 * 1024


async def test_what_is_no_http_is_a_problem_with_an_id_on_both_listeners(
    worker: RunningWorker, admin: int
) -> None:
    for port, prefix in ((worker.port, "req_"), (admin, "adm_")):
        for sent, status in (
            (b"NONSENSE\r\n\r\n", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04", 505),
            (b"GET /health/live HTTP/1.1\r\n\r\n", 400),
        ):
            async with Connection(port) as connection:
                await connection.send(sent)
                assert (await refused(connection, status)).startswith(prefix)


async def test_more_connections_than_allowed_are_all_told_so(
    worker: RunningWorker, stub: StubBackend
) -> None:
    stub.behaviour = answer
    told = 0
    async with AsyncExitStack() as stack:
        admitted = [await stack.enter_async_context(worker.connect()) for _ in range(12)]
        for connection in admitted:
            await connection.send(_ASK)
            assert (await connection.response()).status == 200
        for _ in range(20):
            # As clients do: the request is on its way before anything is heard.
            beyond = await stack.enter_async_context(worker.connect())
            await beyond.send(_ASK)
            response = await beyond.response()
            assert response.headers["retry-after"] == "1"
            assert (response.status, response.json()["code"]) == (503, "overloaded")
            assert response.json()["request_id"] == response.headers["x-request-id"]
            told += await beyond.is_closed()
        await admitted[0].send(_ASK)
        assert (await admitted[0].response()).status == 200
    assert told == 20


async def test_a_caller_that_closes_its_half_is_answered_on_hits_and_misses(
    worker: RunningWorker, stub: StubBackend
) -> None:
    stub.behaviour = answer
    miss = post("/v1/classify", classify(f"new to {worker.port}"))
    for request in (miss, miss, miss + _ASK + post("/v1/classify", classify("newer")), _ASK):
        async with worker.connect() as connection:
            await connection.send(request)
            connection.transport.write_eof()
            for _ in range(request.count(b"POST ")):
                assert (await connection.response()).status == 200
            assert await connection.is_closed()


async def test_a_caller_that_left_is_let_go_when_its_answer_is_there(
    worker: RunningWorker, stub: StubBackend
) -> None:
    def held() -> int:
        """Return how many connections whose caller has left the worker still has."""
        table = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in table]
        return sum(row[1].endswith(f":{worker.port:04X}") and row[3] == _LEFT for row in rows)

    stub.behaviour = hang
    stub.calls.clear()
    async with worker.connect() as connection:
        asking = post("/v1/classify", classify("never"), headers={"x-request-timeout": "1"})
        await connection.send(asking)
        await until(lambda: bool(stub.calls))

    await until(lambda: held() == 1)
    await until(lambda: held() == 0)
    stub.behaviour = answer


async def test_an_upgrade_to_http_2_is_ignored(worker: RunningWorker, stub: StubBackend) -> None:
    stub.behaviour = answer
    offer = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAMAAABk",
    }
    upgrading = post("/v1/classify", classify("known"), headers=offer)
    async with worker.connect() as connection:
        await connection.send(upgrading + _ASK + upgrading, upgrading[:100], upgrading[100:])
        found = [await connection.response() for _ in range(4)]

    assert [response.status for response in found] == [200] * 4
    assert len({response.body.partition(b'"usage"')[0] for response in found}) == 1


async def test_blanks_around_a_value_are_no_part_of_it(worker: RunningWorker) -> None:
    body = classify("known")
    lines = [b"host:\t worker \t", b"authorization: Bearer %b  " % KEY.encode()]
    lines.append(b"content-length:  %d \t" % len(body))
    head = b"POST /v1/classify HTTP/1.1\r\n%b\r\n\r\n" % b"\r\n".join(lines)

    async with worker.connect() as connection:
        await connection.send(head + body, head + body)
        answers = [await connection.response() for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
