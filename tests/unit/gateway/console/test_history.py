"""The history of traffic: bounded, and told to those who watch."""

import asyncio

import pytest

from sluicegate.gateway.console.history import LENGTH, History
from sluicegate.gateway.console.traffic import Reading, RestartCause
from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.telemetry.metric_reading import Series

pytestmark = pytest.mark.anyio
_REQUESTS: Series = ("sluicegate_requests_total", (("model", ""), ("status", "200")))


class _Reader:
    """Reads a counter that grows by ten with each reading."""

    def __init__(self) -> None:
        self.value = 0.0

    def read(self) -> dict[Series, float]:
        self.value += 10.0
        return {_REQUESTS: self.value}


class _BrokenReader:
    """Cannot read."""

    def read(self) -> dict[Series, float]:
        raise OSError("the folder of the metrics is gone")


def history() -> History:
    return History(reader=_Reader(), clock=lambda: 0.0)


def test_points_older_than_half_an_hour_are_dropped() -> None:
    kept = history()

    for at in range(0, int(LENGTH) + 600, 5):
        kept.add(Reading(at=float(at), values={_REQUESTS: 10.0 * at}))

    assert kept.points[-1].at - kept.points[0].at <= LENGTH
    assert {point.requests for point in kept.points} == {10.0}


def test_a_restart_is_shown_for_minutes() -> None:
    kept, labels = history(), (("reason", "died"), ("role", "worker"))
    shown = {}

    for at in range(0, 600, 5):
        count = 3.0 if at < 100 else 4.0
        series: Series = ("sluicegate_process_restarts_total", labels)
        kept.add(Reading(at=float(at), values={series: count}))
        shown[at] = list(kept.traffic.restarts)

    assert [at for at, restarts in shown.items() if restarts] == list(range(100, 405, 5))
    assert shown[100] == [RestartCause(role="worker", reason="died")]


async def test_who_watches_is_told_of_each_reading_and_of_the_end() -> None:
    kept = history()
    stop = asyncio.Event()
    running = asyncio.create_task(kept.run(stop))

    with kept.watch():
        told = [await kept.next(), await kept.next()]
        stop.set()
        await running
        told.append(await kept.next())

    assert told == [True, True, False]


async def test_too_many_viewers_are_refused() -> None:
    kept = history()
    with pytest.raises(Overloaded):  # noqa: PT012 - each of them watches on
        viewers = [kept.watch() for _ in range(40)]
        for viewer in viewers:
            viewer.__enter__()
    with pytest.raises(Overloaded):
        kept.check_room()


async def test_metrics_that_cannot_be_read_end_neither_the_task_nor_the_pages() -> None:
    kept = History(reader=_BrokenReader(), clock=lambda: 0.0)
    stop = asyncio.Event()
    running = asyncio.create_task(kept.run(stop))

    with kept.watch():
        assert await kept.next()
        assert await kept.next()
    stop.set()

    await running
    assert kept.points == []
