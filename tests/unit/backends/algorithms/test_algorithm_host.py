"""The queue of an algorithm's host: no item waits for a process that does not come."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sluicegate.backends.algorithms.algorithm_host import AlgorithmHost
from sluicegate.backends.algorithms.budget import Budget
from sluicegate.backends.algorithms.host_process import HostProcess
from sluicegate.backends.algorithms.hosted_item import HostedItem
from sluicegate.backends.algorithms.step_marks import StepMarks
from sluicegate.backends.errors import Overloaded
from testing.waiting import until
from tests.support.fake_models import asking

pytestmark = pytest.mark.anyio
FOREVER = "import signal; signal.pause()"


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


async def test_a_host_that_is_closed_while_its_process_starts_leaves_none_behind() -> None:
    began, goes_on = threading.Event(), threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def start_slowly(_: object) -> HostProcess:
        began.set()
        goes_on.wait()
        link, other = socket.socketpair()
        marks, descriptor = StepMarks.create()
        os.close(descriptor)
        other.close()
        process = subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
        started.append(process)
        return HostProcess(process, link, marks)

    host = AlgorithmHost(
        name="own", budget=Budget(), start=start_slowly, on_lost=lambda _reason: None
    )
    waiting = begin_item(host)
    await asyncio.to_thread(began.wait)

    host.close()
    goes_on.set()

    with pytest.raises(Overloaded):
        await waiting
    await until(lambda: bool(started) and has_ended(started[0].pid), what="the process is killed")


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
