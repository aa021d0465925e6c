"""Defines the ledger's tables.

Times are Unix times in nanoseconds. Money is in 10^-9 of a currency unit.
"""

from collections.abc import Iterable
from itertools import starmap
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from sluicegate.gateway.ledger.usage_fields import (
    ADDED_UNITS,
    FIELDS,
    NUMBERS,
    OUTCOMES,
    SUMMED,
    UNITS,
)
from sluicegate.gateway.types import EventField

metadata: Final = MetaData()

# SQLite assigns row numbers only in a column of exactly this type.
_NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")
# Literals, because a database does not use a partial index if a parameter holds the value.
_OUTSIDE_TOTALS: Final = text("is_summed < 2")
_NOT_SUMMED: Final = text("is_summed = 0")
HAS_CLIENT_ID: Final = text("client_id <> ''")


def _price_columns() -> list[Column[Any]]:
    units = ("hit", "computed", "row", "token")
    currency: Column[Any] = Column("currency", String(8), nullable=False)
    percent: Column[Any] = Column("batch_percent", BigInteger, nullable=False, server_default="100")
    return [currency, *(Column(unit, BigInteger, nullable=False) for unit in units), percent]


def _event_column(name: str, field: EventField) -> Column[Any]:
    """Return the column of a field of usage events. Rows of older programs get its default."""
    if name in NUMBERS:
        integer, default = (BigInteger, "0") if field.since else (Integer, None)
        return Column(name, integer, nullable=False, server_default=default)
    kind = String(field.length) if field.length else Text()
    return Column(name, kind, nullable=False, server_default="" if field.since else None)


def _unit_column(name: str) -> Column[Any]:
    """Return the column of a number of usage. Rows of older programs have 0 in it."""
    default = "0" if name in ADDED_UNITS else None
    return Column(name, BigInteger, nullable=False, server_default=default)


schema_version: Final = Table(
    "schema_version", metadata, Column("version", Integer, primary_key=True)
)
"""The oldest schema version that can use the tables. Programs up to schema 2 compare it with their
own version."""

schema_migrations: Final = Table(
    "schema_migrations",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("compatible_from", Integer, nullable=False),
    Column("applied", BigInteger, nullable=False),
)
"""The migrations that were applied to the tables; see `migrations`. A new ledger records `applied`
as 0."""

tenants: Final = Table(
    "tenants",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("rules", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("budget", Text),
    Column("exhausted_until", BigInteger),
)
"""Tenants. `budget` is JSON. The tenant's requests are refused until `exhausted_until`."""

keys: Final = Table(
    "keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), ForeignKey("tenants.id"), nullable=False, index=True),
    Column("hash", String(128), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("rules", Text, nullable=False),
    Column("models", Text),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("origins", Text),
    Column("routes", Text),
    Column("former_hash", String(128)),
    Column("former_expires", BigInteger),
)

operators: Final = Table(
    "operators",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("roles", Text, nullable=False),
    Column("hash", String(128), nullable=False, unique=True),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("former_hash", String(128)),
    Column("former_expires", BigInteger),
)
"""Operators and their keys. `roles` is a JSON list."""

changes: Final = Table(
    "changes",
    metadata,
    Column("subject", String(64), primary_key=True),
    Column("count", BigInteger, nullable=False),
)
"""The number of changes of each kind of data that workers keep in memory. For the subject `shares`,
`count` is the time of the last report of `region_workers`."""

account_changes: Final = Table(
    "account_changes",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("token", String(32), nullable=False),
    Column("tenant", String(64)),
    Column("keys", Text, nullable=False),
)
"""The latest changes of accounts. Each row names the changed keys as a JSON list of ids, or the
tenant whose settings changed. The token is random; see `gateway.ledger.principals`."""

budget_alerts: Final = Table(
    "budget_alerts",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("threshold", Integer, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("currency", String(8), nullable=False),
)
"""Thresholds of budgets that were reached. A webhook was queued for each of them."""

usage_events: Final = Table(
    "usage_events",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("time", BigInteger, nullable=False),
    *starmap(_event_column, FIELDS.items()),
    *map(_unit_column, UNITS),
    Column("requests", BigInteger, nullable=False, server_default="1"),
    Column("is_summed", Integer, nullable=False, server_default="0"),
    Index("usage_events_tenant_time", "tenant", "time"),
    Index("usage_events_time", "time"),
    Index(
        "usage_events_outside_totals",
        "time",
        sqlite_where=_OUTSIDE_TOTALS,
        postgresql_where=_OUTSIDE_TOTALS,
    ),
    # Programs of schema 10 need this index. A later version removes it.
    Index(
        "usage_events_not_summed", "time", sqlite_where=_NOT_SUMMED, postgresql_where=_NOT_SUMMED
    ),
    Index(
        "usage_events_client_id",
        *("tenant", "client_id", "time"),
        sqlite_where=HAS_CLIENT_ID,
        postgresql_where=HAS_CLIENT_ID,
    ),
)
"""A row holds one usage event, or a run of events: `requests` events with consecutive ids, of which
`id` is the first. The units in the row of a run are sums. `is_summed` is `IN_TOTALS` if
`usage_totals` includes the row. A program of an older schema writes 1 or 0."""

IN_TOTALS: Final = 2
"""The value of `is_summed` in a row of `usage_events` that `usage_totals` includes."""

revision_usage: Final = Table(
    "arm_usage",
    metadata,
    Column("time", BigInteger, primary_key=True),
    Column("model", String(255), primary_key=True),
    Column("revision", String(64), primary_key=True),
    Column("arm", String(64), primary_key=True),
    Column("shadow", String(64), primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in OUTCOMES),
)
"""Sums of usage by hour and revision (`arm`), for models with a traffic split."""

serving_plans: Final = Table(
    "serving_plans",
    metadata,
    Column("model", String(255), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("plan", Text, nullable=False),
    Column("previous", Text, nullable=False),
)
"""Operators' plans for models, as JSON. `null` means that the model's folder decides how the model
is served."""

usage_rollups: Final = Table(
    "usage_rollups",
    metadata,
    Column("subject", String(64), primary_key=True),
    Column("until", BigInteger, nullable=False),
)
"""Times up to which billing has worked on usage; see `usage_marks`."""


def _table_of_sums(name: str, begin: str, numbers: Iterable[str]) -> Table:
    """Return a table of sums of these `numbers` of usage.

    Its column named `begin` holds the first hour or day of a sum.
    """
    return Table(
        name,
        metadata,
        Column("length", Integer, primary_key=True, autoincrement=False),
        Column(begin, BigInteger, primary_key=True, autoincrement=False),
        Column("tenant", String(64), primary_key=True),
        Column("model", Text, primary_key=True),
        Column("batch", BigInteger, primary_key=True, autoincrement=False),
        Column("is_free", Integer, primary_key=True, autoincrement=False),
        *map(_unit_column, numbers),
        # SQLite then stores rows in the order of the primary key, and queries read them in this
        # order.
        sqlite_with_rowid=False,
    )


usage_totals: Final = _table_of_sums("usage_totals", "hour", SUMMED)
"""Sums of usage over `length` hours. `hour` is the first of these hours, counted from 1970. The
tenant `*` stands for all tenants together. See `gateway.ledger.usage_totals`."""

# Programs of schema 10 need these tables. A later version removes them.
_FIRST_SUMMED: Final = [name for name in SUMMED if name not in ADDED_UNITS]
_table_of_sums("usage_sums", "day", _FIRST_SUMMED)
_table_of_sums("usage_hours", "hour", _FIRST_SUMMED)

high_water: Final = Table(
    "high_water",
    metadata,
    Column("log_id", String(128), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)
"""The high-water mark of each event log: the ledger has all records up to this sequence number."""

ranges: Final = Table(
    "ranges",
    metadata,
    Column("log_id", String(128), primary_key=True),
    Column("first", BigInteger, primary_key=True),
    Column("last", BigInteger, nullable=False),
)
"""Ranges of records beyond the high-water mark. They were recorded before records that precede
them."""

gaps: Final = Table(
    "gaps",
    metadata,
    Column("log_id", String(128), primary_key=True),
    Column("first", BigInteger, primary_key=True),
    Column("last", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
)
"""Ranges of sequence numbers whose records a crash of the machine destroyed."""

dead_letters: Final = Table(
    "dead_letters",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("time", BigInteger, nullable=False),
    Column("log_id", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

prices: Final = Table(
    "prices",
    metadata,
    Column("model", String(255), primary_key=True),
    Column("since", String(64), primary_key=True),
    Column("recorded", BigInteger, primary_key=True),
    *_price_columns(),
)
"""Every price ever published, with the time of publication."""

published_prices: Final = Table(
    "published_prices",
    metadata,
    Column("model", String(255), primary_key=True),
    Column("since", String(64), primary_key=True),
    Column("published", BigInteger, nullable=False),
    *_price_columns(),
)
"""The prices for usage and invoices. A price that is in effect is never changed or deleted."""

published_documents: Final = Table(
    "published_documents",
    metadata,
    Column("region", String(32), primary_key=True),
    Column("generation", BigInteger, primary_key=True),
    Column("content", Text, nullable=False),
)
"""The last configuration documents that were published in each gateway region, as JSON."""

drained_backends: Final = Table(
    "drained_backends",
    metadata,
    Column("region", String(32), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("backends", Text, nullable=False),
)
"""The drained backends of each gateway region, as a JSON list of names."""

region_workers: Final = Table(
    "region_workers",
    metadata,
    Column("region", String(32), primary_key=True),
    Column("worker", String(128), primary_key=True),
    Column("seen", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
)
"""The gateway workers of each region. A worker's lease ends at `expires`. The worker applies the
shares that the store returned at the time `seen`."""

region_shares: Final = Table(
    "region_shares",
    metadata,
    Column("bucket", String(400), primary_key=True),
    Column("region", String(32), primary_key=True),
    Column("held", Double, nullable=False),
    Column("used", Double, nullable=False),
    Column("before", Double, nullable=False),
    Column("raised", BigInteger, nullable=False),
    Column("lowered", BigInteger, nullable=False),
    Column("lowers", BigInteger, nullable=False),
    Column("linger", Double, nullable=False),
    Column("demand", Double, nullable=False),
    Column("counted", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Index("region_shares_counted", "counted"),
)
"""Each region's share of each bucket's limit; see `gateway.regional_limits.policy`. The bucket with
an empty name stands for all buckets without a row."""

quota_grants: Final = Table(
    "quota_grants",
    metadata,
    Column("bucket", String(400), primary_key=True),
    Column("period", BigInteger, primary_key=True),
    Column("region", String(32), primary_key=True),
    Column("granted", BigInteger, nullable=False),
)
"""How many units of a quota are granted to each region. The quota's period ends at `period`, a Unix
time in seconds."""

files: Final = Table(
    "files",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("purpose", String(64), nullable=False),
    Column("filename", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("is_stored", Integer, nullable=False),
    Index("files_tenant_created", "tenant", "created"),
    Index("files_expires", "expires"),
)
"""Tenants' files. The file storage holds their contents. While a file is being uploaded or deleted,
`is_stored` is 0."""

batches: Final = Table(
    "batches",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("input_file", String(64), nullable=False),
    Column("is_open", Integer, nullable=False),
    Column("holder", String(128), nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Index("batches_tenant_created", "tenant", "created"),
    Index("batches_is_open", "is_open"),
)
"""Batch jobs. `state` is JSON. The process `holder` has the lease to run the batch job until the
time `lease`."""

webhook_deliveries: Final = Table(
    "webhook_deliveries",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("payload", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due", BigInteger, nullable=False),
    Index("webhook_deliveries_due", "due"),
)
"""Webhooks that are not delivered yet. The next attempt to deliver one is due at the time `due`."""

audit: Final = Table(
    "audit",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("time", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
)
