"""The operators' listener: no document changes what the past costs."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from typing_extensions import override

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_nanoseconds
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Usage
from testing.waiting import until
from tests.support.admin import refused
from tests.support.events import make_event
from tests.support.ledgers import record

pytestmark = pytest.mark.anyio

PRICES = 'prices: [{model: "*", since: 2026-01-01, hit: 200, computed: 1000}]\n'
MODELS = "models: {m: {cache_ttl: 7}}\n"
USAGE = {"from": "2026-02-01", "to": "2026-03-01", "group_by": "tenant"}


@pytest.fixture(autouse=True)
async def invoiced(admin: httpx.AsyncClient, ledger: Ledger) -> None:
    """A tenant with usage under a price that was published from the folder."""
    assert (await admin.put("/admin/config", content=MODELS + PRICES)).status_code in (200, 202)
    ledger.accounts.create_tenant("acme")
    time = to_nanoseconds(datetime(2026, 2, 3, tzinfo=UTC))
    record(ledger, "w0-1", 1, [make_event(1, time=time, usage=Usage.of(hit=100, computed=5))])


async def cost(admin: httpx.AsyncClient) -> str:
    (row,) = (await admin.get("/admin/usage", params=USAGE)).json()["rows"]
    return str(row["cost"])


async def test_a_document_that_changes_the_past_is_refused(
    admin: httpx.AsyncClient, settings: Settings
) -> None:
    for content in [
        "",
        "{}",
        "# nothing\n",
        "prices: []\n",
        MODELS,
        MODELS + PRICES.replace("hit: 200", "hit: 600"),
        MODELS + PRICES.replace("2026-01-01", "2026-02-02"),
        MODELS + PRICES.replace("2026-01-01", "2099-01-01"),
        MODELS + PRICES.replace("hit: 200", "hit: 99999999999999999999999"),
        MODELS + PRICES.replace("hit: 200", "hit: 1" + "0" * 400),
        MODELS + PRICES.replace("hit: 200", "hit: 1" + "0" * 5000),
        MODELS + PRICES.replace("hit: 200", "hit: -1"),
        MODELS + PRICES.replace("hit: 200", "hit: .nan"),
        MODELS + PRICES.replace("hit: 200", "hit: .inf"),
        MODELS + PRICES.replace("hit: 200", "hit: 0.5"),
        MODELS + PRICES.replace("hit: 200", "hit: true"),
        MODELS + PRICES.replace("hit: 200", "hit: '200'"),
    ]:
        before = await cost(admin)
        active = (await admin.get("/admin/config")).json()["generation"]
        (settings.config / "g.yaml").write_text(content)

        put = await admin.put("/admin/config", content=content)
        dry = await admin.put("/admin/config?dry_run=true", content=content)
        reload = await admin.post("/admin/config/reload")

        for answer in (put, dry, reload):
            assert refused(answer, 422, "invalid_configuration")["detail"]
        assert (await admin.get("/admin/config")).json()["generation"] == active
        assert await cost(admin) == before == "0.000025000"


async def test_what_is_refused_is_named(admin: httpx.AsyncClient) -> None:
    edited = PRICES.replace("hit: 200", "hit: 600")

    problem = refused(
        await admin.put("/admin/config", content=edited), 422, "invalid_configuration"
    )

    assert problem["field"] == "prices"
    assert "`*` from 2026-01-01 on is in effect" in problem["detail"]
    assert "`hit` from 200 to 600" in problem["detail"]


async def test_a_price_to_come_is_published_and_the_past_stays(admin: httpx.AsyncClient) -> None:
    before = await cost(admin)
    coming = PRICES.replace("]", ', {model: "*", since: 2099-01-01, hit: 1}]')

    answer = await admin.put("/admin/config", content=MODELS + coming)
    back = await admin.put("/admin/config", content=MODELS + PRICES)

    assert {answer.status_code, back.status_code} <= {200, 202}
    assert await cost(admin) == before


async def test_a_rollback_to_before_a_price_is_refused(admin: httpx.AsyncClient) -> None:
    added = PRICES.replace("]", ", {model: big, since: 2026-03-01, hit: 1}]")
    await admin.put("/admin/config", content=MODELS + added)

    problem = refused(await admin.post("/admin/config/rollback"), 422, "invalid_configuration")

    assert "`big` from 2026-03-01 on is in effect and cannot be removed" in problem["detail"]


class BusyLedger(Control):
    """Publishes; from then on somebody else writes to the ledger, and lets nobody else."""

    def __init__(self, redis: Redis, writer: sqlite3.Connection) -> None:
        super().__init__(redis)
        self._writer = writer

    @override
    async def publish(self, published: Published) -> bool:
        done = await super().publish(published)
        self._writer.execute("BEGIN IMMEDIATE")
        return done


async def test_prices_that_the_ledger_could_not_take_are_in_it_when_it_can(
    settings: Settings, redis: Redis, tmp_path: Path
) -> None:
    await redis.flushall()
    ledger_file = tmp_path / "another.db"
    stop = asyncio.Event()
    with Ledger.create(f"sqlite:///{ledger_file}", timeout=0.1) as ledger:
        assert ledger.prices.entries() == []
        with closing(sqlite3.connect(ledger_file, isolation_level=None)) as writer:
            publisher = Publisher(
                control=BusyLedger(redis, writer),
                ledger=ledger,
                settings=settings,
                clock=lambda: 7.0,
                workers_timeout=0.1,
            )
            following = asyncio.create_task(publisher.prices.follow(stop))
            await publisher.put(MODELS + PRICES, if_match="", author="a")
            during = ledger.prices.entries()
            writer.execute("ROLLBACK")

            await until(lambda: ledger.prices.entries() != [], within=30, what="they are kept")
            stop.set()
            await following
        kept = [entry.hit for entry in ledger.prices.entries()]

    assert (during, kept) == ([], [200])


class Unanswering(Control):
    """Publishes, and loses the answer."""

    @override
    async def publish(self, published: Published) -> bool:
        await super().publish(published)
        raise DependencyUnavailable("the state Redis cannot be reached")


async def test_prices_of_a_document_whose_publishing_got_no_answer_are_kept(
    settings: Settings, redis: Redis, tmp_path: Path
) -> None:
    await redis.flushall()
    stop = asyncio.Event()
    with Ledger.create(f"sqlite:///{tmp_path / 'another.db'}") as ledger:
        publisher = Publisher(
            control=Unanswering(redis), ledger=ledger, settings=settings, clock=lambda: 7.0
        )
        following = asyncio.create_task(publisher.prices.follow(stop))

        with pytest.raises(DependencyUnavailable):
            await publisher.put(MODELS + PRICES, if_match="", author="a")

        await until(lambda: ledger.prices.entries() != [], within=60, what="they are kept")
        stop.set()
        await following
        kept = [entry.hit for entry in ledger.prices.entries()]
        actions = [entry.action for entry in ledger.audit.entries()]

    assert kept == [200]
    assert actions == ["config.publish.unanswered", "config.publish"]


async def test_gateways_that_start_at_once_all_go_on(
    settings: Settings, redis: Redis, tmp_path: Path
) -> None:
    await redis.flushall()
    with Ledger.create(f"sqlite:///{tmp_path / 'another.db'}") as ledger:
        publishers = [
            Publisher(
                control=Control(redis),
                ledger=ledger,
                settings=settings,
                clock=lambda: 7.0,
                workers_timeout=0.1,
                chance=lambda: 1.5,
            )
            for _ in range(4)
        ]

        await asyncio.gather(*(publisher.start(asyncio.Event()) for publisher in publishers))

    active = await Control(redis).active()
    assert active is not None
    assert active.generation == 1
