"""Serves the operators' routes for usage, invoices and the audit log."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from gateway.admin.openapi import TENANT
from gateway.api.openapi_parts import MOMENT, Content, Json, Operation
from gateway.api.usage_query import parse_group_by, parse_moment
from gateway.errors import ConfigurationError, DependencyUnavailable, InvalidRequest, NotFound
from gateway.ledger import rendering
from gateway.ledger.audit import AuditFilter
from gateway.ledger.invoices import Invoice
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import AuditEntry, GroupBy, GroupUsage
from gateway.operations.active_document import ActiveDocumentReader
from gateway.operations.operators import Role

Format = Literal["json", "csv"]
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
_operation = partial(Operation, tag="billing")


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


class BillingController(Controller):
    """Returns usage, invoices and the audit log."""

    path = "/admin"

    @get(
        "/usage",
        opt={"role": Role.VIEWER},
        operation=_operation(
            id="get_usage",
            summary="Usage of a tenant, or of all tenants",
            errors=(NotFound, ConfigurationError, DependencyUnavailable),
            answers={200: (Content(type=UsagePage, summary="A row for each group"), _AS_CSV)},
            about={
                "tenant": TENANT,
                "from": MOMENT,
                "to": MOMENT | {"example": "2026-12-01T00:00:00Z"},
                "group_by": {
                    "description": f"A comma-separated list of {', '.join(GroupBy)}.",
                    "example": "tenant,model",
                },
                "format": _FORMAT,
            },
        ),
    )
    async def usage(
        self,
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
        tenant: FromQuery[str | None] = None,
        since: Annotated[str, QueryParameter(name="from")] = "",
        until: Annotated[str, QueryParameter(name="to")] = "",
        group_by: FromQuery[list[str] | None] = None,
        format: FromQuery[Format] = "json",  # noqa: A002 - a query parameter
    ) -> Response[bytes] | Response[str]:
        """Return the usage of a tenant, or of all tenants. The default is this month so far."""
        now = datetime.now(UTC)
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        start = parse_moment("from", since or None) or month
        end = parse_moment("to", until or None) or now + timedelta(seconds=1)
        document = await active.document()
        groups = [GroupBy(name) for name in parse_group_by(group_by, _GROUPS, default=_DEFAULT)]
        if tenant is not None:
            await asyncio.to_thread(ledger.accounts.tenant, tenant)
        rows = await asyncio.to_thread(
            ledger.usage, tenant, start, end, groups, prices=document.prices
        )
        if format == "csv":
            return Response(rendering.usage_csv(rows, groups), media_type=_CSV)
        return _json({"from": start, "to": end, "rows": rows})

    @get(
        "/invoices",
        opt={"role": Role.BILLING},
        operation=_operation(
            id="get_invoice",
            summary="A tenant's invoice for a month",
            errors=(NotFound, ConfigurationError, DependencyUnavailable),
            answers={200: (Content(type=Invoice, summary="The invoice"), _AS_CSV)},
            about={"tenant": TENANT, "month": _MONTH, "format": _FORMAT},
        ),
    )
    async def invoice(
        self,
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
        tenant: FromQuery[str],
        month: FromQuery[str],
        format: FromQuery[Format] = "json",  # noqa: A002 - a query parameter
    ) -> Response[bytes] | Response[str]:
        """Return a tenant's invoice for a month such as 2026-11."""
        document = await active.document()
        invoice = await asyncio.to_thread(ledger.invoice, tenant, month, document.prices)
        if format == "csv":
            return Response(rendering.invoice_csv(invoice), media_type=_CSV)
        return _json(invoice)

    @get(
        "/audit",
        opt={"role": Role.VIEWER},
        operation=_operation(
            id="list_audit",
            summary="Who changed what, when",
            errors=(DependencyUnavailable,),
            about={
                "limit": {"description": "The most entries to return."},
                "before": {"description": "Return entries with numbers below this one."},
                "operator": {"description": "The author of the changes.", "example": "admin"},
                "kind": {
                    "description": "An action such as `key.revoke`, or a prefix such as `key`."
                },
                "subject": {"description": "The changed object's id.", "example": "acme"},
                "from": MOMENT,
                "to": MOMENT | {"example": "2026-12-01T00:00:00Z"},
            },
        ),
    )
    async def audit(
        self,
        *,
        request: Request[Any, Any, Any],
        ledger: NamedDependency[Ledger],
        limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
        before: FromQuery[int | None] = None,
        author: Annotated[str, QueryParameter(name="operator")] = "",
        kind: FromQuery[str] = "",
        subject: FromQuery[str] = "",
        since: Annotated[str, QueryParameter(name="from")] = "",
        until: Annotated[str, QueryParameter(name="to")] = "",
    ) -> AuditPage:
        """Return who changed what, when, with the newest change first."""
        if before is None and "before" in request.query_params:
            # Litestar treats the value `null` like a missing parameter.
            raise InvalidRequest("`before` must be the number of an entry")
        of = AuditFilter(
            actor=author,
            kind=kind,
            subject=subject,
            since=parse_moment("from", since or None),
            until=parse_moment("to", until or None),
        )
        entries = await asyncio.to_thread(ledger.audit.entries, limit=limit, before=before, of=of)
        return AuditPage(entries=entries)


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
