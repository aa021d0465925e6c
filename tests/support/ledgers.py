"""Opens a ledger for one test in a file of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import create_engine, func, inspect, make_url, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import EventBlock, Recorded
from sluicegate.gateway.types import Principal, RequestEvent
from tests.support.events import START


class Clock:
    """Nanoseconds since the epoch that a test sets."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += int(seconds * 1_000_000_000)


@contextmanager
def open_ledger(directory: Path, clock: Clock | None = None) -> Iterator[Ledger]:
    """Open the SQLite ledger in `directory`."""
    with Ledger.create(ledger_url(directory), clock=clock or Clock()) as ledger:
        yield ledger


def ledger_url(directory: Path) -> str:
    """Return the URL of the SQLite ledger in `directory`."""
    return f"sqlite:///{directory / 'ledger.db'}"


def record(
    ledger: Ledger, log_id: str, high_water: int, events: Sequence[RequestEvent]
) -> Recorded:
    """Record events of a log; the last has the sequence number `high_water`."""
    first = high_water - len(events) + 1
    block = EventBlock(log_id=log_id, first=first, last=high_water, events=events)
    return ledger.recorder.record([block])


def principals(ledger: Ledger) -> dict[str, Principal]:
    """Return the principals of valid keys, by the hash of a key's secret."""
    changes = ledger.principals.changes(None)
    return {} if changes is None else dict(changes.principals)


class LedgerSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a whole ledger."""

    events: int
    dead_letters: int
    lost: int
    waiting: int
    """Events after a high-water mark: a block before them is still missing."""


def sums(ledger: Ledger) -> LedgerSums:
    """Return sums over the whole ledger."""
    gaps, ranges = schema.gaps.c, schema.ranges.c
    queries = (
        select(func.sum(schema.usage_events.c.requests)),
        select(func.count()).select_from(schema.dead_letters),
        select(func.sum(gaps.last - gaps.first + 1)),
        select(func.sum(ranges.last - ranges.first + 1)),
    )
    with ledger.recorder._store.reading() as connection:
        events, dead, lost, waiting = (int(connection.scalar(q) or 0) for q in queries)
    return LedgerSums(events=events, dead_letters=dead, lost=lost, waiting=waiting)


@contextmanager
def emptied(database: str) -> Iterator[None]:
    """Take all that is in a database away meanwhile: the file of SQLite, PostgreSQL's schema."""
    url = make_url(database)
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database))
        away = file.rename(file.with_suffix(".away"))
        yield
        away.replace(file)
        return
    options = str(url.query["options"])
    name = options.removeprefix("-csearch_path=")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER SCHEMA {name} RENAME TO {name}_away")
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
            yield
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
            connection.exec_driver_sql(f"ALTER SCHEMA {name}_away RENAME TO {name}")
    finally:
        engine.dispose()


def tables_of(database: str) -> list[str]:
    """Return the tables in a database; a file of SQLite that does not exist has none."""
    url = make_url(database)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return []
    engine = create_engine(url)
    try:
        return inspect(engine).get_table_names()
    finally:
        engine.dispose()
