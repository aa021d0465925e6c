"""Tests workers that hang, exit or are stopped: no request is lost."""

import os
import signal

import httpx
import pytest

from testing.loopback import get, no_authorities
from testing.raw_http import post
from testing.system import System
from testing.waiting import until
from tests.support.steady_load import SteadyLoad
from tests.support.worker import classify

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


def load(system: System) -> SteadyLoad:
    """Return a load of 60 requests a second."""
    request = post("/v1/classify", classify("a gorgeous film", model="sentiment"), key=system.key)
    return SteadyLoad(system.port, request, rate=60.0)


def workers(system: System) -> list[int]:
    return [process.pid for process in system.processes("gateway")]


def test_new_connections_do_not_wait_for_a_worker_that_is_frozen(system: System) -> None:
    frozen = workers(system)[0]
    os.kill(frozen, signal.SIGSTOP)

    try:
        # Of so many some belong to the socket of the frozen worker, but for one run in 10^18.
        answers = [get(f"{system.url}/health/live", timeout=60.0) for _ in range(60)]
    finally:
        os.kill(frozen, signal.SIGCONT)

    assert [answer.status_code for answer in answers] == [200] * 60


async def test_a_worker_that_is_killed_costs_what_it_had_and_nothing_that_comes(
    system: System,
) -> None:
    victim = workers(system)[0]
    os.kill(victim, signal.SIGKILL)

    async with load(system) as sent:
        await until(lambda: system.replaced("gateway", victim), within=60, what="a successor")
        await until(lambda: sent.answered > 120, within=60)

    assert (set(sent.statuses), sent.refused, sent.broken) == ({200}, 0, [])


async def test_a_worker_that_is_replaced_loses_nothing(system: System) -> None:
    async with load(system) as sent:
        for leaving in workers(system):
            os.kill(leaving, signal.SIGTERM)
            await until(lambda pid=leaving: system.replaced("gateway", pid), within=60)  # type: ignore[misc]
        after = sent.answered
        await until(lambda: sent.answered > after + 60, within=60)

    assert (set(sent.statuses), sent.refused, sent.broken) == ({200}, 0, [])


async def test_a_gateway_that_is_stopped_loses_nothing(system: System) -> None:
    supervisor = system.processes("supervisor")[0].pid
    async with load(system) as sent:
        await until(lambda: sent.answered > 60, within=60)
        os.kill(supervisor, signal.SIGTERM)
        async with httpx.AsyncClient(timeout=60.0, verify=no_authorities()) as client:
            ready = await client.get(f"{system.url}/health/ready")
            while ready.status_code == 200:
                ready = await client.get(f"{system.url}/health/ready")
        told = sent.answered
        await until(lambda: sent.refused > 30, within=60, what="the end of accepting")

    assert ready.json()["missing"][0].startswith("draining: ")
    assert (set(sent.statuses), sent.broken) == ({200}, [])
    assert sent.answered > told
    assert system.wait() == 0
