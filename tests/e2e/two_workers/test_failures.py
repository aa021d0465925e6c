"""Tests kills under load: no wrong answer, no answer lost or billed twice."""

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from gateway.events.hit_run import ids_from
from testing.loopback import get
from testing.system import System
from testing.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

# Each text has an answer that is known beforehand, so that a mix-up would show.
_PRAISE = "a truly wonderful and moving film, {} {}"
_BLAME = "a dull, lifeless and terrible film, {} {}"
_IN_FLIGHT = 16


class Load:
    """Requests that no other load sends, so many at a time; remembers what was answered."""

    def __init__(self, system: System, name: str, *, count: int) -> None:
        self._system = system
        self._name = name
        self._numbers = iter(range(count))
        self.answered: list[str] = []
        self.wrong: list[str] = []
        self.broken = 0
        self.statuses: Counter[int] = Counter()

    async def run(self, *, then: Callable[[], object], after: int) -> None:
        """Send everything; call `then` once, when `after` requests were answered."""
        pending = [then]

        async def send(client: httpx.AsyncClient) -> None:
            for number in self._numbers:
                await self._one(client, number)
                if pending and len(self.answered) >= after:
                    pending.pop()()

        limits = httpx.Limits(max_connections=_IN_FLIGHT)
        async with self._system.async_client(limits=limits) as client:
            await asyncio.gather(*(send(client) for _ in range(_IN_FLIGHT)))

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        expected, text = ("positive", _PRAISE) if number % 2 else ("negative", _BLAME)
        body = {"model": "sentiment", "input": text.format(self._name, number)}
        try:
            response = await client.post("/v1/classify", json=body)
        except httpx.TransportError:
            self.broken += 1
            return
        self.statuses[response.status_code] += 1
        self.answered.append(response.headers["x-request-id"])
        if response.status_code == 200:
            label = response.json()["results"][0]["labels"][0]["label"]
            if label != expected:
                self.wrong.append(body["input"])


async def test_a_killed_backend_of_the_preferred_region_is_not_noticed(system: System) -> None:
    load = Load(system, "backend", count=200)
    killed: list[int] = []

    await load.run(then=lambda: killed.append(system.kill("backend", region="eu")), after=60)

    wait_until(
        lambda: system.replaced("backend", killed[0], region="eu"), within=60, what="it is replaced"
    )
    answered = set(load.answered)
    wait_until(
        lambda: answered <= set(events(system)), within=60, what="every answer is in the ledger"
    )
    assert load.statuses == {200: 200}
    assert load.broken == 0
    assert load.wrong == []


async def test_every_answer_is_billed_once_though_workers_are_killed(system: System) -> None:
    load = Load(system, "workers", count=250)
    before = set(events(system))
    killed: list[int] = []

    def kill() -> None:
        killed.append(system.kill("gateway"))
        killed.append(system.kill("billing"))

    await load.run(then=kill, after=100)
    wait_until(
        lambda: system.replaced("gateway", killed[0]) and system.replaced("billing", killed[1]),
        within=60,
        what="the killed workers are replaced",
    )
    answered = set(load.answered)
    wait_until(
        lambda: answered <= set(events(system)), within=60, what="every answer is in the ledger"
    )

    counted = Counter(events(system))
    assert load.statuses[200] == len(load.answered)
    assert len(answered) == len(load.answered)
    assert max(counted.values()) == 1
    assert len(set(counted) - answered - before) <= _IN_FLIGHT
    assert load.broken <= _IN_FLIGHT
    assert load.wrong == []


async def test_answers_go_on_without_either_valkey(system: System) -> None:
    """The cache is then a miss, limits a local share; nothing hangs and nothing is a 500."""
    load = Load(system, "valkey", count=100)
    pids = [system.processes(role)[0].pid for role in ("valkey-cache", "valkey-state")]

    def freeze() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    try:
        await load.run(then=freeze, after=30)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # replaced, where this took long
                os.kill(pid, signal.SIGCONT)

    assert set(load.statuses) <= {200, 429}
    assert load.statuses[200] > 50
    assert load.broken == 0
    answered = set(load.answered)
    wait_until(lambda: answered <= set(events(system)), within=60, what="answers are in the ledger")
    wait_until(lambda: is_whole(system), within=60, what="both are used again")


def is_whole(system: System) -> bool:
    """Return whether no worker lacks anything: each connection goes to some worker."""
    answers = [get(f"{system.url}/health/ready") for _ in range(8)]
    return all(one.status_code == 200 and not one.json().get("degraded") for one in answers)


def events(system: System) -> list[str]:
    """Return the ids of all events in the ledger, one for each time it was counted."""
    ledger = sqlite3.connect(f"file:{system.data_dir / 'ledger.db'}?mode=ro", uri=True)
    try:
        rows = ledger.execute("select id, requests from usage_events")
        return [id_ for first, count in rows for id_ in ids_from(first, count)]
    finally:
        ledger.close()
