"""Watches a fleet from outside during failovers: operators' changes, readiness, and the ledger."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any  # Any: values of rows

import httpx
import psycopg

from gateway.events.hit_run import ids_from
from loadtests.fleet.system import ADMIN_KEY, OPERATED, Fleet
from testing.loopback import no_authorities

Answered = tuple[str, int]
"""The id and the status of an answer."""
LONGEST_CHANGE = 30.0
"""Seconds after which an operator's call without an answer has failed the run."""
_PAUSE = 0.25
_CREATED, _EXISTS, _UNAVAILABLE, _READY = 201, 409, 503, 200


class Operator:
    """Creates one tenant after the other while entered, each until that is confirmed.

    A change that was answered with 503 is repeated, at the other listener; it may turn out then to
    have been made (409).
    """

    def __init__(self, fleet: Fleet, *, round_number: int) -> None:
        self._fleet = fleet
        self._round = round_number
        self.confirmed: list[str] = []
        self.refused = 0
        self.wrong: Counter[str] = Counter()
        self.slowest = 0.0

    async def run(self) -> None:
        """Make changes until cancelled."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(
            headers=headers, timeout=LONGEST_CHANGE, verify=no_authorities()
        ) as client:
            for number in range(10**6):
                await self._create(client, f"new-{self._round}-{number}")
                await asyncio.sleep(_PAUSE)

    async def _create(self, client: httpx.AsyncClient, tenant: str) -> None:
        for attempt in range(10**6):
            gateway = self._fleet.gateways[attempt % OPERATED]
            url = f"http://127.0.0.1:{gateway.settings.admin_port}/admin/tenants"
            began = time.monotonic()
            try:
                status = (await client.post(url, json={"id": tenant})).status_code
            except httpx.HTTPError as error:
                self.wrong[type(error).__name__] += 1
                continue
            finally:
                self.slowest = max(self.slowest, time.monotonic() - began)
            if status == _CREATED or (status == _EXISTS and attempt):
                self.confirmed.append(tenant)
                return
            if status == _UNAVAILABLE:
                self.refused += 1
            else:
                self.wrong[str(status)] += 1
            await asyncio.sleep(_PAUSE)


class ReadinessWatch:
    """Asks all gateways whether they are ready."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.unready = 0
        self.without_ledger = 0
        """Answers of ready gateways that named the ledger as degraded."""

    async def run(self) -> None:
        """Ask until cancelled."""
        async with httpx.AsyncClient(timeout=LONGEST_CHANGE, verify=no_authorities()) as client:
            while True:
                for gateway in self._fleet.gateways:
                    url = f"http://127.0.0.1:{gateway.settings.port}/health/ready"
                    answer = await client.get(url)
                    self.unready += answer.status_code != _READY
                    self.without_ledger += "ledger" in answer.text
                await asyncio.sleep(_PAUSE)


@contextlib.asynccontextmanager
async def running(*watches: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run watches in the background while entered; one that fails is raised at the exit."""
    tasks = [asyncio.create_task(watch) for watch in watches]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException) and not isinstance(each, asyncio.CancelledError):
            raise each


class LedgerView:
    """Reads the primary's tables. Blocks."""

    def __init__(self, fleet: Fleet) -> None:
        self._pair = fleet.ledger

    def billed(self) -> Counter[Answered]:
        """Return how often the ledger has each request with its status."""
        rows = self._rows("SELECT id, requests, status FROM usage_events")
        return Counter(
            (one, int(status)) for first, count, status in rows for one in ids_from(first, count)
        )

    def tenants(self) -> Counter[str]:
        """Return the ids of all tenants."""
        return Counter(one for (one,) in self._rows("SELECT id FROM tenants"))

    def has_event_after(self, moment: float) -> bool:
        """Tell whether it has an event that is later than `moment`, in seconds since the epoch."""
        query = f"SELECT count(*) FROM usage_events WHERE time > {int(moment * 1e9)}"  # noqa: S608
        ((count,),) = self._rows(query)
        return bool(count)

    def _rows(self, query: str) -> Sequence[tuple[Any, ...]]:
        place = f"host=127.0.0.1 port={self._pair.primary.port} user=tests dbname=postgres"
        with psycopg.connect(place, connect_timeout=3) as connection:
            return connection.execute(query.encode()).fetchall()
