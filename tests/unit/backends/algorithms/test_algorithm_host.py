"""The queue of an algorithm's host: no item waits for a process that does not come."""

import asyncio

import pytest

from backends.algorithms.algorithm_host import AlgorithmHost
from backends.algorithms.budget import Budget
from backends.algorithms.host_process import HostProcess
from backends.algorithms.hosted_item import HostedItem
from backends.errors import Overloaded
from tests.support.fake_models import asking

pytestmark = pytest.mark.anyio


def start_nothing(_: object) -> HostProcess:
    raise ValueError("there is no process")


def begin_item(host: AlgorithmHost) -> "asyncio.Task[bytes]":
    item = HostedItem(item=b"", parameters=b"", digest=b"", below={}, ask=asking(), rows=1)
    return asyncio.create_task(host.answer(item))


async def test_a_closed_host_refuses_what_waits_and_takes_later_items() -> None:
    host = AlgorithmHost(
        name="own", budget=Budget(), start=start_nothing, on_lost=lambda _reason: None
    )

    waiting = begin_item(host)
    asyncio.get_running_loop().call_soon(host.close)
    later = begin_item(host)

    async with asyncio.timeout(10.0):
        with pytest.raises(Overloaded, match="ended the algorithm's process"):
            await waiting
        with pytest.raises(Overloaded, match="does not start"):
            await later
