"""Usage is the sum of the rows of events, whatever totals there are and whoever wrote the rows."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.migrations import VERSION, add_columns, migrate
from sluicegate.gateway.ledger.store import to_datetime, to_nanoseconds
from sluicegate.gateway.ledger.types import GroupBy
from sluicegate.gateway.ledger.usage_marks import DAY, HOUR
from sluicegate.gateway.ledger.usage_sources import Blocks, blocks_between
from sluicegate.gateway.ledger.usage_totals import LENGTHS
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.types import RequestEvent, Usage
from testing.postgresql import PostgreSQL
from tests.support.events import make_event
from tests.support.ledgers import Clock, record
from tests.support.older_ledgers import (
    connected,
    record_as_schema_10,
    roll_up_as_schema_10,
    sum_hours_as_schema_10,
    take_back,
)

# PostgreSQL has a clock of its own, which decides when days have ended.
NOW = utc_now().replace(hour=9, minute=30, second=0, microsecond=0)
MINUTE = HOUR // 60
PRICES = (
    PriceConfig(model="*", since="2026-01-01", hit=1, computed=10, batch_percent=50),
    PriceConfig(model="big", since=(NOW - timedelta(days=6)).isoformat(), hit=2, computed=20),
)
GROUPS: Sequence[Sequence[GroupBy]] = (
    *([], [GroupBy.HOUR], [GroupBy.DAY], [GroupBy.TENANT], [GroupBy.MODEL], [GroupBy.TASK]),
    *([GroupBy.HOUR, GroupBy.TENANT], [GroupBy.DAY, GroupBy.MODEL], [GroupBy.HOUR, GroupBy.DAY]),
)
Key = tuple[str, ...]
Rows = Sequence[Mapping[str, Any]]
Asked = tuple[datetime, datetime, Sequence[GroupBy], Sequence[str] | None, Sequence[str] | None]


def event(number: int, chance: random.Random, time: int) -> RequestEvent:
    made = make_event(
        number,
        time=time,
        tenant=chance.choice(["acme", "globex", "initech"]),
        model=chance.choice(["big", "small", ""]),
        usage=Usage.of(hit=chance.randrange(3), computed=chance.randrange(3), rows=1),
    )
    return msgspec.structs.replace(
        made,
        task=chance.choice(["classify", "tokenize"]),
        batch=chance.choice([0, 1]),
        client_id=chance.choice(["", "order-1"]),
        backend_region=chance.choice(["", "eu"]),
    )


def events(count: int, *, first: int = 1, ages: tuple[int, int] = (0, 8)) -> list[RequestEvent]:
    """Return events whose ages, in days before `NOW`, are between these."""
    chance = random.Random(first)
    end = to_nanoseconds(NOW)
    return [
        event(number, chance, end - chance.randrange(ages[0] * DAY, ages[1] * DAY))
        for number in range(first, first + count)
    ]


def plain(rows: Rows, asked: Asked) -> dict[Key, Counter[str]]:
    """Return requests and items by group, from each row of the events."""
    since, until, groups, tenants, models = asked
    start, end = to_nanoseconds(since), to_nanoseconds(until)
    found: dict[Key, Counter[str]] = {}
    for row in rows:
        if not start <= row["time"] < end or (row["model"] == "" and GroupBy.MODEL in groups):
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


def shown(
    ledger: Ledger, asked: Asked, *, prices: Sequence[PriceConfig] = PRICES
) -> dict[Key, Counter[str]]:
    """Return what the ledger says is the usage."""
    since, until, groups, tenants, models = asked
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
    lengths = [
        *(timedelta(days=chance.randrange(500)), timedelta(hours=chance.randrange(400))),
        timedelta(minutes=chance.randrange(9999)),
    ]
    since = now.replace(minute=0, second=0, microsecond=0) - chance.choice(lengths)
    until = chance.choice([now + timedelta(seconds=1), since + chance.choice(lengths)])
    asked: list[Asked] = [
        (
            *(since, until, groups),
            chance.choice([None, ["acme"], ["acme", "initech"]]),
            chance.choice([None, ["big"]]),
        )
        for groups in chance.sample(GROUPS, 3)
    ]

    found = [shown(ledger, each) for each in asked]

    with connected(database) as connection:
        rows = [dict(row) for row in connection.execute(select(schema.usage_events)).mappings()]
    for each, usage in zip(asked, found, strict=True):
        assert usage == plain(rows, each), each


def catch_up(ledger: Ledger, *, limit: int = 100) -> int:
    """Do what billing does in its idle time; return the number of steps."""
    return sum(1 for _ in iter(partial(ledger.rollup.catch_up, limit=limit), False))


def roll_up(ledger: Ledger, *, before: datetime) -> None:
    while ledger.rollup.add_up(before=to_nanoseconds(before), limit=1000):
        pass


def totals(database: str) -> dict[int, int]:
    """Return the requests in all totals of each length."""
    table = schema.usage_totals.c
    query = select(table.length, func.sum(table.requests)).where(table.tenant == "*")
    with connected(database) as connection:
        found = connection.execute(query.group_by(table.length)).all()
    return {int(length): int(requests) for length, requests in found}


def mark_of_blocks(database: str) -> int:
    marks = schema.usage_rollups.c
    with connected(database) as connection:
        found = connection.scalar(select(marks.until).where(marks.subject == "usage.blocks"))
    assert found is not None
    return int(found)


def set_mark_of_blocks(database: str, until: int) -> None:
    marks = schema.usage_rollups
    own = marks.c.subject == "usage.blocks"
    with connected(database) as connection:
        connection.execute(marks.update().where(own).values(until=until))


def await_waiting(database: str, query: str, of: Future[Any]) -> None:
    """Wait until a statement that contains `query` waits for a lock, or until `of` is done."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    )
    is_waiting = False
    while not is_waiting and not of.done():
        with connected(database) as connection:
            is_waiting = bool(connection.exec_driver_sql(waiting, (f"%{query}%",)).scalar())


def delete_events(database: str, *, since: datetime, until: datetime) -> None:
    """Delete events behind the ledger's back, so that only totals know of them."""
    time = schema.usage_events.c.time
    own = (time >= to_nanoseconds(since)) & (time < to_nanoseconds(until))
    with connected(database) as connection:
        connection.execute(schema.usage_events.delete().where(own))


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
    clock = Clock(to_nanoseconds(NOW - timedelta(days=chance.randrange(300))))
    recorded: list[RequestEvent] = []
    with Ledger.create(database, clock=clock) as ledger:

        def event_of_late(*ages: int) -> RequestEvent:
            time = clock.now + MINUTE - chance.randrange(chance.choice(ages))
            recorded.append(event(len(recorded) + 1, chance, time))
            return recorded[-1]

        def record_new() -> None:
            for _ in range(chance.randrange(1, 9)):
                event_of_late(MINUTE, HOUR, DAY, 3 * DAY, 12 * DAY, 400 * DAY)
            count = min(len(recorded), chance.randrange(1, 12))  # some come again
            record(ledger, f"w{chance.randrange(2)}-{len(recorded)}", count, recorded[-count:])

        def record_as_before() -> None:
            made = event_of_late(HOUR, 5 * DAY, 100 * DAY)
            record_as_schema_10(database, made, is_summed=chance.randrange(2))

        steps: list[Callable[[], object]] = [
            *(record_new, record_new, record_new, record_as_before),
            lambda: clock.advance(chance.randrange(3600 * 18)),
            lambda: clock.advance(chance.randrange(3600 * 24 * 20)),
            lambda: clock.advance(-chance.randrange(3600 * 24 * 20)),
            lambda: roll_up_as_schema_10(database, chance.choice(recorded).time // HOUR),
            lambda: sum_hours_as_schema_10(database),
            lambda: ledger.rollup.add_up(before=clock.now - 3 * DAY, limit=20),
            *([lambda: ledger.rollup.catch_up(limit=3)] * 3),
            lambda: catch_up(ledger),
        ]
        record_new()
        for _ in range(60):
            chance.choice(steps)()
            check(ledger, database, clock, chance)


@pytest.mark.parametrize("is_late", [False, True])
def test_usage_is_read_from_totals_alone(database: str, *, is_late: bool) -> None:
    begin = NOW.replace(hour=0, minute=0) - timedelta(days=270)
    clock = Clock(to_nanoseconds(NOW if is_late else begin))
    with Ledger.create(database, clock=clock) as ledger:
        for number, made in enumerate(sorted(events(60, ages=(2, 270)), key=lambda e: e.time)):
            clock.now = max(clock.now, made.time)
            record(ledger, "w0-1", number + 1, [made])
            catch_up(ledger)
        asked: list[Asked] = [
            (begin, begin + timedelta(days=days), groups, tenants, None)
            for groups in ([], [GroupBy.DAY], [GroupBy.TENANT], [GroupBy.MODEL])
            for tenants in (None, ["acme"])
            for days in (31, 268)
        ]
        before = [shown(ledger, each, prices=PRICES[:1]) for each in asked]

        delete_events(database, since=begin, until=NOW)
        # The last event says up to which hour there are totals.
        record(ledger, "w0-2", 1, [event(9999, random.Random(1), to_nanoseconds(NOW))])

        assert [shown(ledger, each, prices=PRICES[:1]) for each in asked] == before


def test_recent_hours_and_days_are_read_from_totals_alone(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    since = NOW.replace(hour=0, minute=0) - timedelta(days=6)
    until = NOW + timedelta(hours=1)
    asked: list[Asked] = [
        (since, until, groups, None, None) for groups in GROUPS if GroupBy.TASK not in groups
    ]
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 400, events(400))
        before = [shown(ledger, each, prices=PRICES[:1]) for each in asked]

        delete_events(database, since=since, until=until)
        # The last event says up to which hour there are totals.
        record(ledger, "w0-2", 1, [event(9999, random.Random(1), to_nanoseconds(until))])

        assert [shown(ledger, each, prices=PRICES[:1]) for each in asked] == before


def test_the_name_of_all_tenants_together_is_no_tenant(database: str) -> None:
    with Ledger.create(database, clock=Clock(to_nanoseconds(NOW))) as ledger:
        record(ledger, "w0-1", 240, events(240))
        since = NOW - timedelta(days=9)

        assert ledger.usage("*", since, NOW) == []
        assert ledger.usage(None, since, NOW, [GroupBy.TENANT], tenants=["*"]) == []


@pytest.mark.parametrize("version", [10, 11])
def test_rows_of_older_schemas_are_added_to_the_totals_in_steps(
    database: str, version: int
) -> None:
    clock = Clock(to_nanoseconds(NOW))
    found = events(60, ages=(4, 300))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 60, found)
        catch_up(ledger)
        roll_up(ledger, before=NOW - timedelta(days=20))
        before = totals(database)
    with connected(database) as connection:
        take_back(connection, version)

    with Ledger.create(database, clock=clock) as again:
        check(again, database, clock, random.Random(1))
        steps = catch_up(again, limit=10)
        check(again, database, clock, random.Random(2))

    assert totals(database) == before
    assert before[24] == 60
    assert steps > 3


@pytest.mark.parametrize("version", [10, 11])
def test_a_backup_restored_over_a_newer_ledger_counts_once(database: str, version: int) -> None:
    clock = Clock(to_nanoseconds(NOW))
    found = events(60, ages=(0, 300))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 60, found)
        catch_up(ledger)
        before = totals(database)
    with connected(database) as connection:
        take_back(connection, version, keeps_totals=True)

    with Ledger(database, clock=clock) as again:
        check(again, database, clock, random.Random(1))
        catch_up(again)
        check(again, database, clock, random.Random(2))

    assert totals(database) == before
    assert before[24] == 60


def test_a_running_program_migrates_a_backup_that_was_restored(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    asked: Asked = (NOW - timedelta(days=9), NOW, [], None, None)
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 20, events(20))
        before = shown(ledger, asked)
        with connected(database) as connection:
            take_back(connection, 11, keeps_totals=True)
        with pytest.raises(DependencyUnavailable, match="replaced"):
            record(ledger, "w0-2", 1, [make_event(999, time=clock.now)])

        assert shown(ledger, asked) == before
        catch_up(ledger)
        assert shown(ledger, asked) == before


def test_programs_of_schema_10_use_no_sums_by_hour_any_more(database: str) -> None:
    with Ledger.create(database) as ledger:
        ledger.accounts.tenants()
    with connected(database) as connection:
        take_back(connection, 10)

    with Ledger.create(database) as again:
        again.accounts.tenants()

    marks = schema.usage_rollups.c
    with connected(database) as connection:
        kept = select(marks.until).where(marks.subject == "usage.kept_hours")
        assert connection.scalar(kept) == 2**63 - 1


def test_a_late_event_has_schema_10_sum_its_day_again(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    marks = schema.usage_rollups
    of_days = marks.c.subject == "usage.days"
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.tenants()
        with connected(database) as connection:
            connection.execute(marks.update().where(of_days).values(until=clock.now))

        record(ledger, "w0-1", 1, [make_event(1, time=clock.now - 30 * DAY)])

    with connected(database) as connection:
        until = connection.scalar(select(marks.c.until).where(of_days))
        assert until == (clock.now - 30 * DAY) // HOUR * HOUR


def test_a_migration_that_is_killed_is_made_anew(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 50, events(50))
    with connected(database) as connection:
        take_back(connection, 10)
    with pytest.raises(Killed):
        migrate_and_die(database)

    with Ledger.create(database, clock=clock) as again:
        record(again, "w0-1", 60, events(10, first=51))
        check(again, database, clock, random.Random(1))

    with connected(database) as connection:
        newest = select(func.max(schema.schema_migrations.c.version))
        assert connection.scalar(newest) == VERSION
    assert totals(database)[24] == 10


def test_a_sum_that_schema_10_adds_to_again_counts_once(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    hour = clock.now // HOUR - 100
    since = to_datetime(hour * HOUR)
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.tenants()
        for number in range(1, 4):
            late = msgspec.structs.replace(make_event(number), time=hour * HOUR + number)
            record_as_schema_10(database, late)
            roll_up_as_schema_10(database, hour)
            catch_up(ledger)
            (row,) = ledger.usage(None, since, since + timedelta(hours=1), [GroupBy.HOUR])

            assert row.requests == number


def test_rows_of_both_programs_are_rolled_up_apart(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    since = to_datetime((clock.now // HOUR - 100) * HOUR)
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 1, [make_event(1, time=to_nanoseconds(since))])
        record_as_schema_10(database, make_event(2, time=to_nanoseconds(since) + 1))

        assert ledger.rollup.add_up(before=clock.now, limit=10) == 2
        (at_first,) = ledger.usage(None, since, since + timedelta(hours=1), [GroupBy.HOUR])
        catch_up(ledger)
        (row,) = ledger.usage(None, since, since + timedelta(hours=1), [GroupBy.HOUR])

    assert (at_first.requests, row.requests) == (2, 2)


def test_old_totals_of_hours_are_deleted_and_their_events_still_count(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW - timedelta(days=4)))
    found = events(60, ages=(8, 13))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 60, found)
        clock.now = to_nanoseconds(NOW)
        record(ledger, "w0-2", 1, [make_event(999, time=clock.now)])
        catch_up(ledger)

        rows = ledger.usage(None, NOW - timedelta(days=14), NOW, [GroupBy.HOUR])
        assert sum(row.requests for row in rows) == 60
        check(ledger, database, clock, random.Random(1))
    since = to_nanoseconds(NOW) // DAY * DAY - 10 * DAY
    # A day less where midnight was during this test.
    kept = [1 + sum(1 for e in found if e.time >= begin) for begin in (since, since + DAY)]
    assert totals(database)[1] in kept


def test_a_day_is_joined_two_days_after_its_end(database: str) -> None:
    begin = to_nanoseconds(NOW) // DAY * DAY - 30 * DAY
    clock = Clock(begin + 2 * DAY)
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 1, [make_event(1, time=begin + 9 * DAY)])
        clock.now = begin + 3 * DAY - 1
        assert catch_up(ledger) == 0
        clock.now += 1
        assert catch_up(ledger) == 1

    assert mark_of_blocks(database) == begin + DAY


def test_a_clock_that_is_ahead_ends_no_days(database: str) -> None:
    begin = to_nanoseconds(NOW) // DAY * DAY - 60 * DAY
    clock = Clock(begin)
    found = [make_event(number, time=begin - number * 4 * HOUR) for number in range(1, 41)]
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 40, found)
        before = totals(database)[1]
        clock.now += 30 * DAY

        assert catch_up(ledger) == 0

    assert totals(database)[1] == before == 40


def test_a_mark_that_is_ahead_goes_back_and_usage_stays_right(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    found = events(90, ages=(0, 12))
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.tenants()
        set_mark_of_blocks(database, clock.now // DAY * DAY + 20 * DAY)
        record(ledger, "w0-1", 90, found)
        assert totals(database).get(1, 0) == 0

        while ledger.rollup.catch_up(limit=100):
            check(ledger, database, clock, random.Random(1))

        blocks = mark_of_blocks(database)
        assert clock.now - 2 * DAY < blocks <= clock.now - DAY
        assert totals(database)[1] == sum(e.time >= blocks - 8 * DAY for e in found)
        clock.advance(20 * 86400)
        record(ledger, "w0-2", 1, [make_event(999, time=clock.now)])
        catch_up(ledger)
        check(ledger, database, clock, random.Random(2))


@pytest.mark.system
def test_a_new_ledger_does_not_trust_a_clock_that_is_ahead(postgresql: PostgreSQL) -> None:
    database = postgresql.database()
    Ledger.create(database, clock=Clock(to_nanoseconds(NOW) + 400 * DAY)).close()

    assert mark_of_blocks(database) < to_nanoseconds(NOW)


def test_deleted_marks_and_totals_are_made_anew(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 60, events(60))
        before = totals(database)
        with connected(database) as connection:
            connection.execute(schema.usage_rollups.delete())

        with pytest.raises(DependencyUnavailable):
            record(ledger, "w0-1", 61, [make_event(999, time=clock.now)])
        check(ledger, database, clock, random.Random(1))
        assert catch_up(ledger, limit=10) > 3
        check(ledger, database, clock, random.Random(2))

    assert totals(database) == before


def test_blocks_go_on_while_an_old_program_records(database: str) -> None:
    begin = to_nanoseconds(NOW) // DAY * DAY - 30 * DAY
    clock = Clock(begin + 2 * DAY)
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.tenants()
        clock.now = begin + 9 * DAY
        for number in range(1, 4):
            record_as_schema_10(database, make_event(number, time=clock.now))
            ledger.rollup.catch_up(limit=100)

    assert mark_of_blocks(database) == begin + 3 * DAY


def test_usage_by_the_hour_of_centuries_is_read_at_once(database: str) -> None:
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger:
        record(ledger, "w0-1", 20, events(20))
        since, until = datetime(1700, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)

        for group in (GroupBy.HOUR, GroupBy.DAY, GroupBy.TENANT):
            rows = ledger.usage(None, since, until, [group])
            assert sum(row.requests for row in rows) == 20


@pytest.mark.system
def test_totals_of_concurrent_transactions_are_those_of_the_rows(postgresql: PostgreSQL) -> None:
    database = postgresql.database()
    clock = Clock(to_nanoseconds(NOW - timedelta(days=30)))
    found = events(1200, ages=(0, 70))

    def bill(worker: int) -> int:
        own = found[worker::3]
        log = f"w{worker}-1"
        with Ledger.create(database, clock=Clock(to_nanoseconds(NOW))) as ledger:
            return sum(
                record(ledger, log, first + 20, own[first : first + 20]).counted
                for first in range(0, len(own), 20)
            )

    with Ledger.create(database, clock=clock) as ledger, ThreadPoolExecutor(4) as threads:
        ledger.accounts.tenants()
        billed = [threads.submit(bill, worker) for worker in range(3)]
        number = 10_000
        while not all(one.done() for one in billed):
            number += 1
            record_as_schema_10(database, event(number, random.Random(number), clock.now))
            ledger.rollup.add_up(before=clock.now - 3 * DAY, limit=50)
            ledger.rollup.catch_up(limit=10)
        clock.now = to_nanoseconds(NOW)
        catch_up(ledger)

        assert sum(one.result() for one in billed) == len(found)
        assert totals(database)[24] == len(found) + number - 10_000
        for seed in range(10):
            check(ledger, database, clock, random.Random(seed))


@pytest.mark.system
def test_a_recorder_whose_clock_is_behind_loses_no_event(postgresql: PostgreSQL) -> None:
    """The mark moves past the event's day while the recorder has read it but not committed."""
    database = postgresql.database()
    present = to_nanoseconds(NOW)
    late = present - 4 * DAY
    with (
        Ledger.create(database, clock=Clock(present - 5 * DAY)) as recorder,
        Ledger(database, clock=Clock(present)) as billing,
        ThreadPoolExecutor(2) as threads,
    ):
        record(recorder, "w0-1", 1, [make_event(1, time=late)])
        record(billing, "w1-1", 1, [make_event(2, time=present)])
        former = mark_of_blocks(database)
        with connected(database) as other:
            other.execute(select(schema.usage_totals).with_for_update())
            recorded = threads.submit(record, recorder, "w0-1", 2, [make_event(3, time=late)])
            await_waiting(database, "INSERT INTO usage_totals", recorded)
            stepped = threads.submit(catch_up, billing)
            await_waiting(database, "pg_advisory_xact_lock", stepped)
            assert not recorded.done()
            assert mark_of_blocks(database) == former

        assert recorded.result().counted == 1
        stepped.result()
        catch_up(billing)
        asked: Asked = (NOW - timedelta(days=60), NOW + timedelta(days=1), [], None, None)
        assert shown(billing, asked)[()]["requests"] == 3
    assert totals(database)[48] == 2


@pytest.mark.system
def test_billing_goes_on_while_one_recorder_is_frozen(postgresql: PostgreSQL) -> None:
    database = postgresql.database()
    present = to_nanoseconds(NOW)
    late = present - 4 * DAY
    with (
        Ledger.create(database, clock=Clock(present - 5 * DAY)) as frozen,
        Ledger(database, clock=Clock(present)) as billing,
        ThreadPoolExecutor(2) as threads,
    ):
        record(frozen, "w0-1", 1, [make_event(1, time=late)])
        record(billing, "w1-1", 1, [make_event(2, time=present)])
        former = mark_of_blocks(database)
        with connected(database) as other:
            of_late = schema.usage_totals.c.hour <= late // HOUR
            other.execute(select(schema.usage_totals).where(of_late).with_for_update())
            recorded = threads.submit(record, frozen, "w0-1", 2, [make_event(3, time=late)])
            await_waiting(database, "INSERT INTO usage_totals", recorded)
            stepped = threads.submit(catch_up, billing)
            await_waiting(database, "pg_advisory_xact_lock", stepped)

            assert record(billing, "w1-1", 2, [make_event(4, time=present)]).counted == 1
            assert stepped.result() == 0
            assert not recorded.done()
            assert mark_of_blocks(database) == former

        assert recorded.result().counted == 1
        catch_up(billing)
        assert mark_of_blocks(database) > former
        check(billing, database, Clock(present), random.Random(1))


@pytest.mark.system
def test_a_transaction_waits_for_the_marks_before_it_locks_a_log(postgresql: PostgreSQL) -> None:
    database = postgresql.database()
    log = "SELECT * FROM high_water WHERE log_id = 'w0-1' FOR UPDATE NOWAIT"
    found = events(2, ages=(5, 9))
    clock = Clock(to_nanoseconds(NOW))
    with Ledger.create(database, clock=clock) as ledger, ThreadPoolExecutor(1) as threads:
        record(ledger, "w0-1", 1, found[:1])
        with connected(database) as other:
            other.execute(select(schema.usage_rollups).with_for_update())
            late = threads.submit(record, ledger, "w0-1", 2, found[1:])
            await_waiting(database, "usage_rollups", late)

            assert not late.done()
            assert other.exec_driver_sql(log).one().sequence == 1

        assert late.result().counted == 1


@pytest.mark.parametrize("seed", range(20))
def test_blocks_cover_the_hours_without_gap_or_overlap(seed: int) -> None:
    chance = random.Random(seed)
    first = chance.randrange(20_000 * 24, 21_000 * 24)
    end = first + chance.randrange(1, 800 * 24)

    blocks = blocks_between(first, end, LENGTHS)

    edges = [first, *(block.end for block in blocks)]
    assert [block.first for block in blocks] == edges[:-1]
    assert edges[-1] == end
    assert all(block.first % block.length == 0 == block.end % block.length for block in blocks)
    assert sum((block.end - block.first) // block.length for block in blocks) < 70


def test_no_hours_are_no_blocks_and_one_length_is_one_range() -> None:
    assert blocks_between(5, 5, LENGTHS) == []
    assert blocks_between(5, 9, (1,)) == [Blocks(length=1, first=5, end=9)]
