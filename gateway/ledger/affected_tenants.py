"""Counts the tenants that a change of limits or prices will affect once it is published."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, func, or_, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.store import Store, to_nanoseconds
from sluicegate.gateway.ledger.types import TenantCount

_NONE: Final = "[]"
_SECOND: Final = 1_000_000_000
_tenants: Final = schema.tenants
_keys: Final = schema.keys
_events: Final = schema.usage_events


class AffectedTenants:
    """Counts affected tenants, and lists the ids of up to `limit` of them. All calls block."""

    def __init__(self, store: Store, *, limit: int = 20) -> None:
        self._store = store
        self._limit = limit

    def by_limits(self, *, of_tenants: bool, of_keys: bool) -> TenantCount:
        """Count the tenants to which the configuration document's default limits apply.

        With `of_tenants`, count the tenants without limits of their own. With `of_keys`, count the
        tenants that have a key without limits of its own.
        """
        without = _tenants.c.rules == _NONE
        is_key = (_keys.c.rules == _NONE) & _keys.c.revoked.is_(None)
        with_keys = _tenants.c.id.in_(select(_keys.c.tenant).where(is_key))
        applies = [each for each, wanted in ((without, of_tenants), (with_keys, of_keys)) if wanted]
        if not applies:
            return TenantCount(count=0, first=[])
        return self._count(select(_tenants.c.id.label("tenant")).where(or_(*applies)))

    def by_models(self, models: Collection[str], *, all_but: Collection[str] | None) -> TenantCount:
        """Count the tenants that have used one of `models` this month (UTC).

        If `all_but` is set, also count the tenants that have used any model outside `all_but`.
        """
        if not models:
            return TenantCount(count=0, first=[])
        now = datetime.fromtimestamp(self._store.clock() / _SECOND, UTC)
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        named: ColumnElement[bool] = _events.c.model.in_(sorted(models))
        if all_but is not None:
            named |= _events.c.model.not_in(["", *sorted(all_but)])
        own = (_events.c.tenant == _tenants.c.id) & (_events.c.time >= to_nanoseconds(month))
        # `exists` stops at a tenant's first event that matches.
        used = select(_events.c.id).where(own & named).exists()
        return self._count(select(_tenants.c.id.label("tenant")).where(used))

    def _count(self, query: Select[Any]) -> TenantCount:
        found = query.subquery()
        count = func.count().over().label("count")
        first = select(found.c.tenant, count).order_by(found.c.tenant).limit(self._limit)
        with self._store.reading() as connection:
            rows = connection.execute(first).all()
        return TenantCount(
            count=rows[0][1] if rows else 0, first=[str(tenant) for tenant, _ in rows]
        )
