"""Searches tenants by a substring of their id or name, and returns them in pages."""

from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, func, or_, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.accounts import tenant_of
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.types import Budget, Tenant

_tenants: Final = schema.tenants
_keys: Final = schema.keys


class TenantLine(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a tenant in a list of tenants."""

    tenant: Tenant
    keys: int
    """The number of keys that are neither revoked nor expired."""
    exhausted_until: int | None
    """Until when requests are refused because the budget is used up: a Unix time in nanoseconds."""

    @property
    def created(self) -> datetime:
        """When the tenant was created."""
        return self.tenant.created

    @property
    def budget(self) -> Budget | None:
        """The tenant's monthly budget."""
        return self.tenant.budget


class TenantPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of matching tenants, and the number of all matching tenants."""

    lines: list[TenantLine]
    total: int


class TenantPages:
    """Reads pages of tenants, with one query for each page. All calls block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self, *, search: str = "", offset: int = 0, limit: int = 50) -> TenantPage:
        """Return at most `limit` tenants whose id or name contains `search`, sorted by id.

        The first `offset` of these tenants are left out.
        """
        now = self._store.clock()
        is_valid = or_(_keys.c.expires.is_(None), _keys.c.expires > now)
        keys = (
            select(func.count())
            .where(_keys.c.tenant == _tenants.c.id, _keys.c.revoked.is_(None), is_valid)
            .correlate(_tenants)
            .scalar_subquery()
        )
        total = func.count().over()
        query = select(_tenants, keys.label("valid_keys"), total.label("total"))
        query = query.where(*_matching(search)).order_by(_tenants.c.id)
        with self._store.reading() as connection:
            rows = connection.execute(query.offset(offset).limit(limit)).all()
        lines = [_line(row) for row in rows]
        return TenantPage(lines=lines, total=rows[0].total if rows else 0)


def _matching(search: str) -> list[ColumnElement[bool]]:
    wanted = search.strip().lower()
    if not wanted:
        return []
    columns = (_tenants.c.id, _tenants.c.name)
    return [or_(*(func.lower(one).contains(wanted, autoescape=True) for one in columns))]


def _line(row: Row[Any]) -> TenantLine:
    return TenantLine(
        tenant=tenant_of(row), keys=row.valid_keys, exhausted_until=row.exhausted_until
    )
