"""Usage is the same whether its days are summed or not, and late events are never left out."""

import itertools
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy
from sqlalchemy import func, select

from gateway.config.document import PriceConfig
from gateway.ledger import schema
from gateway.ledger.ledger import Ledger
from gateway.ledger.store import to_nanoseconds
from gateway.ledger.types import GroupBy, GroupUsage
from gateway.ledger.usage_blocks import Blocks, blocks_between
from gateway.ledger.usage_marks import DAY, HOUR
from gateway.ledger.usage_sums import LENGTHS
from gateway.types import RequestEvent
from testing.postgresql import PostgreSQL
from tests.support.events import make_event, make_usage
from tests.support.ledgers import Clock, record
from tests.support.older_ledgers import take_back

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
DAYS = 24
END = BEGIN + timedelta(days=DAYS)
PRICES = (
    PriceConfig(model="*", since="2026-01-01", hit=1, computed=10, batch_percent=50),
    PriceConfig(model="big", since="2026-05-14T09:00:00Z", hit=2, computed=20),
)
TASKS = ("classify", "tokenize")


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database, clock=Clock(to_nanoseconds(END) + 10 * DAY)) as opened:
        yield opened


def events(count: int = 240, *, first: int = 1) -> list[RequestEvent]:
    """Return events of most days, each in one of three hours: there are days without any."""
    chance = random.Random(first)
    times = [hour * HOUR + minute * HOUR // 60 for hour in (0, 13, 23) for minute in range(60)]
    found = []
    for number in range(first, first + count):
        day = chance.choice([day for day in range(DAYS) if day not in (0, 7, 8, 9, 20)])
        event = make_event(
            number,
            time=to_nanoseconds(BEGIN) + day * DAY + chance.choice(times),
            tenant=chance.choice(["acme", "globex", "initech"]),
            model=chance.choice(["big", "small", ""]),
            usage=make_usage(hit=chance.randrange(3), computed=chance.randrange(3), rows=1),
        )
        kind = {"task": chance.choice(TASKS), "batch": chance.choice([0, 1])}
        found.append(msgspec.structs.replace(event, **kind))
    return found


def seen(ledger: Ledger) -> list[list[GroupUsage]]:
    """Return what can be asked of usage, over times that begin and end within days too."""
    spans = [
        (BEGIN, END),
        (BEGIN - timedelta(days=99), END + timedelta(days=99)),
        (BEGIN + timedelta(days=3, hours=5), END - timedelta(days=2, hours=7)),
        (BEGIN + timedelta(hours=1), BEGIN + timedelta(hours=2)),
    ]
    groups: Sequence[Sequence[GroupBy]] = (
        *([], [GroupBy.DAY], [GroupBy.TENANT], [GroupBy.MODEL, GroupBy.DAY]),
        *([GroupBy.TENANT, GroupBy.MODEL], [GroupBy.HOUR], [GroupBy.TASK]),
    )
    whose: Sequence[tuple[str | None, list[str] | None]] = (
        *((None, None), ("acme", None), (None, ["acme", "globex"])),
    )
    every = itertools.product(spans, groups, whose, (None, ["big"]))
    # An eleventh, in which most pairs of values of different questions meet.
    asked = itertools.islice(every, 0, None, 11)
    return [
        ledger.usage(tenant, *span, group, prices=PRICES, tenants=tenants, models=models)
        for span, group, (tenant, tenants), models in asked
    ]


def add_up(ledger: Ledger, *, before: datetime = END + timedelta(days=3)) -> int:
    """Add up hours and days; return the number of transactions that summed days."""
    while ledger.rollup.add_up(before=to_nanoseconds(before), limit=5000):
        pass
    return sum(1 for _ in iter(ledger.rollup.sum_day, False)) + 1


def delete_events(database: str, *, before: datetime) -> None:
    """Delete events behind the ledger's back, so that only sums know of them."""
    engine = sqlalchemy.create_engine(database)
    with engine.begin() as connection:
        old = schema.usage_events.c.time < to_nanoseconds(before)
        connection.execute(schema.usage_events.delete().where(old))
    engine.dispose()


def record_as_schema_8(database: str, event: RequestEvent) -> None:
    """Do what billing of the version before does, which knows no sums."""
    engine = sqlalchemy.create_engine(database)
    marks, events = schema.usage_rollups, schema.usage_events
    hour = event.time - event.time % HOUR
    own = (marks.c.subject == "usage") & (marks.c.until > hour)
    values = {"id": event.id, "time": event.time, "hit": event.usage.hit, "requests": 1}
    values["is_summed"] = 0  # the default of the column, which it does not know
    with engine.begin() as connection:
        connection.execute(marks.update().where(own).values(until=hour))
        columns = list(events.columns)
        copied = [sqlalchemy.literal(values[c.name]) if c.name in values else c for c in columns]
        rows = select(*copied).limit(1)
        connection.execute(events.insert().from_select([c.name for c in columns], rows))
    engine.dispose()


def move_mark_as_schema_8(database: str) -> None:
    """Do what the roll-up of the version before does after it."""
    engine = sqlalchemy.create_engine(database)
    marks = schema.usage_rollups
    with engine.begin() as connection:
        own = marks.update().where(marks.c.subject == "usage")
        connection.execute(own.values(until=to_nanoseconds(END)))
    engine.dispose()


def requests(ledger: Ledger) -> int:
    return sum(row.requests for row in ledger.usage(None, BEGIN, END))


def test_usage_is_the_same_after_every_day_that_is_summed(ledger: Ledger) -> None:
    record(ledger, "w0-1", 240, events())
    before = seen(ledger)
    while ledger.rollup.add_up(before=to_nanoseconds(END), limit=5000):
        pass

    steps = 0
    while ledger.rollup.sum_day():
        steps += 1
        if steps % 11 == 0:
            assert seen(ledger) == before

    assert seen(ledger) == before
    assert steps >= DAYS - 5


def test_summed_days_are_read_from_sums_alone(ledger: Ledger, database: str) -> None:
    record(ledger, "w0-1", 240, events())
    groups: list[list[GroupBy]] = [[], [GroupBy.DAY], [GroupBy.TENANT], [GroupBy.MODEL]]
    before = [ledger.usage(None, BEGIN, END, group, prices=PRICES[:1]) for group in groups]
    add_up(ledger)

    delete_events(database, before=END)

    after = [ledger.usage(None, BEGIN, END, group, prices=PRICES[:1]) for group in groups]
    assert after == before


def test_the_name_of_all_tenants_together_is_no_tenant(ledger: Ledger) -> None:
    record(ledger, "w0-1", 240, events())
    add_up(ledger)

    assert ledger.usage("*", BEGIN, END) == []
    assert ledger.usage(None, BEGIN, END, [GroupBy.TENANT], tenants=["*"]) == []


def test_a_late_event_counts_at_once_and_after_its_day_is_summed_anew(ledger: Ledger) -> None:
    found = events(260)
    record(ledger, "w0-1", len(found) - 20, found[:-20])
    add_up(ledger)

    record(ledger, "w0-1", len(found), found[-20:])
    at_once = seen(ledger)
    steps = add_up(ledger)

    assert requests(ledger) == len(found)
    assert seen(ledger) == at_once
    assert steps > 1


def test_an_event_that_comes_again_is_not_summed_again(ledger: Ledger) -> None:
    found = events()
    record(ledger, "w0-1", len(found), found)
    add_up(ledger)

    record(ledger, "w0-1", len(found), found)
    add_up(ledger)

    assert requests(ledger) == len(found)


def test_a_day_is_summed_two_days_after_its_end(database: str) -> None:
    clock = Clock(to_nanoseconds(END))
    with Ledger.create(database, clock=clock) as ledger:
        found = events()
        record(ledger, "w0-1", len(found), found)
        add_up(ledger, before=BEGIN + timedelta(days=10, hours=5))

        delete_events(database, before=BEGIN + timedelta(days=10))

        young = [e for e in found if e.time >= to_nanoseconds(BEGIN) + 10 * DAY]
        assert requests(ledger) == len(found)
        later = ledger.usage(None, BEGIN + timedelta(days=10), END)
        assert sum(row.requests for row in later) == len(young)


@pytest.mark.parametrize("is_added_up", [False, True])
def test_sums_that_lack_an_event_of_the_program_before_are_not_used(
    ledger: Ledger, database: str, *, is_added_up: bool
) -> None:
    found = events()
    record(ledger, "w0-1", len(found), found)
    add_up(ledger)

    record_as_schema_8(database, make_event(9999, time=to_nanoseconds(BEGIN) + 5 * DAY))
    if is_added_up:
        move_mark_as_schema_8(database)

    assert requests(ledger) == len(found) + 1
    add_up(ledger)
    assert requests(ledger) == len(found) + 1


def test_a_ledger_of_schema_8_is_summed_in_steps(database: str) -> None:
    found = events()
    clock = Clock(to_nanoseconds(END) + 10 * DAY)
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", len(found), found)
        before = seen(ledger)
        while ledger.rollup.add_up(before=to_nanoseconds(END), limit=5000):
            pass
    engine = sqlalchemy.create_engine(database)
    with engine.begin() as connection:
        schema.usage_sums.drop(connection)
        schema.usage_hours.drop(connection)
        take_back(connection, 8)
        connection.exec_driver_sql("DELETE FROM usage_rollups WHERE subject <> 'usage'")
        mark = schema.usage_rollups.update().values(until=to_nanoseconds(END))
        connection.execute(mark)

    with Ledger.create(database, clock=clock) as again:
        at_first = seen(again)
        steps = add_up(again)
        afterwards = seen(again)

    with engine.connect() as connection:
        total = select(func.sum(schema.usage_sums.c.requests))
        summed = total.where(schema.usage_sums.c.tenant == "*", schema.usage_sums.c.length == 1)
        assert connection.scalar(summed) == len(found)
    engine.dispose()
    assert (at_first, afterwards) == (before, before)
    assert steps > DAYS / 2


@pytest.mark.system
def test_who_waits_for_the_marks_holds_no_log_that_another_may_wait_for(
    postgresql: PostgreSQL,
) -> None:
    database = postgresql.database()
    log = "SELECT * FROM high_water WHERE log_id = 'w0-1' FOR UPDATE NOWAIT"
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query LIKE '%%usage_rollups%%'"
    )
    clock = Clock(to_nanoseconds(END) + 10 * DAY)
    found = events(2)
    engine = sqlalchemy.create_engine(database)
    with Ledger.create(database, clock=clock) as ledger, ThreadPoolExecutor(1) as threads:
        record(ledger, "w0-1", 1, found[:1])
        with engine.begin() as other:
            other.execute(select(schema.usage_rollups).with_for_update())
            late = threads.submit(record, ledger, "w0-1", 2, found[1:])
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as third:
                while not third.exec_driver_sql(waiting).scalar():
                    assert not late.done()

            assert other.exec_driver_sql(log).one().sequence == 1

        assert late.result().counted == 1
    engine.dispose()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_make_up_the_days_without_gap_or_overlap(seed: int) -> None:
    chance = random.Random(seed)
    first = chance.randrange(20_000, 21_000)
    end = first + chance.randrange(1, 800)

    blocks = blocks_between(first, end, LENGTHS)

    edges = [first, *(block.end for block in blocks)]
    assert [block.first for block in blocks] == edges[:-1]
    assert edges[-1] == end
    assert all(block.first % block.length == 0 == block.end % block.length for block in blocks)
    assert sum((block.end - block.first) // block.length for block in blocks) < 20


def test_no_days_are_no_blocks_and_one_length_is_one_range() -> None:
    assert blocks_between(5, 5, LENGTHS) == []
    assert blocks_between(5, 9, (1,)) == [Blocks(length=1, first=5, end=9)]
