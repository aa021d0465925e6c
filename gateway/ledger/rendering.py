"""Renders invoices and usage as JSON and CSV, with amounts as decimal numbers. Pure."""

import csv
import io
from collections.abc import Iterable, Sequence

import msgspec

from gateway.ledger.invoices import Invoice
from gateway.ledger.pricing import decimal, digits
from gateway.ledger.types import Units, UsageRow

_UNITS = Units.__struct_fields__
_GROUPS = ("day", "tenant", "key", "model", "task", "region")
_EXACT = 9


def invoice_json(invoice: Invoice) -> bytes:
    """Return the invoice as a JSON object."""
    lines = [
        {
            "model": line.model,
            "price": line.price,
            "currency": line.currency,
            "unit_prices": {
                "hit": decimal(line.hit, _EXACT),
                "computed": decimal(line.computed, _EXACT),
                "row": decimal(line.row, _EXACT),
                "token": decimal(line.token, _EXACT),
            },
            "units": line.units,
            "exact": decimal(line.exact, _EXACT),
            "amount": decimal(line.amount, digits(line.currency)),
        }
        for line in invoice.lines
    ]
    totals = [
        {"currency": t.currency, "amount": decimal(t.amount, digits(t.currency))}
        for t in invoice.totals
    ]
    fields = {"tenant": invoice.tenant, "month": invoice.month, "lines": lines, "totals": totals}
    return msgspec.json.encode(fields)


def invoice_csv(invoice: Invoice) -> str:
    """Return the lines of the invoice as CSV with a header."""
    head = ["tenant", "month", "model", "price", *_UNITS, "exact", "amount", "currency"]
    rows = [
        [
            invoice.tenant,
            invoice.month,
            line.model,
            line.price,
            *_counts(line.units),
            decimal(line.exact, _EXACT),
            decimal(line.amount, digits(line.currency)),
            line.currency,
        ]
        for line in invoice.lines
    ]
    return _csv(head, rows)


def exact(nanos: int) -> str:
    """Return an amount as a decimal number with all digits."""
    return decimal(nanos, _EXACT)


def usage_json(rows: Sequence[UsageRow]) -> bytes:
    """Return usage as a JSON list; `cost` is exact."""
    return msgspec.json.encode([usage_object(row) for row in rows])


def usage_object(row: UsageRow) -> dict[str, object]:
    """Return a row of usage as an object for JSON."""
    groups = {g: getattr(row, g) for g in _GROUPS if getattr(row, g) is not None}
    units = msgspec.structs.asdict(row.units)
    return groups | units | {"cost": exact(row.cost), "currency": row.currency}


def usage_csv(rows: Sequence[UsageRow], group_by: Sequence[str]) -> str:
    """Return usage as CSV with a header, and a column for each of `group_by` even without rows."""
    groups = [g for g in _GROUPS if g in group_by]
    lines = [
        [
            *(getattr(row, g) or "" for g in groups),
            *_counts(row.units),
            decimal(row.cost, _EXACT),
            row.currency,
        ]
        for row in rows
    ]
    return _csv([*groups, *_UNITS, "cost", "currency"], lines)


def _counts(units: Units) -> list[int]:
    return [getattr(units, name) for name in _UNITS]


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_escape_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _escape_formula(cell: object) -> object:
    """Escape text that a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "@", "\t") else cell
