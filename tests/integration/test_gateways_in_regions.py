"""Gateways in two regions as processes, and one billing worker over the streams of both.

`make bench NAME=regions` does the first for longer, with demand that moves.
"""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from math import isfinite
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtests.limits import run_regions
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.workers.billing import run_billing
from sluicegate.gateway.workers.shipper import run_shipper
from testing.valkey import Valkey
from testing.waiting import eventually
from tests.support.events import make_event
from tests.support.ledgers import sums
from tests.support.pipeline import running


def test_both_together_keep_limits_and_a_lost_one_leaves_its_share() -> None:
    result = run_regions(phase=3.0, lease=5.0, tenants=2, workers=1, demands=[(0.5, 0.5)])

    assert result.over <= 0.0
    assert result.other == 0
    assert result.phases[0]["admitted"]
    # Some seconds after what is allowed at the latest: until then the load went on.
    assert isfinite(result.took)


@pytest.mark.anyio
async def test_one_billing_worker_bills_every_region_though_one_is_away(tmp_path: Path) -> None:
    with Valkey("--appendonly", "yes") as eu, Valkey("--appendonly", "yes") as us:
        regions = {"eu": eu, "us": us}
        ledger_url = f"sqlite:///{tmp_path / 'ledger.db'}"
        settings = Settings(
            data_dir=tmp_path / "billing",
            stream_urls=f"{eu.url} {us.url}",
            ledger_url=ledger_url,
        )
        works = [
            partial(_ship, replace(settings, data_dir=tmp_path / n, region=n, state_url=r.url))
            for n, r in regions.items()
        ]
        with Ledger.create(ledger_url) as ledger, ExitStack() as stack:
            logs = {
                name: stack.enter_context(EventLog(tmp_path / name / "events", name=f"{name}-0"))
                for name in regions
            }
            async with running(*works, partial(_bill, settings)):
                _publish(logs, first=0)
                await _are_billed(ledger, 1000)
                us.kill()
                _publish(logs, first=2000)
                await _are_billed(ledger, 1500)
                assert sums(ledger).events == 1500
                await asyncio.to_thread(us.start)
                await _are_billed(ledger, 2000)

            statistics = sums(ledger)
    assert (statistics.events, statistics.dead_letters, statistics.lost) == (2000, 0, 0)


async def _ship(settings: Settings, stop: asyncio.Event) -> None:
    await run_shipper(settings, stop=stop)


async def _bill(settings: Settings, stop: asyncio.Event) -> None:
    await run_billing(settings, stop=stop)


def _publish(logs: Mapping[str, EventLog], *, first: int) -> None:
    """Put 500 events into each log, of which no two are the same."""
    for begin, log in zip((first, first + 1000), logs.values(), strict=True):
        for number in range(begin, begin + 500):
            log.publish(make_event(number))


async def _are_billed(ledger: Ledger, number: int) -> None:
    async def are_billed() -> bool:
        return (await asyncio.to_thread(sums, ledger)).events >= number

    await eventually(are_billed, within=60, every=0.05)
