"""Shows the audit log, with filters by operator, kind, subject and time."""

import asyncio

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from sluicegate.gateway.console.access import AnyRequest
from sluicegate.gateway.console.forms import moment_of, number_of
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import AuditFilter
from sluicegate.gateway.operations.operators import Role

PER_PAGE = 50
_FIELDS = ("operator", "kind", "subject", "from", "to")


class AuditController(Controller):
    """Serves the page of the audit log."""

    path = "/audit"
    opt = {"role": Role.VIEWER}  # noqa: RUF012 - Litestar reads it
    include_in_schema = False

    @get("/")
    async def page(
        self, request: AnyRequest, frame: NamedDependency[Frame], ledger: NamedDependency[Ledger]
    ) -> Response[str]:
        """Return the newest entries that match the filters."""
        wanted = {name: str(request.query_params.get(name, "")).strip() for name in _FIELDS}
        fields = {name: [value] for name, value in wanted.items()}
        of = AuditFilter(
            actor=wanted["operator"],
            kind=wanted["kind"],
            subject=wanted["subject"],
            since=moment_of(fields, "from"),
            until=moment_of(fields, "to"),
        )
        text = str(request.query_params.get("before", ""))
        before = number_of(text, "before") if text else None
        entries = await asyncio.to_thread(
            ledger.audit.entries, limit=PER_PAGE + 1, before=before, of=of
        )
        names = await asyncio.to_thread(ledger.audit.names)
        context = {
            "wanted": wanted,
            "kinds": sorted({*names.kinds, of.kind} - {""}),
            "actors": names.actors,
            "entries": entries[:PER_PAGE],
            "older": entries[PER_PAGE - 1].number if len(entries) > PER_PAGE else None,
            "is_first": before is None,
        }
        return frame.render(request, "audit.html", context)
