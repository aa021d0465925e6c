"""A worker that is offered many times what it can do refuses the rest, on a real event loop.

How much it does meanwhile depends on the machine: `test_overload_simulation` has that, on a virtual
clock.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar  # Any: arguments that are passed on

import pytest

from loadtests.generator import Answer, Target
from loadtests.open_loop import open_loop
from sluicegate.gateway.inference.coalescing import ItemWaits
from testing.raw_http import KEY
from testing.stub_backend import StubBackend
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
T = TypeVar("T")
_COST = 0.016
"""Seconds that the event loop is held for each miss, as if other processes had the core."""
_CAPACITY = 1 / _COST
_TIMEOUT = 60.0
"""Seconds that callers wait: nobody is late, however slow the machine is."""
_SPIKE = 2.0
"""Seconds."""


class OtherLoop:
    """Runs the backend and the callers, as the event loop of the worker is busy."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()


@pytest.fixture
async def elsewhere(anyio_backend: str) -> AsyncIterator[OtherLoop]:
    other = OtherLoop()
    with other.running():
        yield other


@pytest.fixture
async def worker(
    tmp_path: Path, valkey: str, elsewhere: OtherLoop, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningWorker]:
    stub = StubBackend()
    await elsewhere.run(stub.start())
    async with running_worker(
        tmp_path, valkey, [stub], routing={"probe_timeout": 5.0}, own={"max_loop_delay": 0.05}
    ) as running:
        inference = running.parts.path.inference
        monkeypatch.setattr(inference, "compute", slow(inference.compute))
        yield running
    await elsewhere.run(stub.stop())


def slow(compute: Callable[..., ItemWaits]) -> Callable[..., ItemWaits]:
    nothing = Event()

    def compute_slowly(*values: Any) -> ItemWaits:
        nothing.wait(_COST)
        return compute(*values)

    return compute_slowly


def load(
    running: RunningWorker, kind: str, *, times: float, seconds: float
) -> Coroutine[Any, Any, list[Answer]]:
    """Send `times` what the worker can do."""
    fields = {
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "x-request-timeout": str(_TIMEOUT),
    }
    target = Target(
        host="127.0.0.1",
        port=running.port,
        path="/v1/classify",
        headers=tuple(fields.items()),
    )
    bodies = (classify(f"{kind} {number}") for number in range(1_000_000))
    rate = times * _CAPACITY
    return open_loop(target, bodies, rate=rate, duration=seconds, connections=32, patience=_TIMEOUT)


async def test_a_worker_without_processor_time_does_what_it_can(
    worker: RunningWorker, elsewhere: OtherLoop
) -> None:
    """What it cannot do is refused; some are answered meanwhile, before and after."""
    before = await elsewhere.run(load(worker, "before", times=0.5, seconds=0.5))
    spike = await elsewhere.run(load(worker, "spike", times=6.0, seconds=_SPIKE))
    after = await elsewhere.run(load(worker, "after", times=0.4, seconds=0.5))

    assert 200 in {one.status for one in before}
    assert 200 in {one.status for one in after}
    assert {one.status for one in spike} == {200, 503}
    refused = [one for one in spike if one.status == 503]
    assert all(b"\r\nretry-after: " in one.head for one in refused)
    # A probe that such a worker makes may fail, too: then no backend is there for a while.
    assert any(b'"code":"overloaded"' in one.body for one in refused)
