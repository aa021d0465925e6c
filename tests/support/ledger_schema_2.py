"""Replays the SQL that a program of ledger schema 2 sends to a database."""

from types import TracebackType
from typing import Final, Self

import sqlalchemy
from sqlalchemy import Connection

_NUMBERS: Final = ["items", "hit", "collapsed", "computed", "failed", "rows", "tokens"]
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL PRIMARY KEY)",
    (
        "CREATE TABLE IF NOT EXISTS tenants (id VARCHAR(64) NOT NULL PRIMARY KEY,"
        " name TEXT NOT NULL, rules TEXT NOT NULL, created BIGINT NOT NULL)"
    ),
    "CREATE TABLE IF NOT EXISTS usage_events (id VARCHAR(128) NOT NULL PRIMARY KEY,"
    " time BIGINT NOT NULL, tenant VARCHAR(64) NOT NULL, key VARCHAR(64) NOT NULL,"
    " model TEXT NOT NULL, task TEXT NOT NULL, status INTEGER NOT NULL, "
    + ", ".join(f"{name} BIGINT NOT NULL" for name in _NUMBERS)
    + ", region TEXT NOT NULL, revision TEXT NOT NULL, code TEXT NOT NULL,"
    " requests BIGINT DEFAULT '1' NOT NULL)",
    "CREATE INDEX IF NOT EXISTS usage_events_time ON usage_events (time)",
    (
        "CREATE TABLE IF NOT EXISTS high_water (log_id VARCHAR(128) NOT NULL PRIMARY KEY,"
        " sequence BIGINT NOT NULL)"
    ),
    (
        "CREATE TABLE IF NOT EXISTS prices (model VARCHAR(255) NOT NULL,"
        " since VARCHAR(64) NOT NULL, recorded BIGINT NOT NULL, currency VARCHAR(8) NOT NULL,"
        " hit BIGINT NOT NULL, computed BIGINT NOT NULL, row BIGINT NOT NULL,"
        " token BIGINT NOT NULL, PRIMARY KEY (model, since, recorded))"
    ),
)


class ProgramOfSchema2:
    """The program of the version before, on the database at `url`."""

    def __init__(self, url: str) -> None:
        self._engine = sqlalchemy.create_engine(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.dispose()

    def start(self) -> None:
        """Make the tables that are missing, and check the version as it did."""
        with self._engine.begin() as connection:
            for statement in _TABLES:
                connection.exec_driver_sql(_quoted(connection, statement))
            newest = _scalar(connection, "SELECT max(version) FROM schema_version")
            connection.exec_driver_sql(
                "INSERT INTO schema_version VALUES (2) ON CONFLICT DO NOTHING"
            )
            assert newest in (None, 2), f"the ledger has schema {newest}, this program knows 2"

    def record(self, number: int, *, time: int, hit: int = 1) -> None:
        """Bill a request with hits, without any column that came later."""
        values = dict.fromkeys(_NUMBERS, 0) | {"items": hit, "hit": hit}
        names = ", ".join(values)
        places = ", ".join(str(value) for value in values.values())
        statement = (
            f"INSERT INTO usage_events (id, time, tenant, key, model, task, status, {names},"  # noqa: S608
            f" region, revision, code, requests) VALUES ('req_{number:012d}', {time}, 'acme',"
            f" 'key_1', 'sentiment', 'classify', 200, {places}, 'eu', '9f2c51d0a7be', '', 1)"
            " ON CONFLICT DO NOTHING"
        )
        with self._engine.begin() as connection:
            connection.exec_driver_sql(_quoted(connection, statement))

    def usage(self, since: int, until: int) -> tuple[int, int]:
        """Return the requests and hits of a time, as it summed them."""
        query = (
            "SELECT coalesce(sum(requests), 0), coalesce(sum(hit), 0) FROM usage_events"  # noqa: S608
            f" WHERE time >= {since} AND time < {until}"
        )
        with self._engine.begin() as connection:
            requests, hits = connection.exec_driver_sql(query).one()
            return int(requests), int(hits)


def _scalar(connection: Connection, query: str) -> object:
    return connection.exec_driver_sql(query).scalar()


def _quoted(connection: Connection, statement: str) -> str:
    """Quote the one name that PostgreSQL needs quoted."""
    if connection.dialect.name != "postgresql":
        return statement
    return statement.replace(" row BIGINT", ' "row" BIGINT')
