"""Shows tenants' usage and charges, and the operator's margin. Exports usage as CSV."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.console.access import AnyRequest
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.margins import MarginReader, Margins
from sluicegate.gateway.console.tenants import hit_ratio
from sluicegate.gateway.console.usage_series import (
    MOST_SERIES,
    Buckets,
    Chart,
    ChartSpan,
    Measure,
    UsageQuery,
    UsageReader,
    breakdown_chart,
    buckets_of,
    charged_over_time,
    group_of,
    margin_chart,
    source_chart,
)
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger import rendering
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import GroupBy, GroupUsage
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.runtime.control import Control

SPANS = {
    ChartSpan.DAY: "24 hours, by hour",
    ChartSpan.WEEK: "7 days, by hour",
    ChartSpan.MONTH: "30 days, by day",
    ChartSpan.THIS_MONTH: "this month, by day",
    ChartSpan.YEAR: "a year, by day",
}
# A tenant may have very many keys.
_NOT_SHOWN = {GroupBy.DAY, GroupBy.HOUR, GroupBy.KEY}
GROUPS = tuple(group for group in GroupBy if group not in _NOT_SHOWN)
_MOST_ROWS = 50
TOO_SLOW = (
    f"Usage by {', '.join(group for group in GROUPS if not group.is_summed)} is shown for at most"
    " 31 days: choose a shorter time.".replace("_", " ")
)


class UsageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the charts and of the table below them."""

    sources: Chart
    breakdown: Chart
    money: Chart
    rows: list[GroupUsage]
    hidden: int
    """How many rows the table leaves out, because there are too many."""
    unnamed: int
    """The number of requests that did not name a served model. They are in no row."""
    margins: Margins
    is_whole: bool
    """Whether all tenants and models are shown. Only then can the margin be computed."""


class UsageController(Controller):
    """Serves the page of usage, its charts and table, and the CSV export."""

    path = "/usage"
    opt = {"role": Role.VIEWER}  # noqa: RUF012 - Litestar reads it
    include_in_schema = False

    @get("/")
    async def page(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        active: NamedDependency[ActiveDocumentReader],
    ) -> Response[str]:
        """Return the page. The browser loads the charts and the table separately."""
        wanted = wanted_of(request)
        models = sorted((await active.document()).models)
        context = _choices(wanted) | {"models": models}
        return frame.render(request, "usage.html", context)

    @get("/figures")
    async def figures(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
        control: NamedDependency[Control],
        margins: NamedDependency[MarginReader],
    ) -> Response[str]:
        """Return the charts and the table."""
        wanted, document = _quick(wanted_of(request)), await active.document()
        buckets = buckets_of(wanted.span, utc_now())
        is_whole = not (wanted.tenant or wanted.model)
        found = await margins.read(control, document, buckets) if is_whole else Margins()
        reader = UsageReader(ledger, document.prices)
        # The queries are executed one after the other, because the interpreter lock would serialize
        # two threads anyway.
        total = await asyncio.to_thread(reader.over_time, wanted, buckets)
        rows, names, largest = await asyncio.to_thread(_by_group, reader, wanted, buckets)
        currency = _currency(rows, document.prices)
        charged = charged_over_time(total, buckets, currency)
        figures = UsageFigures(
            sources=source_chart(total, buckets),
            breakdown=breakdown_chart(total, largest, names, wanted, buckets),
            money=margin_chart(charged, found.costs, buckets, currency),
            rows=rows[:_MOST_ROWS],
            hidden=max(0, len(rows) - _MOST_ROWS),
            unnamed=sum(row.requests for row in total) - sum(row.requests for row in rows),
            margins=found,
            is_whole=is_whole,
        )
        context = _choices(wanted) | {"figures": figures, "hit_ratio": hit_ratio}
        context |= {"group_of": group_of}
        return frame.render(request, "usage/_figures.html", context)

    @get("/export")
    async def export(
        self,
        request: AnyRequest,
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
    ) -> Response[str]:
        """Return usage as CSV. There is a row for each hour or day and each group."""
        wanted, prices = _quick(wanted_of(request)), (await active.document()).prices
        text = await asyncio.to_thread(_csv, ledger, prices, wanted)
        name = f"usage-{wanted.span}-by-{wanted.by}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def wanted_of(request: AnyRequest) -> UsageQuery:
    """Parse the query parameters. The default replaces an invalid choice."""
    query = request.query_params
    return UsageQuery(
        span=_choice(ChartSpan, query.get("span"), ChartSpan.WEEK),
        tenant=str(query.get("tenant", "")).strip(),
        model=str(query.get("model", "")).strip(),
        by=_choice(GroupBy, query.get("by"), GroupBy.MODEL, among=GROUPS),
        measure=_choice(Measure, query.get("measure"), Measure.ITEMS),
    )


def _quick(wanted: UsageQuery) -> UsageQuery:
    """Return `wanted`.

    Raises:
        InvalidRequest: it is too slow. The page does not ask for it.
    """
    if wanted.is_too_slow:
        raise InvalidRequest(TOO_SLOW)
    return wanted


def _choice(kind: Any, text: str | None, default: Any, among: Sequence[Any] = ()) -> Any:
    """Return the member of `kind` that `text` names. If there is none, return the default."""
    found = next((one for one in among or kind if one.value == text), None)
    return default if found is None else found


def _choices(wanted: UsageQuery) -> dict[str, object]:
    return {"wanted": wanted, "spans": SPANS, "groups": GROUPS, "measures": list(Measure)} | {
        "too_slow": TOO_SLOW
    }


def _by_group(
    reader: UsageReader, wanted: UsageQuery, buckets: Buckets
) -> tuple[list[GroupUsage], list[str], list[GroupUsage]]:
    """Return the usage of each group, and the largest ones' usage over time.

    Returns:
        Three values: a row for each group, such as a tenant or a model; the names of the groups
        with the most usage; and a row for each of these names and each hour or day.
    """
    rows = reader.totals(wanted, buckets)
    names = list(dict.fromkeys(group_of(row, wanted.by) for row in rows))[:MOST_SERIES]
    return rows, names, reader.largest(wanted, buckets, names)


def _currency(rows: Sequence[GroupUsage], prices: Sequence[PriceConfig]) -> str:
    """Return the rows' most frequent currency. If there are no rows, return that of the prices."""
    names = [row.currency for row in rows] or [price.currency for price in prices] or [""]
    return max(set(names), key=names.count)


def _csv(ledger: Ledger, prices: Sequence[PriceConfig], wanted: UsageQuery) -> str:
    buckets = buckets_of(wanted.span, utc_now())
    groups = list(dict.fromkeys([buckets.unit, GroupBy.TENANT, GroupBy.MODEL, wanted.by]))
    if wanted.by is not GroupBy.TENANT and not wanted.tenant:
        groups.remove(GroupBy.TENANT)
    rows = ledger.usage(
        wanted.tenant or None,
        buckets.since,
        buckets.until,
        groups,
        prices=prices,
        models=wanted.models,
    )
    return rendering.usage_csv(rows, groups)
