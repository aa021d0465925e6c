"""What every `EventPublisher` promises, asked of the log on disk and of the fake of the tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events.base import EventPublisher
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogReader
from sluicegate.gateway.types import RequestEvent
from tests.support.events import RecordedEvents, make_event


class Subject(NamedTuple):
    """A publisher, what it has kept, and a way to break it."""

    publisher: EventPublisher
    kept: Callable[[], list[RequestEvent]]
    fail: Callable[[], None]


@contextmanager
def on_disk(directory: Path) -> Iterator[Subject]:
    with EventLog(directory, name="w0") as log:

        def kept() -> list[RequestEvent]:
            reader = LogReader(directory / log.id)
            found: list[RequestEvent] = []
            while run := reader.read(100):
                found += [msgspec.msgpack.decode(p, type=RequestEvent) for p in run.payloads]
                reader.accept(run)
            return found

        yield Subject(log, kept, log.close)


@contextmanager
def in_memory(directory: Path) -> Iterator[Subject]:
    fake = RecordedEvents()

    def fail() -> None:
        fake.failing = True

    yield Subject(fake, lambda: fake.events, fail)


@pytest.fixture(params=[on_disk, in_memory])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    with request.param(tmp_path) as made:
        yield made


def test_events_are_kept_whole_and_in_order(subject: Subject) -> None:
    events = [make_event(number) for number in range(250)]

    for event in events:
        subject.publisher.publish(event)

    assert subject.kept() == events


def test_an_event_is_kept_by_the_time_publish_returns(subject: Subject) -> None:
    subject.publisher.publish(make_event(1))

    assert subject.kept() == [make_event(1)]


def test_a_publisher_that_cannot_keep_an_event_says_so(subject: Subject) -> None:
    subject.publisher.publish(make_event(1))
    subject.fail()

    with pytest.raises(EventLogUnavailable):
        subject.publisher.publish(make_event(2))

    assert subject.kept() == [make_event(1)]
