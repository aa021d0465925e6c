"""Makes invoices: a tenant's month, a line per model and price, each rounded once. Pure."""

import calendar
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from gateway.errors import InvalidRequest
from gateway.ledger.pricing import amount, round_amount
from gateway.ledger.store import to_nanoseconds
from gateway.ledger.types import Units
from gateway.ledger.usage import PricedUsage

_MONTH = re.compile(r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])")


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """Bills usage of one model under one price, in 10^-9 of `currency`.

    `exact` is the cost of the units; `amount` is rounded half-even to the currency.
    """

    model: str
    price: str
    """The price's version: `model@since`."""
    currency: str
    hit: int
    computed: int
    row: int
    token: int
    units: Units
    exact: int
    amount: int


class InvoiceTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sums the lines' rounded amounts in one currency, in 10^-9."""

    currency: str
    amount: int


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """Bills a tenant's month in UTC; the same events and prices give the same invoice."""

    tenant: str
    month: str
    lines: tuple[InvoiceLine, ...]
    totals: tuple[InvoiceTotal, ...]


def month_bounds(month: str) -> tuple[int, int]:
    """Return the times in nanoseconds when `month`, such as `2026-09`, begins and ends.

    Raises:
        InvalidRequest: `month` is not a month.
    """
    # One spelling only: `2026-9` would be another invoice.
    if not _MONTH.fullmatch(month):
        raise InvalidRequest(f"`{month[:20]}` is not a month such as `2026-09`")
    year, number = map(int, month.split("-"))
    start = datetime(year, number, 1, tzinfo=UTC)
    days = calendar.monthrange(start.year, start.month)[1]
    since = to_nanoseconds(start)
    return since, since + days * 86_400 * 1_000_000_000


def make_invoice(tenant: str, month: str, found: Sequence[PricedUsage]) -> Invoice:
    """Return the invoice over priced usage that is not grouped further."""
    sums: dict[tuple[str, int, str], PricedUsage] = {}
    for each in found:
        if not each.model:
            continue  # refused before a model was known, and free
        group = (each.model, each.price.since, each.price.version)
        former = sums.get(group)
        units = each.units if former is None else former.units + each.units
        sums[group] = msgspec.structs.replace(each, units=units)
    lines = tuple(_line(sums[group]) for group in sorted(sums))
    totals: dict[str, int] = {}
    for line in lines:
        totals[line.currency] = totals.get(line.currency, 0) + line.amount
    return Invoice(
        tenant=tenant,
        month=month,
        lines=lines,
        totals=tuple(InvoiceTotal(currency=c, amount=a) for c, a in sorted(totals.items())),
    )


def _line(priced: PricedUsage) -> InvoiceLine:
    entry = priced.price.entry
    exact = amount(priced.units, entry)
    return InvoiceLine(
        model=priced.model,
        price=priced.price.version,
        currency=entry.currency,
        hit=entry.hit,
        computed=entry.computed,
        row=entry.row,
        token=entry.token,
        units=priced.units,
        exact=exact,
        amount=round_amount(exact, entry.currency),
    )
