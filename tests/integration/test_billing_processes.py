"""The workers as processes run them: started, stopped by an event, nothing left uncounted."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.pricing import NANO
from sluicegate.gateway.ledger.types import Budget
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.workers.billing import run_billing
from sluicegate.gateway.workers.file_lock import FileLock
from sluicegate.gateway.workers.request_log import run_request_log
from sluicegate.gateway.workers.shipper import LOCK_NAME, run_shipper
from testing.waiting import until
from tests.support.events import make_event
from tests.support.ledgers import record, sums
from tests.support.pipeline import Work, running

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path, valkey: str) -> Settings:
    made = Settings(data_dir=tmp_path, state_url=valkey, events_keep=0.0)
    Ledger.create(made.ledger).close()
    return made


def works(settings: Settings) -> list[Work]:
    """Return the workers in the order in which a shutdown stops them."""

    async def ship(stop: asyncio.Event) -> None:
        await run_shipper(settings, stop=stop)

    async def bill(stop: asyncio.Event) -> None:
        await run_billing(settings, stop=stop)

    async def log(stop: asyncio.Event) -> None:
        await run_request_log(settings, stop=stop)

    return [ship, bill, log]


async def test_a_shutdown_leaves_nothing_uncounted(settings: Settings) -> None:
    async with running(*works(settings)):
        with EventLog(settings.events_dir, name=settings.worker) as log:
            for number in range(5000):
                log.publish(make_event(number))

    with Ledger.create(settings.ledger) as ledger:
        assert sums(ledger).events == 5000
    assert len((settings.data_dir / "requests.log").read_bytes().splitlines()) == 5000


async def test_billing_tells_of_a_budget_that_is_reached(settings: Settings) -> None:
    with Ledger.create(settings.ledger) as ledger:
        ledger.prices.publish([PriceConfig(model="*", since="2026-01-01", hit=NANO)])
        ledger.accounts.create_tenant("acme")
        ledger.budgets.set("acme", Budget(amount="1", thresholds=(100,)))
        record(ledger, "w", 1, [make_event(1, time=time.time_ns())])

        async with running(works(settings)[1]):
            await until(lambda: bool(ledger.deliveries.take(seconds=0)), what="a webhook is due")


async def test_the_next_start_deletes_what_was_counted(settings: Settings) -> None:
    with EventLog(settings.events_dir, name=settings.worker) as log:
        log.publish(make_event(1))
    async with running(*works(settings)):
        pass

    async with running(*works(settings)):
        await until(lambda: not list(settings.events_dir.iterdir()), what="the log is deleted")

    with Ledger.create(settings.ledger) as ledger:
        assert sums(ledger).events == 1


async def test_a_second_shipper_of_a_directory_waits_for_the_first(settings: Settings) -> None:
    with EventLog(settings.events_dir, name=settings.worker) as log:
        log.publish(make_event(1))
    lock = FileLock(settings.data_dir / LOCK_NAME)
    ship, bill, _ = works(settings)

    async with running(ship, bill):
        with lock:
            lock.take()
            stop = asyncio.Event()
            waiting = asyncio.create_task(run_shipper(settings, stop=stop))
            stop.set()
            await asyncio.wait_for(waiting, 60.0)
        await until(lambda: not list(settings.events_dir.iterdir()), what="the other takes over")


async def test_workers_stop_soon_while_redis_is_away(tmp_path: Path) -> None:
    away = Settings(data_dir=tmp_path, state_url=f"unix://{tmp_path}/nobody")
    with EventLog(away.events_dir, name="0") as log:
        log.publish(make_event(1))

    stop = partial(asyncio.wait_for, timeout=60.0)
    for work in works(away):
        ended = asyncio.Event()
        task = asyncio.create_task(work(ended))
        ended.set()
        await stop(task)

    assert len(list(away.events_dir.iterdir())) == 1
