"""Programs of one schema and of the one before use a ledger at the same time."""

import msgspec
import pytest
import sqlalchemy
from sqlalchemy import func, select

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.migrations import MIGRATIONS, VERSION, add_columns
from sluicegate.gateway.ledger.store import to_datetime
from sluicegate.gateway.ledger.types import GroupBy
from tests.support.events import START, make_event
from tests.support.ledgers import Clock, record, tables_of
from tests.support.older_ledgers import connected, record_as_schema_10, take_back

HOUR = 3_600 * 1_000_000_000
START_TIME, END_TIME = to_datetime(START), to_datetime(START + HOUR)


def add_migration(url: str, version: int, *, compatible_from: int) -> None:
    row = {"version": version, "compatible_from": compatible_from, "applied": 1}
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.insert(schema.schema_migrations), row)
    finally:
        engine.dispose()


def hits(ledger: Ledger) -> int:
    rows = ledger.usage(None, START_TIME, END_TIME)
    return sum(row.hit for row in rows)


def test_a_program_of_the_version_before_goes_on_beside_this_one(database: str) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
    with connected(database) as connection:
        take_back(connection, 10)
    record_as_schema_10(database, make_event(2))

    with Ledger.create(database, clock=Clock()) as again:
        record(again, "w0-1", 2, [make_event(3)])
        record_as_schema_10(database, make_event(4))

        assert hits(again) == 4


def test_a_program_of_the_version_before_uses_a_ledger_that_this_one_made(database: str) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
        record_as_schema_10(database, make_event(2))

        assert hits(ledger) == 2
    with connected(database) as connection:
        oldest = select(func.max(schema.schema_migrations.c.compatible_from))
        assert connection.scalar(oldest) == 10
        indexes = sqlalchemy.inspect(connection).get_indexes("usage_events")
    assert {"usage_hours", "usage_sums"} <= set(tables_of(database))
    assert "usage_events_not_summed" in {index["name"] for index in indexes}


def test_a_later_schema_that_allows_it_is_used(database: str) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
    add_migration(database, VERSION + 1, compatible_from=VERSION)

    with Ledger.create(database, clock=Clock()) as again:
        assert hits(again) == 1


def test_past_events_are_left_to_programs_that_know_a_later_schema(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
        add_migration(database, VERSION + 1, compatible_from=VERSION)

        later = START + 2 * HOUR
        assert not ledger.rollup.catch_up(limit=10)
        assert not ledger.rollup.add_up(before=later, limit=10)
        assert [each.message for each in caplog.records] == [
            "usage is not summed: a later program has migrated the ledger"
        ]
        with connected(database) as connection:
            connection.execute(
                sqlalchemy.delete(schema.schema_migrations).where(
                    schema.schema_migrations.c.version > VERSION
                )
            )
        assert ledger.rollup.add_up(before=later, limit=10) == 1


def test_a_later_schema_that_does_not_allow_it_is_refused(database: str) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
    later = VERSION + 1
    add_migration(database, later, compatible_from=later)

    with (
        Ledger(database, clock=Clock()) as again,
        pytest.raises(
            DependencyUnavailable,
            match=f"schema {later}, .*{VERSION}",
        ),
    ):
        again.accounts.tenants()


def test_every_migration_lets_the_version_before_go_on() -> None:
    versions = [migration.version for migration in MIGRATIONS]

    assert versions == sorted(set(versions))
    # Schema 2 came before that rule.
    assert all(m.compatible_from < m.version for m in MIGRATIONS if m.version > 2)


def test_a_ledger_of_schema_4_gets_the_columns_of_later_ones(database: str) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
    with connected(database) as connection:
        take_back(connection, 4)
        connection.exec_driver_sql("DROP TABLE batches")

    with Ledger.create(database, clock=Clock()) as again:
        assert hits(again) == 1
        assert again.batches.page("acme", limit=1) == []


def test_a_migration_that_was_interrupted_is_finished(database: str) -> None:
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
    with connected(database) as connection:
        take_back(connection, 10)
        add_columns(connection)

    with Ledger(database, clock=Clock()) as again:
        record(again, "w0-2", 1, [make_event(2)])
        assert hits(again) == 2
    with connected(database) as connection:
        indexes = sqlalchemy.inspect(connection).get_indexes("usage_events")
    assert "usage_events_client_id" in {index["name"] for index in indexes}


def test_a_program_of_schema_10_records_events_beside_this_one(database: str) -> None:
    """It does not know the fields that this program adds to usage events."""
    with Ledger.create(database, clock=Clock()) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
    with connected(database) as connection:
        take_back(connection, 10)
    own = msgspec.structs.replace(make_event(3), client_id="order-1", backend_region="us")

    with Ledger.create(database, clock=Clock()) as again:
        record_as_schema_10(database, make_event(2))
        record(again, "w0-2", 1, [own])
        found = [again.request("acme", make_event(number).id) for number in (1, 2, 3)]
        rows = again.usage(None, START_TIME, END_TIME, [GroupBy.BACKEND_REGION])

    assert [(one.client_id, one.backend_region) for one in found if one is not None] == [
        ("", ""),
        ("", ""),
        ("order-1", "us"),
    ]
    assert {row.backend_region: row.hit for row in rows} == {"": 2, "us": 1}
