"""Makes monthly invoices with pure functions. Each line is the usage of one model at one price."""

import calendar
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.pricing import amount as cost, decimal, digits, round_amount
from sluicegate.gateway.ledger.store import to_nanoseconds
from sluicegate.gateway.ledger.types import Invoice, InvoiceLine, InvoiceTotal, UnitPrices
from sluicegate.gateway.ledger.usage import PricedUsage

_MONTH = re.compile(r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])")


def month_bounds(month: str) -> tuple[int, int]:
    """Return when a month such as `2026-09` begins and ends, as Unix times in nanoseconds.

    Raises:
        InvalidRequest: `month` does not have the form of `2026-09`.
    """
    # Only one spelling of a month is accepted, because `2026-9` would look like another invoice.
    if not _MONTH.fullmatch(month):
        raise InvalidRequest(f"`{month[:20]}` is not a month such as `2026-09`")
    year, number = map(int, month.split("-"))
    start = datetime(year, number, 1, tzinfo=UTC)
    days = calendar.monthrange(start.year, start.month)[1]
    since = to_nanoseconds(start)
    return since, since + days * 86_400 * 1_000_000_000


def make_invoice(tenant: str, month: str, found: Sequence[PricedUsage]) -> Invoice:
    """Return a tenant's invoice for one month.

    `found` is the tenant's usage in this month, by model and price.
    """
    sums: dict[tuple[str, int, str], PricedUsage] = {}
    for each in found:
        if not each.model:
            continue  # a request is free if it was refused before its model was known
        group = (each.model, each.price.since, each.price.version)
        former = sums.get(group)
        units = each.units if former is None else former.units + each.units
        sums[group] = msgspec.structs.replace(each, units=units)
    lines: list[InvoiceLine] = []
    totals: dict[str, int] = {}
    for _, priced in sorted(sums.items(), key=lambda item: item[0]):
        currency = priced.price.entry.currency
        exact = cost(priced.units, priced.price.entry)
        rounded = round_amount(exact, currency)
        lines.append(_line(priced, exact, rounded))
        totals[currency] = totals.get(currency, 0) + rounded
    return Invoice(
        tenant=tenant,
        month=month,
        lines=lines,
        totals=[
            InvoiceTotal(currency=currency, amount=decimal(total, digits(currency)))
            for currency, total in sorted(totals.items())
        ],
    )


def _line(priced: PricedUsage, exact: int, rounded: int) -> InvoiceLine:
    entry = priced.price.entry
    return InvoiceLine(
        model=priced.model,
        price=priced.price.version,
        currency=entry.currency,
        unit_prices=UnitPrices(
            hit=decimal(entry.hit),
            computed=decimal(entry.computed),
            row=decimal(entry.row),
            token=decimal(entry.token),
        ),
        units=priced.units,
        exact=decimal(exact),
        amount=decimal(rounded, digits(entry.currency)),
    )
