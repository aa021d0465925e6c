"""PostgreSQL that is cut off, frozen, absent or unsuitable holds nobody up for long."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import exc, make_url

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.http.byte_budget import LARGE
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.postgresql import CONNECTIONS, lift_limits, make_engine
from sluicegate.gateway.settings import Settings, environment
from testing.ports import free_port
from testing.postgresql import PostgreSQL
from testing.raw_http import KEY, Response, post
from testing.stub_backend import StubBackend
from testing.waiting import eventually, until
from tests.support.delaying_proxy import DelayingProxy
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = [pytest.mark.anyio, pytest.mark.system]
_NEVER = 3600.0
_ROTATIONS = 40


def test_a_process_has_a_bounded_number_of_connections(postgresql: PostgreSQL) -> None:
    engine = make_engine(make_url(postgresql.database()), timeout=0.5)

    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(engine.connect())
        with pytest.raises(exc.TimeoutError):
            engine.connect()
    with engine.connect() as again:
        assert not again.closed
    engine.dispose()


def test_a_connection_that_is_in_use_is_closed_after_the_ledger(postgresql: PostgreSQL) -> None:
    ledger = Ledger.create(postgresql.database())

    with ledger._store.reading() as connection:
        own = connection.connection.dbapi_connection
        ledger.close()

    assert own is not None
    assert own.closed


class Line:
    """What a proxy asks: how long to hold an answer back."""

    def __init__(self) -> None:
        self.held = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.held


@pytest.fixture
def line() -> Line:
    return Line()


def through(url: str, proxy: DelayingProxy) -> str:
    """Return the URL of the same database, reached through a proxy."""
    schema = url.partition("&options")[2]
    return f"postgresql+psycopg://tests@127.0.0.1:{proxy.port}/postgres?options{schema}"


async def test_a_server_that_says_nothing_any_more_is_given_up_and_found_again(
    postgresql: PostgreSQL, line: Line
) -> None:
    url = postgresql.database()
    async with DelayingProxy(postgresql.socket(), delay=line) as proxy:
        Ledger.create(url).close()
        with Ledger(through(url, proxy), timeout=0.5) as ledger:
            await asyncio.to_thread(ledger.accounts.create_tenant, "acme")
            line.held = _NEVER

            for _ in range(2):  # on a connection that was open, and on a new one
                async with asyncio.timeout(30):
                    with pytest.raises(DependencyUnavailable):
                        await asyncio.to_thread(ledger.accounts.tenants)

            line.held = 0.0
            found = await asyncio.to_thread(ledger.accounts.tenants)
            assert [tenant.id for tenant in found] == ["acme"]


class EndingProxy:
    """Passes bytes on to a Unix socket, and ends a connection that is asked whether it lives."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.ended = self.open = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.open += 1
        with closing(writer):
            from_server, to_server = await asyncio.open_unix_connection(self._path)
            with closing(to_server):
                back = asyncio.create_task(self._pass_back(from_server, writer))
                while (chunk := await reader.read(65_536)) and b"SELECT 1" not in chunk:
                    to_server.write(chunk)
                self.ended += 1
            await back
        await asyncio.gather(to_server.wait_closed(), writer.wait_closed(), return_exceptions=True)
        self.open -= 1

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            writer.write(chunk)


async def test_connections_that_end_as_soon_as_they_are_made_are_a_ledger_that_is_away(
    postgresql: PostgreSQL,
) -> None:
    proxy = EndingProxy(postgresql.socket())
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"postgresql+psycopg://tests@127.0.0.1:{port}/postgres"
        with Ledger(url) as ledger, pytest.raises(DependencyUnavailable):
            await asyncio.to_thread(ledger.accounts.tenants)
        await until(lambda: proxy.open == 0)

    assert proxy.ended >= 2


async def test_who_waits_for_another_to_connect_waits_no_longer_than_for_a_statement() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        port = silent.getsockname()[1]
        url = f"postgresql+psycopg://tests@127.0.0.1:{port}/postgres?connect_timeout={_NEVER:.0f}"
        with Ledger(url, timeout=0.2) as ledger:
            first = asyncio.create_task(asyncio.to_thread(ledger.accounts.tenants))
            connection, _ = await loop.sock_accept(silent)
            others = [asyncio.to_thread(ledger.accounts.tenants) for _ in range(3)]
            outcomes = asyncio.gather(*others, return_exceptions=True)
            done, _ = await asyncio.wait([outcomes], timeout=30)
            silent.close()
            connection.close()
            with pytest.raises(DependencyUnavailable):
                await first
            await outcomes

    assert done
    assert {type(outcome) for outcome in outcomes.result()} == {DependencyUnavailable}


async def test_the_kernel_ends_connections_to_a_server_that_is_cut_off(
    postgresql: PostgreSQL, line: Line
) -> None:
    """Nothing is dropped on loopback here: the options of the socket are what ends it."""
    async with DelayingProxy(postgresql.socket(), delay=line) as proxy:
        engine = make_engine(make_url(through(postgresql.database(), proxy)), timeout=5.0)
        connection = await asyncio.to_thread(engine.raw_connection)
        driver: Any = connection.driver_connection
        with socket.socket(fileno=os.dup(driver.fileno())) as own:
            keeps_alive = own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options = {name: own.getsockopt(socket.IPPROTO_TCP, n) for name, n in _OPTIONS.items()}
        connection.close()
        engine.dispose()

    assert keeps_alive == 1
    assert options == {"idle": 4, "interval": 2, "count": 3, "user timeout": 10_000}


_OPTIONS = {
    "idle": socket.TCP_KEEPIDLE,
    "interval": socket.TCP_KEEPINTVL,
    "count": socket.TCP_KEEPCNT,
    "user timeout": socket.TCP_USER_TIMEOUT,
}


async def test_no_statement_takes_longer_than_it_may(postgresql: PostgreSQL) -> None:
    engine = make_engine(make_url(postgresql.database()), timeout=0.2)

    with pytest.raises(exc.OperationalError, match="statement timeout"), engine.begin() as one:
        one.exec_driver_sql("SELECT pg_sleep(60)")

    with engine.begin() as another:
        lift_limits(another)
        another.exec_driver_sql("SELECT pg_sleep(0.4)")
    engine.dispose()


async def test_a_database_without_an_encoding_is_refused_in_one_line(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    url = postgresql.ascii_database()
    with Ledger(url) as ledger, pytest.raises(ConfigurationError, match="SQL_ASCII"):
        ledger.accounts.tenants()

    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "gateway.yaml").write_text("models: {}\n")
    settings = Settings(
        data_dir=tmp_path, config=tmp_path / "config", ledger_url=url, port=free_port()
    )
    worker = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "sluicegate.gateway", "run-worker"],
        env=environment(settings),
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
    )

    assert worker.returncode == 3, worker.stderr
    assert "SQL_ASCII" in worker.stderr.strip().splitlines()[-1]


def with_a_key(postgresql: PostgreSQL) -> str:
    """Return the URL of a ledger with one tenant, whose key is `KEY`."""
    url = postgresql.database()
    with Ledger.create(url) as ledger:
        ledger.accounts.create_tenant("acme")
        ledger.accounts.create_key("acme", key_hash=hash_key(KEY))
    return url


async def ask(worker: RunningWorker, request: bytes) -> Response:
    async with worker.connect() as connection:
        await connection.send(request)
        return await connection.response()


async def test_a_worker_that_starts_without_its_ledger_says_so_and_recovers(
    postgresql: PostgreSQL, line: Line, tmp_path: Path, valkey: str
) -> None:
    url = with_a_key(postgresql)
    request = post("/v1/classify", classify("a"))
    usage = post("/v1/usage", None, method="GET")
    nobody = post("/v1/classify", classify("a"), key="")
    proxy = DelayingProxy("/nowhere", delay=line)
    async with StubBackend() as stub, proxy:
        settings_url = through(url, proxy)
        async with running_worker(tmp_path, valkey, [stub], ledger_url=settings_url) as worker:
            refused = [await ask(worker, each) for each in (request, usage)]
            without = await ask(worker, nobody)

            proxy.path = postgresql.socket()

            async def answered() -> bool:
                return (await ask(worker, request)).status == 200

            await eventually(answered, within=30)

    for answer in refused:
        assert (answer.status, answer.json()["code"]) == (503, "dependency_unavailable")
        assert answer.headers["retry-after"] == "1"
    assert (without.status, without.json()["code"]) == (401, "authentication_failed")


async def test_usage_is_answered_in_time_while_the_ledger_is_silent(
    postgresql: PostgreSQL, line: Line, tmp_path: Path, valkey: str
) -> None:
    url = with_a_key(postgresql)
    usage = post("/v1/usage", None, method="GET")
    soon = post("/v1/usage", None, method="GET", headers={"x-request-timeout": "0.2"})
    async with (
        StubBackend() as stub,
        DelayingProxy(postgresql.socket(), delay=line) as proxy,
        running_worker(tmp_path, valkey, [stub], ledger_url=through(url, proxy)) as worker,
    ):
        before = await ask(worker, usage)
        line.held = _NEVER
        during = [await ask(worker, soon) for _ in range(8)]
        line.held = 0.0

    assert before.status == 200
    assert {(a.status, a.json()["code"]) for a in during} == {(503, "dependency_unavailable")}


async def test_keys_that_are_rotated_while_the_ledger_is_silent_hold_up_no_large_request(
    postgresql: PostgreSQL, line: Line, tmp_path: Path, valkey: str
) -> None:
    """Large bodies are read in threads, of which the ledger must not have all."""
    url = with_a_key(postgresql)
    rotate = post("/v1/keys/rotate", b"{}")
    large = post("/v1/classify", classify("long " * LARGE))
    async with (
        StubBackend() as stub,
        DelayingProxy(postgresql.socket(), delay=line) as proxy,
        running_worker(tmp_path, valkey, [stub], ledger_url=through(url, proxy)) as worker,
    ):
        line.held = _NEVER
        rotations = [asyncio.create_task(ask(worker, rotate)) for _ in range(_ROTATIONS)]
        answer = await ask(worker, large)
        answered = sum(one.done() for one in rotations)
        line.held = 0.0
        await asyncio.gather(*rotations)

    assert answer.status == 200
    assert answered < _ROTATIONS // 2
