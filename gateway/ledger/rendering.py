"""Renders invoices and usage as CSV, with pure functions."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sluicegate.gateway.ledger.types import GroupBy, GroupUsage, Invoice
from sluicegate.gateway.ledger.usage_fields import SUMMED


def invoice_csv(invoice: Invoice) -> str:
    """Return the lines of an invoice as CSV with a header."""
    head = ["tenant", "month", "model", "price", *SUMMED, "exact", "amount", "currency"]
    common = {"tenant": invoice.tenant, "month": invoice.month}
    rows = [
        common | msgspec.structs.asdict(line) | msgspec.structs.asdict(line.units)
        for line in invoice.lines
    ]
    return _csv(head, rows)


def usage_csv(rows: Sequence[GroupUsage], group_by: Sequence[str]) -> str:
    """Return usage as CSV.

    The header has a column for each of `group_by`, even if no rows follow.
    """
    groups = [group.value for group in GroupBy if group in group_by]
    head = [*groups, *SUMMED, "cost", "currency"]
    return _csv(head, map(msgspec.structs.asdict, rows))


def _csv(head: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_escape_formula(row[name]) for name in head] for row in rows)
    return text.getvalue()


def _escape_formula(cell: object) -> object:
    """Put `'` before text that a spreadsheet would otherwise evaluate as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "@", "\t") else cell
