"""Shows and changes tenants with their limits, budgets and keys. Shows tenants' usage."""

import asyncio
from datetime import datetime
from typing import Any, cast

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.form_fields import fields_of
from sluicegate.gateway.console.forms import budget_of, one, rules_of
from sluicegate.gateway.console.frame import Frame, htmx_redirect
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import GroupBy, GroupUsage, Key, Tenant
from sluicegate.gateway.operations.accounts import NewTenant, create_tenant, set_tenant_limits
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.budgets import remove_budget, set_budget
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.types import REQUEST_UNITS, WORK_UNITS

PER_PAGE = 50
MOST_KEYS = 200
UNITS = (*REQUEST_UNITS, *WORK_UNITS)
_EMPTY_ROWS = 2


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """An API key and its state, in the form that the page of a tenant shows."""

    key: Key
    state: str
    """`valid`, `expired` or `revoked`."""


class UsageShare(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a model in a month, and the fraction of its items that were not computed."""

    row: GroupUsage
    hit_ratio: float | None


class TenantsController(Controller):
    """Serves the pages of tenants and their forms."""

    path = "/tenants"
    include_in_schema = False

    @get("/", opt={"role": Role.VIEWER})
    async def list_all(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        ledger: NamedDependency[Ledger],
        search: FromQuery[str] = "",
        page: FromQuery[int] = 1,
    ) -> Response[str]:
        """Return a page of the tenants whose id or name contains `search`."""
        number = max(1, page)
        offset = (number - 1) * PER_PAGE
        found = await asyncio.to_thread(
            ledger.tenant_pages.page, search=search, offset=offset, limit=PER_PAGE
        )
        context = {
            "found": found,
            "search": search,
            "number": number,
            "pages_count": max(1, -(-found.total // PER_PAGE)),
            "first": offset + 1,
        }
        return frame.render(request, "tenants.html", context)

    @post("/", status_code=200, opt={"role": create_tenant.role})
    async def create(
        self,
        request: AnyRequest,
        context: Context,
    ) -> Response[None]:
        """Create a tenant, and redirect to its page."""
        fields = await fields_of(request)
        tenant, name = one(fields, "id"), one(fields, "name")
        await create_tenant(context, NewTenant(id=tenant, name=name))
        return htmx_redirect(f"/console/tenants/{tenant}")

    @get("/{tenant:str}", opt={"role": Role.VIEWER})
    async def show(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        frame: NamedDependency[Frame],
        ledger: NamedDependency[Ledger],
    ) -> Response[str]:
        """Return the page of a tenant."""
        found = await asyncio.to_thread(ledger.accounts.tenant, tenant)
        keys = await asyncio.to_thread(ledger.accounts.keys, tenant)
        context = tenant_context(found) | key_context(keys)
        return frame.render(request, "tenant.html", context)

    @get("/{tenant:str}/usage", opt={"role": Role.VIEWER})
    async def usage(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        frame: NamedDependency[Frame],
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
    ) -> Response[str]:
        """Return this month's usage by model, and what is left of the budget."""
        prices = (await active.document()).prices
        now = utc_now()
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        rows = await asyncio.to_thread(
            ledger.usage, tenant, month, now, [GroupBy.MODEL], prices=prices
        )
        budget = await asyncio.to_thread(ledger.budgets.status, tenant, prices)
        context = {
            "tenant_id": tenant,
            "month": month,
            "budget": budget,
            "spent_share": _spent_share(budget.spent, budget.amount) if budget else None,
            "rows": [UsageShare(row=row, hit_ratio=hit_ratio(row)) for row in rows],
        }
        return frame.render(request, "tenants/_usage.html", context)

    @post("/{tenant:str}/limits", status_code=200, opt={"role": set_tenant_limits.role})
    async def limit(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Replace the limits of a tenant."""
        limits = rules_of(await fields_of(request))
        replaced = cast("Tenant", await set_tenant_limits(context, tenant, limits))  # no dry run
        shown = tenant_context(replaced) | {"done": "The limits are replaced."}
        return frame.render(request, "tenants/_limits.html", shown)

    @post("/{tenant:str}/budget", status_code=200, opt={"role": set_budget.role})
    async def budget(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Replace the budget of a tenant. An empty amount removes the budget."""
        fields = await fields_of(request)
        budget = budget_of(fields) if one(fields, "amount") else None
        if budget is None:
            changed = await remove_budget(context, tenant)
        else:
            changed = cast("Tenant", await set_budget(context, tenant, budget))  # no dry run
        done = "The budget is removed." if budget is None else "The budget is replaced."
        shown = tenant_context(changed) | {"done": done}
        return frame.render(request, "tenants/_budget.html", shown)


def tenant_context(tenant: Tenant) -> dict[str, Any]:
    """Return the template variables that describe a tenant."""
    return {"tenant": tenant, "units": UNITS, "empty_rows": _EMPTY_ROWS, "done": ""}


def key_context(keys: list[Key]) -> dict[str, Any]:
    """Return the template variables that describe keys.

    Valid keys come first, then all other keys. In both groups, newer keys come before older keys.
    """
    now = utc_now()
    lines = [KeyLine(key=key, state=_state(key, now)) for key in reversed(keys)]
    lines.sort(key=lambda line: line.state != "valid")
    return {
        "keys": lines[:MOST_KEYS],
        "hidden_keys": max(0, len(lines) - MOST_KEYS),
        "issued": None,
    }


def hit_ratio(row: GroupUsage) -> float | None:
    """Return the fraction of items that were not computed, or `None` if there are no items."""
    return (row.hit + row.collapsed) / row.items if row.items else None


def _spent_share(spent: str, amount: str) -> float:
    return min(1.0, float(spent) / float(amount))


def _state(key: Key, now: datetime) -> str:
    if key.revoked is not None:
        return "revoked"
    return "expired" if key.expires is not None and key.expires <= now else "valid"
