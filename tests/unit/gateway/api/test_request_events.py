"""Memory hits of one event-loop iteration become one event for each caller and model."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.api.request_events import RequestEvents, RequestLines
from sluicegate.gateway.api.request_state import RequestIds
from sluicegate.gateway.events.hit_run import HitRun, ids_of
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogReader
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.types import RequestEvent
from tests.support.clock import Clock
from tests.support.events import make_event


class Scene:
    """A batch over a log on the disk."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.ids = RequestIds()
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry)
        self.log = EventLog(directory, name="w0", segment_bytes=4096)
        self.reader = LogReader(directory / self.log.id)
        self.hit_events = RequestEvents(
            ids=self.ids,
            events=self.log,
            metrics=self.metrics,
            loop_time=self.clock,
            wall=lambda: int(self.clock() * 1e9),
            lines=RequestLines(share=0.0, per_second=1),
        )

    def hit(self, run: HitRun) -> str:
        """Count one hit and return its request's id."""
        if run.count == run.max_count:
            assert self.hit_events.join(run)
        return self.ids.numbered(run.add())

    def kept(self) -> list[RequestEvent]:
        """Return what is in the log."""
        found: list[RequestEvent] = []
        while run := self.reader.read(100):
            found += [msgspec.msgpack.decode(p, type=RequestEvent) for p in run.payloads]
            self.reader.accept(run)
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.log.close()


def caller(tenant: str) -> HitRun:
    return HitRun(msgspec.structs.replace(make_event(1, tenant=tenant), id="req_" + "0" * 26))


def test_alike_hits_of_an_iteration_are_one_event_with_all_their_ids(scene: Scene) -> None:
    one, two = caller("one"), caller("two")

    given = [scene.hit(run) for run in (one, two, one, one, two)]
    early = scene.kept()
    scene.hit_events.commit()

    events = scene.kept()
    assert early == []
    assert [(e.tenant, e.count) for e in events] == [("one", 3), ("two", 2)]
    assert sorted(given) == sorted(id_ for event in events for id_ in ids_of(event))


def test_the_next_iteration_goes_on_with_ids_never_given_before(scene: Scene) -> None:
    run = caller("one")
    given = []
    for _ in range(3):
        given += [scene.hit(run) for _ in range(3000)]
        given.append(scene.ids.new())
        scene.hit_events.commit()

    known = [id_ for event in scene.kept() for id_ in ids_of(event)]
    assert len(set(given)) == len(given)
    assert sorted([*known, given[3000], given[6001], given[9002]]) == sorted(given)


def test_callers_who_come_once_use_few_ids(scene: Scene) -> None:
    first = scene.ids.reserve(0)
    for number in range(1000):
        scene.hit(caller(f"tenant-{number}"))
        scene.hit_events.commit()
        scene.kept()

    assert scene.ids.reserve(0) - first <= 4000


def test_an_iteration_has_one_time_and_the_duration_until_its_end(scene: Scene) -> None:
    run = caller("one")
    started = scene.clock()
    scene.hit(run)
    scene.clock.advance(0.25)
    scene.hit(run)
    scene.hit_events.commit()

    (event,) = scene.kept()
    assert event.time == int(started * 1e9)
    assert event.duration == pytest.approx(0.25)


def test_room_is_kept_while_other_events_fill_the_log(scene: Scene) -> None:
    runs = [caller(f"tenant-{number}") for number in range(10)]
    for run in runs:
        scene.hit(run)
    for number in range(100):
        scene.log.publish(make_event(number))
    scene.hit_events.commit()

    assert len(scene.kept()) == 110


def test_a_run_that_was_joined_for_nothing_is_no_event(scene: Scene) -> None:
    run = caller("one")
    assert scene.hit_events.join(run)
    scene.hit_events.commit()
    assert scene.kept() == []

    scene.hit(run)
    scene.hit_events.commit()
    assert [e.count for e in scene.kept()] == [1]


def test_a_log_that_takes_nothing_takes_no_hit(scene: Scene) -> None:
    scene.log.close()

    assert not scene.hit_events.join(caller("one"))


def test_every_request_of_a_run_is_counted(scene: Scene) -> None:
    run = caller("one")
    for _ in range(7):
        scene.hit(run)
    scene.hit_events.commit()
    scene.metrics.flush()

    labels = {"route": run.route, "model": run.model, "status": "200"}
    assert scene.registry.get_sample_value("sluicegate_requests_total", labels) == 7
