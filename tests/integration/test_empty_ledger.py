"""A ledger is created by `sluicegate ledger init` alone, and never beside keys that are known."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.events.block import STREAM, pack
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.migrations import LedgerEmpty
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import CONTROL_KEYS, Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.first_start import create_ledger
from sluicegate.gateway.settings import Settings, environment
from sluicegate.gateway.workers.billing import Billing
from sluicegate.gateway.workers.group import GroupReader
from sluicegate.gateway.workers.ledger_writer import LedgerWriter
from sluicegate.gateway.workers.stream import BILLING, EventStream
from testing.raw_http import KEY, Response, post
from testing.stub_backend import StubBackend
from testing.waiting import eventually, until
from tests.support.events import make_event
from tests.support.ledgers import emptied, sums, tables_of
from tests.support.older_ledgers import connected
from tests.support.pipeline import running
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio


def settings_of(folder: Path, database: str, valkey: str) -> Settings:
    return Settings(data_dir=folder / "data", ledger_url=database, state_url=valkey)


@pytest.fixture
async def control(valkey: str) -> AsyncIterator[Control]:
    redis: Redis = connect(valkey, key=CONTROL_KEYS, timeout=60.0)
    yield Control(redis)
    await redis.aclose()


def with_a_key(database: str) -> None:
    """Create a ledger with a tenant, whose key is `KEY`."""
    with Ledger.create(database) as ledger:
        ledger.accounts.create_tenant("acme")
        ledger.accounts.create_key("acme", key_hash=hash_key(KEY))


def test_nothing_but_its_creation_makes_a_ledger(database: str) -> None:
    with Ledger(database) as ledger:
        for use in (ledger.principals.version, ledger.accounts.tenants, ledger.check):
            with pytest.raises(LedgerEmpty, match="sluicegate ledger init"):
                use()
        with pytest.raises(LedgerEmpty):
            ledger.accounts.create_tenant("acme")

    assert tables_of(database) == []


def test_a_ledger_that_is_gone_is_used_again_when_it_is_back(database: str) -> None:
    with_a_key(database)
    with Ledger(database) as ledger, Ledger(database) as started_meanwhile:
        ledger.accounts.create_tenant("before")
        with emptied(database):
            for one in (ledger, started_meanwhile, ledger):
                with pytest.raises(LedgerEmpty):
                    one.accounts.create_tenant("meanwhile")
            assert tables_of(database) == []

        for one in (ledger, started_meanwhile):
            assert [t.id for t in one.accounts.tenants()] == ["acme", "before"]


def test_tables_without_a_version_are_a_restore_that_is_under_way(database: str) -> None:
    Ledger.create(database).close()
    with connected(database) as connection:
        connection.exec_driver_sql("DELETE FROM schema_migrations")
        connection.exec_driver_sql("DELETE FROM schema_version")

    with Ledger(database) as ledger, pytest.raises(LedgerEmpty, match="restore"):
        ledger.accounts.tenants()
    with pytest.raises(LedgerEmpty, match="restore"):
        Ledger.create(database)


async def test_the_first_start_creates_a_ledger_once(
    tmp_path: Path, database: str, valkey: str
) -> None:
    settings = settings_of(tmp_path, database, valkey)

    assert await asyncio.to_thread(create_ledger, settings)
    with Ledger(database) as ledger:
        ledger.accounts.create_tenant("acme")
    assert not await asyncio.to_thread(create_ledger, settings)

    with Ledger(database) as ledger:
        assert [tenant.id for tenant in ledger.accounts.tenants()] == ["acme"]


async def test_no_ledger_is_created_beside_a_state_redis_that_has_served(
    tmp_path: Path, database: str, valkey: str, control: Control
) -> None:
    settings = settings_of(tmp_path, database, valkey)
    await control.touch(Topic.ACCOUNTS)

    with pytest.raises(ConfigurationError, match="restore the ledger"):
        await asyncio.to_thread(create_ledger, settings)
    assert tables_of(database) == []

    assert await asyncio.to_thread(create_ledger, settings, anew=True)


async def test_no_ledger_is_created_while_nobody_knows_whether_the_state_redis_has_served(
    tmp_path: Path, database: str
) -> None:
    settings = settings_of(tmp_path, database, f"unix://{tmp_path / 'nobody'}")

    with pytest.raises(DependencyUnavailable):
        await asyncio.to_thread(create_ledger, settings, patience=0.0)
    assert tables_of(database) == []


def test_the_command_says_what_it_did(tmp_path: Path, database: str, valkey: str) -> None:
    variables = environment(settings_of(tmp_path, database, valkey))

    said = [
        CliRunner().invoke(main, ["ledger", "init"], env=variables, catch_exceptions=False).stdout
        for _ in range(2)
    ]

    assert ["created" in said[0], "exists" in said[1]] == [True, True]


async def test_known_keys_stay_while_the_ledger_is_gone_or_new(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with_a_key(database)
    ring = KeyRing()
    with Ledger(database) as ledger:
        async with PrincipalsFollower(ring=ring, accounts=ledger.principals, poll=60) as follower:
            with emptied(database), caplog.at_level(logging.WARNING):
                for _ in range(3):
                    await follower.refresh()
                    assert ring.find(KEY.encode())
                said = [str(vars(record)["reason"]) for record in caplog.records]
                assert len(said) == 1
                assert "sluicegate ledger init" in said[0]

                Ledger.create(database).close()
                await follower.refresh()
                assert ring.find(KEY.encode())
                assert "new" in follower.emptiness

            await follower.refresh()
            assert (follower.is_reached, follower.emptiness) == (True, "")
            with Ledger(database) as other:
                (key,) = other.accounts.keys("acme")
                other.accounts.revoke(key.id)
            await follower.refresh()
            assert ring.find(KEY.encode()) is None


async def ask(worker: RunningWorker, request: bytes) -> Response:
    async with worker.connect() as connection:
        await connection.send(request)
        return await connection.response()


async def ready(worker: RunningWorker) -> tuple[int, dict[str, list[str]]]:
    answer = await ask(worker, post("/health/ready", None, method="GET"))
    return answer.status, msgspec.json.decode(answer.body)


async def test_an_emptied_ledger_refuses_no_key_of_a_running_worker(
    tmp_path: Path, database: str, valkey: str
) -> None:
    """The case: 527 requests in 18 s were answered 401, after a second process had started."""
    with_a_key(database)
    request = post("/v1/classify", classify("one text"))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(StubBackend())
        first = await stack.enter_async_context(
            running_worker(tmp_path / "first", valkey, [stub], ledger_url=database)
        )
        assert (await ask(first, request)).status == 200
        with emptied(database):
            second = await stack.enter_async_context(
                running_worker(tmp_path / "second", valkey, [stub], ledger_url=database)
            )
            assert (await ask(second, request)).status == 503
            status, health = await ready(second)
            assert status == 503
            assert any("sluicegate ledger init" in line for line in health["missing"])

            await first.parts._principals.refresh()
            answers = [await ask(first, request) for _ in range(50)]
            assert {answer.status for answer in answers} == {200}
            status, health = await ready(first)
            assert status == 200
            assert any("sluicegate ledger init" in line for line in health["degraded"])
            assert tables_of(database) == []

        for worker in (first, second):
            await eventually(partial(is_whole, worker))
            assert (await ask(worker, request)).status == 200


async def is_whole(worker: RunningWorker) -> bool:
    status, health = await ready(worker)
    return status == 200 and not health["degraded"]


async def test_billing_makes_no_ledger_and_goes_on_when_it_is_back(
    database: str, valkey: str
) -> None:
    with_a_key(database)
    redis = connect(valkey, key=STREAM, timeout=60.0)
    stream = EventStream(redis, max_blocks=100)
    with Ledger(database) as ledger:
        group = GroupReader(redis, group=BILLING, consumer="one", count=4)
        billing = Billing(group=group, writer=LedgerWriter(ledger), wait=0.02)
        with emptied(database):
            event = msgspec.msgpack.encode(make_event(1))
            await stream.ship(pack("w0-1", 1, [event]), after=None)
            async with running(billing.run):
                await until(lambda: billing.statistics().failures > 1, what="failures")
            assert tables_of(database) == []
        async with running(billing.run):
            await until(lambda: billing.statistics().events == 1, what="the event is billed")
        assert sums(ledger).events == 1
    await redis.aclose()
