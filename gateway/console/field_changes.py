"""Describes in which fields two configuration documents differ, and which tenants this affects.

All functions are pure.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec

from sluicegate.gateway.config.difference import FieldChange, find_changes
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.ledger.types import TenantCount
from sluicegate.gateway.operations.document_difference import DocumentDifference

MOST_FIELDS = 200
_LONGEST = 400


class FieldLine(msgspec.Struct, frozen=True, kw_only=True):
    """The old and the new value of a field. `None` means that the field is missing."""

    path: str
    before: str | None
    after: str | None


class FieldLines(msgspec.Struct, frozen=True, kw_only=True):
    """The fields in which two documents differ."""

    lines: list[FieldLine]
    omitted: int
    """How many further fields differ that are not listed."""
    notes: list[str]
    """Lines about the affected models, limits, prices and tenants."""


def lines_of(before: Document, after: Document) -> FieldLines:
    """Return the fields in which two documents differ."""
    found = find_changes(before, after)
    lines = [_line(change) for change in islice(found, MOST_FIELDS)]
    return FieldLines(lines=lines, omitted=sum(1 for _ in found), notes=[])


def described(difference: DocumentDifference) -> FieldLines:
    """Return the fields that a publication would change, with notes about the effects."""
    shown = difference.changes[:MOST_FIELDS]
    omitted = difference.omitted + len(difference.changes) - len(shown)
    models = difference.models
    notes = [
        *_named("Models added", models.added),
        *_named("Models removed", models.removed),
        *_named("Models changed", models.changed),
        *_named("Limits that change", difference.limits),
        *_named("Models whose prices change", difference.prices),
    ]
    if difference.changes:
        notes += _tenants("Tenants whose limits change", difference.tenants_by_limits)
        notes += _tenants(
            "Tenants with usage this month whose prices change", difference.tenants_by_prices
        )
    return FieldLines(lines=[_line(each) for each in shown], omitted=omitted, notes=notes)


def _named(title: str, names: Iterable[str]) -> list[str]:
    text = ", ".join(names)
    return [f"{title}: {text}"] if text else []


def _tenants(title: str, counted: TenantCount | None) -> list[str]:
    if counted is None:
        return [f"{title}: unknown, because the ledger cannot be reached"]
    if not counted.count:
        return []
    rest = counted.count - len(counted.first)
    more = f", and {rest} more" if rest else ""
    return [f"{title}: {counted.count} ({', '.join(counted.first)}{more})"]


def _line(change: FieldChange) -> FieldLine:
    return FieldLine(path=change.path, before=_text(change.before), after=_text(change.after))


def _text(value: object) -> str | None:
    if value is msgspec.UNSET:
        return None
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
