"""Usage is that of the rows, whatever sums of hours there are and whoever wrote beside this."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, func, select

from gateway.config.document import PriceConfig
from gateway.ledger import schema
from gateway.ledger.ledger import Ledger
from gateway.ledger.migrations import VERSION, add_columns, migrate
from gateway.ledger.store import to_datetime, to_nanoseconds
from gateway.ledger.types import GroupBy
from gateway.ledger.usage_hours import HOUR_LENGTHS
from gateway.ledger.usage_marks import DAY, HOUR
from gateway.types import RequestEvent
from testing.postgresql import PostgreSQL
from tests.support.events import make_event, make_usage
from tests.support.ledgers import Clock, record
from tests.support.older_ledgers import (
    connected,
    record_as_schema_9,
    roll_up_as_schema_9,
    take_back_to_schema_9,
)

# PostgreSQL has a clock of its own, by which sums are deleted.
NOW = datetime.now(UTC).replace(hour=9, minute=30, second=0, microsecond=0)
MINUTE = HOUR // 60
PRICES = (
    PriceConfig(model="*", since="2026-01-01", hit=1, computed=10, batch_percent=50),
    PriceConfig(model="big", since=(NOW - timedelta(days=6)).isoformat(), hit=2, computed=20),
)
GROUPS: Sequence[Sequence[GroupBy]] = (
    *([], [GroupBy.HOUR], [GroupBy.DAY], [GroupBy.TENANT], [GroupBy.MODEL]),
    *([GroupBy.HOUR, GroupBy.TENANT], [GroupBy.DAY, GroupBy.MODEL], [GroupBy.HOUR, GroupBy.DAY]),
)
Key = tuple[str, ...]
Rows = Sequence[Mapping[str, Any]]


def event(number: int, chance: random.Random, time: int) -> RequestEvent:
    made = make_event(
        number,
        time=time,
        tenant=chance.choice(["acme", "globex", "initech"]),
        model=chance.choice(["big", "small", ""]),
        usage=make_usage(hit=chance.randrange(3), computed=chance.randrange(3), rows=1),
    )
    kind = {"task": chance.choice(["classify", "tokenize"]), "batch": chance.choice([0, 1])}
    return msgspec.structs.replace(made, **kind)


def events(count: int, *, first: int = 1, ages: tuple[int, int] = (0, 8)) -> list[RequestEvent]:
    """Return events whose ages, in days before `NOW`, are between these."""
    chance = random.Random(first)
    end = to_nanoseconds(NOW)
    return [
        event(number, chance, end - chance.randrange(ages[0] * DAY, ages[1] * DAY))
        for number in range(first, first + count)
    ]


def rows_of(database: str) -> Rows:
    """Return each row of the events."""
    with connected(database) as connection:
        return [dict(row) for row in connection.execute(select(schema.usage_events)).mappings()]


def plain(
    rows: Rows,
    since: datetime,
    until: datetime,
    groups: Sequence[GroupBy],
    tenants: Sequence[str] | None,
    models: Sequence[str] | None,
) -> dict[Key, Counter[str]]:
    """Return requests and items by group, from each row of the events."""
    start, end = to_nanoseconds(since), to_nanoseconds(until)
    found: dict[Key, Counter[str]] = {}
    for row in rows:
        if not start <= row["time"] < end or (groups and row["model"] == "" and by_model(groups)):
            continue
        if tenants is not None and row["tenant"] not in tenants:
            continue
        if models is not None and row["model"] not in models:
            continue
        moment = to_datetime(row["time"])
        values = {
            **row,
            "hour": moment.strftime("%Y-%m-%dT%H:00:00Z"),
            "day": moment.date().isoformat(),
        }
        sums = found.setdefault(tuple(str(values[group.value]) for group in groups), Counter())
        sums.update({name: row[name] for name in ("requests", "items", "computed", "rows")})
    return found


def by_model(groups: Sequence[GroupBy]) -> bool:
    return GroupBy.MODEL in groups


def shown(
    ledger: Ledger,
    since: datetime,
    until: datetime,
    groups: Sequence[GroupBy],
    tenants: Sequence[str] | None,
    models: Sequence[str] | None,
    *,
    prices: Sequence[PriceConfig] = PRICES,
) -> dict[Key, Counter[str]]:
    """Return what the ledger says is the usage."""
    rows = ledger.usage(None, since, until, groups, prices=prices, tenants=tenants, models=models)
    return {
        tuple(str(getattr(row, group.value)) for group in groups): Counter(
            {name: getattr(row, name) for name in ("requests", "items", "computed", "rows")}
        )
        for row in rows
    }


def check(ledger: Ledger, database: str, clock: Clock, chance: random.Random) -> None:
    """Compare usage of a time, which may begin and end within an hour, with that of the rows."""
    now = to_datetime(clock.now)
    lengths = [timedelta(hours=chance.randrange(400)), timedelta(minutes=chance.randrange(9999))]
    since = now.replace(minute=0, second=0, microsecond=0) - chance.choice(lengths)
    until = chance.choice([now + timedelta(seconds=1), since + chance.choice(lengths)])
    asked = [
        (
            *(since, until, groups),
            chance.choice([None, ["acme"], ["acme", "initech"]]),
            chance.choice([None, ["big"]]),
        )
        for groups in chance.sample(GROUPS, 3)
    ]

    found = [shown(ledger, *each) for each in asked]

    rows = rows_of(database)
    for each, usage in zip(asked, found, strict=True):
        assert usage == plain(rows, *each), each


def add_up(ledger: Ledger, clock: Clock) -> int:
    """Do what billing does in its idle time; return how many hours it summed or deleted."""
    while ledger.rollup.add_up(before=clock.now - 3 * DAY, limit=1000):
        pass
    while ledger.rollup.sum_day():
        pass
    return sum(1 for _ in iter(ledger.rollup.keep_hours, False))


def summed_hours(connection: Connection) -> dict[int, int]:
    """Return the requests of all sums of an hour, and of those of a day."""
    hours = schema.usage_hours.c
    query = select(func.coalesce(func.sum(hours.requests), 0)).where(hours.tenant == "*")
    return {
        length: int(connection.execute(query.where(hours.length == length)).scalar_one())
        for length in HOUR_LENGTHS
    }


def delete_events(database: str, *, since: int) -> None:
    """Delete events behind the ledger's back, so that only sums know of them."""
    with connected(database) as connection:
        recent = schema.usage_events.c.time >= since
        connection.execute(schema.usage_events.delete().where(recent))


class Killed(Exception):
    """Ends a transaction as the end of its process does."""


def migrate_and_die(database: str) -> None:
    """Migrate the tables, but for the last step of the transaction."""
    with connected(database) as connection:
        if connection.dialect.name == "sqlite":  # whose driver begins none before a table
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        add_columns(connection)
        migrate(connection, insert_new=lambda *_: 0, now=1)
        raise Killed


@pytest.mark.parametrize("seed", range(2))
def test_usage_is_that_of_the_rows_after_every_step(database: str, seed: int) -> None:
    chance = random.Random(seed)
    clock = Clock(to_nanoseconds(NOW))
    recorded: list[RequestEvent] = []
    with Ledger.create(database, clock=clock) as ledger:

        def record_new() -> None:
            ages = [MINUTE, HOUR, DAY, 3 * DAY, 12 * DAY]
            for _ in range(chance.randrange(1, 9)):
                time = clock.now + MINUTE - chance.randrange(chance.choice(ages))
                recorded.append(event(len(recorded) + 1, chance, time))
            count = min(len(recorded), chance.randrange(1, 12))  # some come again
            record(ledger, f"w{chance.randrange(2)}-{len(recorded)}", count, recorded[-count:])

        def record_as_before() -> None:
            time = clock.now - chance.randrange(chance.choice([HOUR, 5 * DAY]))
            recorded.append(event(len(recorded) + 1, chance, time))
            record_as_schema_9(database, recorded[-1])

        def roll_up_as_before() -> None:
            roll_up_as_schema_9(database, clock.now // HOUR - chance.randrange(60, 120))

        def go_on() -> None:
            clock.advance(chance.randrange(3600 * 18))

        steps = [
            *(record_new, record_new, record_new, go_on, record_as_before, roll_up_as_before),
            lambda: ledger.rollup.add_up(before=clock.now - 3 * DAY, limit=20),
            ledger.rollup.sum_day,
            lambda: add_up(ledger, clock),
            *([ledger.rollup.keep_hours] * 2),
        ]
        for _ in range(40):
            chance.choice(steps)()
            check(ledger, database, clock, chance)


def test_recent_hours_and_days_are_read_from_sums_alone(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    since = NOW.replace(hour=0, minute=0) - timedelta(days=6)
    until = NOW + timedelta(hours=1)

    def seen() -> list[dict[Key, Counter[str]]]:
        wanted = (None, None)
        return [shown(ledger, since, until, g, *wanted, prices=PRICES[:1]) for g in GROUPS]

    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 400, events(400))
        before = seen()

        delete_events(database, since=to_nanoseconds(since))
        # The last event says up to which hour there are sums.
        record(ledger, "w0-2", 1, [event(9999, random.Random(1), to_nanoseconds(until))])

        assert seen() == before


def test_hours_of_an_older_program_are_summed_in_steps_once_they_were_added_up(
    database: str,
) -> None:
    clock = Clock(to_nanoseconds(NOW))
    found = events(60, ages=(4, 8))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 60, found)
    with connected(database) as connection:
        take_back_to_schema_9(connection)

    with Ledger.create(database, clock=clock) as again:
        check(again, database, clock, random.Random(1))
        steps = add_up(again, clock)
        check(again, database, clock, random.Random(2))

    with connected(database) as connection:
        assert summed_hours(connection) == {1: 60, 24: 60}
    assert steps == len({e.time // HOUR for e in found})


def test_an_hour_of_an_older_program_is_not_summed_before_it_was_added_up(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 50, events(50))
        record_as_schema_9(database, event(51, random.Random(1), clock.now))

        assert add_up(ledger, clock) == 0
        check(ledger, database, clock, random.Random(1))


def test_a_migration_that_is_killed_is_made_anew(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 50, events(50))
    with connected(database) as connection:
        take_back_to_schema_9(connection)
    with pytest.raises(Killed):
        migrate_and_die(database)

    with Ledger.create(database, clock=clock) as again:
        record(again, "w0-1", 60, events(10, first=51))
        check(again, database, clock, random.Random(1))

    with connected(database) as connection:
        newest = select(func.max(schema.schema_migrations.c.version))
        assert connection.scalar(newest) == VERSION
        assert summed_hours(connection) == {1: 10, 24: 10}


def test_a_row_that_an_older_program_adds_up_again_is_noticed(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    hour = clock.now // HOUR - 100
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.tenants()
        for number in range(1, 4):
            late = event(1, random.Random(1), hour * HOUR + number)
            late = msgspec.structs.replace(late, id=make_event(number).id)
            record_as_schema_9(database, late)
            roll_up_as_schema_9(database, hour)
            add_up(ledger, clock)
            since = to_datetime(hour * HOUR)
            (row,) = ledger.usage(None, since, since + timedelta(hours=1), [GroupBy.HOUR])

            assert row.requests == number


def test_rows_of_both_programs_are_added_up_apart(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    since = to_datetime((clock.now // HOUR - 100) * HOUR)
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 1, [make_event(1, time=to_nanoseconds(since))])
        record_as_schema_9(database, make_event(2, time=to_nanoseconds(since) + 1))

        assert ledger.rollup.add_up(before=clock.now, limit=10) == 2
        (at_first,) = ledger.usage(None, since, since + timedelta(hours=1), [GroupBy.HOUR])
        add_up(ledger, clock)
        (row,) = ledger.usage(None, since, since + timedelta(hours=1), [GroupBy.HOUR])

    assert (at_first.requests, row.requests) == (2, 2)


def test_sums_older_than_ten_days_are_deleted_and_their_events_still_count(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    found = events(60, ages=(8, 13))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 60, found)
        add_up(ledger, clock)

        rows = ledger.usage(None, NOW - timedelta(days=14), NOW, [GroupBy.HOUR])
        assert sum(row.requests for row in rows) == 60
        check(ledger, database, clock, random.Random(1))
    since = to_nanoseconds(NOW) // DAY * DAY - 10 * DAY
    # A day less where midnight was during this test.
    kept = [sum(1 for e in found if e.time >= begin) for begin in (since, since + DAY)]
    with connected(database) as connection:
        assert summed_hours(connection) in [{1: one, 24: one} for one in kept]


def test_usage_by_the_hour_of_centuries_is_read_at_once(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 20, events(20))
        since, until = datetime(1700, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)

        rows = ledger.usage(None, since, until, [GroupBy.HOUR])

        assert sum(row.requests for row in rows) == 20


@pytest.mark.system
def test_sums_of_those_who_record_at_once_are_those_of_the_rows(postgresql: PostgreSQL) -> None:
    database = postgresql.database()
    clock = Clock(to_nanoseconds(NOW))
    found = events(1200, ages=(0, 5))

    def bill(worker: int) -> int:
        own = found[worker::3]
        with Ledger.create(database, clock=clock) as ledger:
            log = f"w{worker}-1"
            return sum(
                record(ledger, log, first + 20, own[first : first + 20]).counted
                for first in range(0, len(own), 20)
            )

    with Ledger.create(database, clock=clock) as ledger, ThreadPoolExecutor(4) as threads:
        ledger.accounts.tenants()
        billed = [threads.submit(bill, worker) for worker in range(3)]
        while not all(one.done() for one in billed):
            ledger.rollup.add_up(before=clock.now - 3 * DAY, limit=50)
            ledger.rollup.keep_hours()

        assert sum(one.result() for one in billed) == len(found)
        check(ledger, database, clock, random.Random(1))
        with connected(database) as connection:
            assert summed_hours(connection) == {1: len(found), 24: len(found)}
