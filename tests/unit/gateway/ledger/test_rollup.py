"""Old events are added up, and nobody who asks for usage can tell."""

import itertools
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy
from sqlalchemy import func, select

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.ledger import rollup, schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_nanoseconds
from sluicegate.gateway.ledger.types import EventBlock, GroupBy, GroupUsage, Invoice
from sluicegate.gateway.ledger.usage_marks import HOUR
from sluicegate.gateway.types import RequestEvent, Usage
from testing.postgresql import PostgreSQL
from testing.waiting import wait_until
from tests.support.events import make_event
from tests.support.ledgers import Clock, sums

BEGIN = datetime(2026, 9, 14, 20, tzinfo=UTC)
END = BEGIN + timedelta(hours=8)
PRICES = (
    PriceConfig(model="*", since="2026-01-01", hit=1, computed=10),
    PriceConfig(model="*", since="2026-09-15", hit=2, computed=20),
)
EVENTS = 400


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database, clock=Clock()) as opened:
        opened.accounts.create_tenant("acme")
        yield opened


def events(count: int = EVENTS, *, seed: int = 1) -> list[RequestEvent]:
    """Return events over eight hours, which cross a change of prices."""
    chance = random.Random(seed)
    span = to_nanoseconds(END) - to_nanoseconds(BEGIN)
    return [
        make_event(
            number,
            time=to_nanoseconds(BEGIN) + chance.randrange(span),
            tenant=chance.choice(["acme", "globex"]),
            key=chance.choice(["k1", "k2"]),
            model=chance.choice(["big", "small"]),
            usage=Usage.of(hit=chance.randrange(3), computed=chance.randrange(3), rows=1),
        )
        for number in range(count)
    ]


def seen(ledger: Ledger) -> tuple[list[list[GroupUsage]], Invoice]:
    """Return everything that can be asked of usage, in every hour and over all."""
    times = [BEGIN + timedelta(hours=hour) for hour in range(9)]
    spans = [*itertools.pairwise(times), (BEGIN, END), (times[1], times[5])]
    groups: list[list[GroupBy]] = [
        [],
        [GroupBy.MODEL, GroupBy.KEY],
        [GroupBy.DAY],
        [GroupBy.REGION],
    ]
    every = itertools.product(spans, ("acme", None), groups)
    # A seventh, in which most pairs of values of different questions meet.
    answers = [
        ledger.usage(tenant, since, until, grouped, prices=PRICES)
        for (since, until), tenant, grouped in itertools.islice(every, 0, None, 7)
    ]
    return answers, ledger.invoice("acme", "2026-09", PRICES)


def add_up(ledger: Ledger, *, before: datetime = END, limit: int = 50) -> int:
    total = 0
    while rows := ledger.rollup.add_up(before=to_nanoseconds(before), limit=limit):
        assert rows <= limit
        total += rows
    return total


def rows_in(database: str) -> int:
    engine = sqlalchemy.create_engine(database)
    try:
        with engine.begin() as connection:
            return connection.scalar(select(func.count()).select_from(schema.usage_events)) or 0
    finally:
        engine.dispose()


def block(found: Sequence[RequestEvent], first: int = 1) -> EventBlock:
    return EventBlock(log_id="w0-1", first=first, last=first + len(found) - 1, events=found)


def test_usage_and_invoices_are_the_same_after_every_step(ledger: Ledger, database: str) -> None:
    ledger.recorder.record([block(events())])
    before = seen(ledger)

    while ledger.rollup.add_up(before=to_nanoseconds(END), limit=150):
        assert seen(ledger) == before

    assert seen(ledger) == before
    assert sums(ledger).events == EVENTS
    # Eight hours, two tenants, two keys, two models.
    assert rows_in(database) == 64


def test_an_event_that_was_added_up_and_comes_again_is_not_counted_again(ledger: Ledger) -> None:
    found = events()
    ledger.recorder.record([block(found[:200]), block(found[300:], first=301)])
    before = seen(ledger)
    assert add_up(ledger) == 300

    known = ledger.recorder.record(
        [block(found[100:200], first=101), block(found[350:], first=351)]
    )
    assert (known.counted, known.duplicates, seen(ledger)) == (0, 150, before)

    rest = ledger.recorder.record([block(found[150:350], first=151)])
    assert (rest.counted, rest.duplicates) == (100, 100)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": EVENTS}
    assert sums(ledger).events == EVENTS


def test_the_roll_up_keeps_backend_regions_apart_and_forgets_ids_of_callers(
    ledger: Ledger, database: str
) -> None:
    found = [
        msgspec.structs.replace(
            make_event(number, time=to_nanoseconds(BEGIN) + number),
            client_id=f"order-{number}",
            backend_region=("eu", "us", "us")[number],
        )
        for number in range(3)
    ]
    ledger.recorder.record([block(found)])
    before = ledger.usage("acme", BEGIN, END, [GroupBy.BACKEND_REGION])

    assert add_up(ledger) == 3

    assert {row.backend_region: row.requests for row in before} == {"eu": 1, "us": 2}
    assert ledger.usage("acme", BEGIN, END, [GroupBy.BACKEND_REGION]) == before
    assert rows_in(database) == 2
    assert ledger.requests("acme", "order-1") == []


def test_what_is_younger_stays_as_it_is(ledger: Ledger, database: str) -> None:
    found = events()
    ledger.recorder.record([block(found)])
    old = [e for e in found if e.time < to_nanoseconds(BEGIN) + 3 * HOUR]

    added = add_up(ledger, before=BEGIN + timedelta(hours=3, minutes=59))

    assert added == len(old)
    assert rows_in(database) == EVENTS - len(old) + 24


def test_what_comes_late_is_added_to_its_hour(ledger: Ledger, database: str) -> None:
    found = events()
    ledger.recorder.record([block(found[:300])])
    add_up(ledger)

    ledger.recorder.record([block(found[300:], first=301)])

    assert add_up(ledger) == 100
    assert rows_in(database) == 64
    assert sums(ledger).events == EVENTS


def test_of_a_block_with_a_wrong_record_the_known_events_are_not_counted_again(
    ledger: Ledger,
) -> None:
    one, two, four = events(3)
    ledger.recorder.record([block([one, two])])
    add_up(ledger)

    torn = EventBlock(
        log_id="w0-1",
        first=1,
        last=4,
        events=[one, two, four],
        numbers=[1, 2, 4],
        wrong=[b"\x2a"],
    )
    recorded = ledger.recorder.record([torn])

    assert (recorded.counted, recorded.duplicates, recorded.dead) == (1, 2, 1)


def test_an_event_of_long_ago_has_no_transaction_look_at_every_hour_since(
    ledger: Ledger, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a transaction would keep others out, and where time ends it, be begun for ever."""
    monkeypatch.setattr(rollup, "_HOURS", 10)
    hours = 25
    begin, end = to_nanoseconds(BEGIN), BEGIN + timedelta(hours=hours)
    ledger.recorder.record([block([make_event(n, time=begin + n * HOUR) for n in range(hours)])])
    assert add_up(ledger, before=end) == hours
    ledger.recorder.record([block([make_event(hours, time=0)], first=hours + 1)])
    assert ledger.rollup.add_up(before=to_nanoseconds(end), limit=50) == 1

    seen_until: list[int] = []
    while not seen_until or seen_until[-1] < to_nanoseconds(end):
        assert ledger.rollup.add_up(before=to_nanoseconds(end), limit=50) == 0
        seen_until.append(looked_at(database))

    assert len(seen_until) > 2
    assert seen_until == sorted(set(seen_until))


def looked_at(database: str) -> int:
    engine = sqlalchemy.create_engine(database)
    try:
        with engine.begin() as connection:
            marks = schema.usage_rollups.c
            return connection.scalar(select(marks.until).where(marks.subject == "usage.hours")) or 0
    finally:
        engine.dispose()


@pytest.mark.system
def test_an_event_that_comes_late_during_a_step_is_added_up_by_a_later_one(
    postgresql: PostgreSQL,
) -> None:
    database, end = postgresql.database(), to_nanoseconds(END)
    engine = sqlalchemy.create_engine(database)
    waiting = sqlalchemy.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with Ledger.create(database, clock=Clock()) as ledger, ThreadPoolExecutor(1) as thread:
        ledger.recorder.record([block(events())])
        add_up(ledger)
        with engine.begin() as late:
            # As billing does that has not committed yet.
            late.execute(schema.usage_rollups.update().values(until=to_nanoseconds(BEGIN)))
            table = schema.usage_events
            copied = [c if c.name != "id" else sqlalchemy.literal("late") for c in table.columns]
            names = [c.name for c in table.columns]
            late.execute(table.insert().from_select(names, select(*copied).limit(1)))
            step = thread.submit(ledger.rollup.add_up, before=end, limit=50)
            with engine.connect() as other:
                wait_until(lambda: other.scalar(waiting) > 0, what="the step waits")

        assert step.result() + add_up(ledger) == 1
    engine.dispose()
