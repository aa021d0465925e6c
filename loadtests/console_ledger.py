"""Fills the ledger for the benchmark of the console: a year of usage of many tenants.

Each tenant has used a model on each day of a year, and in each hour of the last seven days.
"""

import time
from typing import Final

import sqlalchemy
from sqlalchemy import Connection

from gateway.ledger.ledger import Ledger
from gateway.ledger.types import KeySpec, Units
from gateway.ledger.usage_marks import DAY, HOUR

MODELS: Final = 40
_DAYS: Final = 365
_WEEK: Final = 7
_HOURS_OF_DAY: Final = 24
_SUMMED: Final = Units.__struct_fields__


def fill_ledger(url: str, tenants: int) -> None:
    """Create tenants with one key each, and write usage and its hourly sums as billing does."""
    specs = [
        KeySpec(tenant=f"tenant-{number:05}", key_hash=f"{number:064x}", name="bench")
        for number in range(tenants)
    ]
    now = time.time_ns()
    week = now // DAY - _WEEK + 1
    hours = now // HOUR - week * _HOURS_OF_DAY + 1
    days = _DAYS - _WEEK
    engine = sqlalchemy.create_engine(url)
    with Ledger.create(url) as ledger:
        for first in range(0, tenants, 1000):
            ledger.accounts.create_keys(specs[first : first + 1000], new_tenants=True)
        with engine.begin() as connection:
            _insert(connection, tenants, length=DAY, first=week - days, count=days, is_summed=0)
            first = week * _HOURS_OF_DAY
            _insert(connection, tenants, length=HOUR, first=first, count=hours, is_summed=1)
            _sum_hours(connection, week * DAY)
        # Billing does this in its idle time.
        for _ in range(_DAYS):  # each step scans a hundred hours
            ledger.rollup.add_up(before=now - 3 * DAY, limit=1000)
        while ledger.rollup.sum_day():
            pass
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        # PostgreSQL does this by itself after a while.
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()


def _insert(
    connection: Connection, tenants: int, *, length: int, first: int, count: int, is_summed: int
) -> None:
    """Insert a row for each tenant and for each of `count` periods of `length` nanoseconds."""
    numbers = {"items": "100 + n", "hit": "60", "collapsed": "0", "computed": "40 + n"}
    numbers |= {"failed": "0", "rows": "40 + n", "tokens": "500", "requests": "20"}
    values = {
        "id": f"'rollup-{length}-' || t || '-' || n",
        "tenant": "'tenant-' || substr(CAST(100000 + n AS TEXT), 2)",
        "time": f"({first} + t) * CAST({length} AS BIGINT)",
        "key": "'key'",
        "model": f"'m-' || mod(n, {MODELS})",
        "task": "'classify'",
        "status": "200",
        "region": "'eu'",
        "revision": "'abc'",
        "code": "''",
        "batch": "0",
        "is_summed": str(is_summed),
        **numbers,
    }
    query = (
        "WITH RECURSIVE tenants(n) AS"  # noqa: S608 - of constants
        f" (SELECT 0 UNION ALL SELECT n + 1 FROM tenants WHERE n + 1 < {tenants}),"
        f" times(t) AS (SELECT 0 UNION ALL SELECT t + 1 FROM times WHERE t + 1 < {count})"
        f" INSERT INTO usage_events ({', '.join(values)})"
        f" SELECT {', '.join(values.values())} FROM times, tenants"
    )
    connection.execute(sqlalchemy.text(query))


def _sum_hours(connection: Connection, since: int) -> None:
    """Write the hourly sums, which billing updates in the transaction that writes the events."""
    kind = "tenant, model, batch, is_free"
    sums = ", ".join(f"sum({name})" for name in _SUMMED)
    hour, day = f"time / {HOUR}", f"hour / {_HOURS_OF_DAY} * {_HOURS_OF_DAY}"
    columns = f"length, hour, {kind}, {', '.join(_SUMMED)}"
    by_hour = f"WHERE time >= {since} GROUP BY {hour}, tenant, model, batch"
    by_day = f"GROUP BY {day}, {kind}"
    for rows in (
        f"1, {hour}, tenant, model, batch, 0, {sums} FROM usage_events {by_hour}",
        f"1, hour, '*', model, batch, 0, {sums} FROM usage_hours GROUP BY hour, model, batch",
        f"{_HOURS_OF_DAY}, {day}, {kind}, {sums} FROM usage_hours {by_day}",
    ):
        connection.exec_driver_sql(f"INSERT INTO usage_hours ({columns}) SELECT {rows}")
