"""Returns usage, invoices and the audit log."""

import asyncio
from datetime import timedelta
from typing import Annotated, Literal

import msgspec

from sluicegate.gateway.api.openapi_parts import MOMENT, Content, Json
from sluicegate.gateway.api.usage_query import parse_group_by, parse_moment
from sluicegate.gateway.errors import ConfigurationError, NotFound
from sluicegate.gateway.ledger import rendering
from sluicegate.gateway.ledger.types import (
    SLOW_GROUPS,
    AuditEntry,
    AuditFilter,
    GroupBy,
    GroupUsage,
    Invoice,
)
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import TENANT, Answer, Family, Sent
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.periods import utc_now

Format = Literal["json", "csv"]
Since = Annotated[str, Sent(name="from")]
Until = Annotated[str, Sent(name="to")]
_CSV = "text/csv; charset=utf-8"
_GROUPS = tuple(GroupBy)
_DEFAULT = "tenant,model"
_FORMAT: Json = {"description": "The format of the response. CSV begins with a header line."}
_MONTH: Json = {
    "description": "A month in UTC.",
    "schema": {"pattern": r"^[0-9]{4}-(0[1-9]|1[0-2])$"},
    "example": "2026-11",
}
_AS_CSV = Content(media="text/csv", schema={"type": "string"})
FAMILY = Family(
    "billing",
    about={
        "tenant": TENANT,
        "from": MOMENT,
        "to": MOMENT | {"example": "2026-12-01T00:00:00Z"},
        "format": _FORMAT,
    },
)


class UsagePage(msgspec.Struct, frozen=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """Usage from the time `from` (inclusive) to `to` (exclusive), with one row for each group."""

    since: str
    until: str
    rows: list[GroupUsage]


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Audit entries, newest first.

    To get the next page, send the last entry's number as `before`.
    """

    entries: list[AuditEntry]


@FAMILY.operation(
    "GET /admin/usage",
    "Usage of a tenant, or of all tenants",
    role=Role.VIEWER,
    errors=(NotFound, ConfigurationError),
    answers={200: (Content(type=UsagePage, summary="A row for each group"), _AS_CSV)},
    about={
        "group_by": {
            "description": f"A comma-separated list of {', '.join(GroupBy)}. {SLOW_GROUPS}",
            "example": "tenant,model",
        },
    },
)
async def get_usage(
    context: OperationContext,
    *,
    tenant: str | None = None,
    since: Since = "",
    until: Until = "",
    group_by: list[str] | None = None,
    format: Format = "json",  # noqa: A002 - a query parameter
) -> Answer[UsagePage | str]:
    """Return the usage of a tenant, or of all tenants. The default is this month so far."""
    now = utc_now()
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    start = parse_moment("from", since or None) or month
    end = parse_moment("to", until or None) or now + timedelta(seconds=1)
    prices = (await context.active.document()).prices
    groups = [GroupBy(name) for name in parse_group_by(group_by, _GROUPS, default=_DEFAULT)]
    if tenant is not None:
        await asyncio.to_thread(context.ledger.accounts.tenant, tenant)
    rows = await asyncio.to_thread(context.ledger.usage, tenant, start, end, groups, prices=prices)
    if format == "csv":
        return Answer(result=rendering.usage_csv(rows, groups), media=_CSV)
    return Answer(
        result=UsagePage(
            since=msgspec.to_builtins(start), until=msgspec.to_builtins(end), rows=rows
        )
    )


@FAMILY.operation(
    "GET /admin/invoices",
    "A tenant's invoice for a month",
    role=Role.BILLING,
    errors=(NotFound, ConfigurationError),
    answers={200: (Content(type=Invoice, summary="The invoice"), _AS_CSV)},
    about={"month": _MONTH},
)
async def get_invoice(
    context: OperationContext,
    *,
    tenant: str,
    month: str,
    format: Format = "json",  # noqa: A002 - a query parameter
) -> Answer[Invoice | str]:
    """Return a tenant's invoice for a month such as 2026-11."""
    prices = (await context.active.document()).prices
    invoice = await asyncio.to_thread(context.ledger.invoice, tenant, month, prices)
    if format == "csv":
        return Answer(result=rendering.invoice_csv(invoice), media=_CSV)
    return Answer(result=invoice)


@FAMILY.operation(
    "GET /admin/audit",
    "Who changed what, when",
    role=Role.VIEWER,
    about={
        "limit": {"description": "The most entries to return."},
        "before": {"description": "Return entries with numbers below this one."},
        "operator": {"description": "The author of the changes.", "example": "admin"},
        "kind": {"description": "An action such as `key.revoke`, or a prefix such as `key`."},
        "subject": {"description": "The changed object's id.", "example": "acme"},
    },
)
async def list_audit(
    context: OperationContext,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100,
    before: int | None = None,
    author: Annotated[str, Sent(name="operator")] = "",
    kind: str = "",
    subject: str = "",
    since: Since = "",
    until: Until = "",
) -> AuditPage:
    """Return who changed what, when, with the newest change first."""
    of = AuditFilter(
        actor=author,
        kind=kind,
        subject=subject,
        since=parse_moment("from", since or None),
        until=parse_moment("to", until or None),
    )
    entries = await asyncio.to_thread(
        context.ledger.audit.entries, limit=limit, before=before, of=of
    )
    return AuditPage(entries=entries)
