"""Turns usage events into database rows. One row can hold a run: several similar requests."""

from collections.abc import Sequence
from operator import attrgetter, itemgetter, le
from typing import Any, Final

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.usage_fields import DETAILS, FIELDS, NUMBERS, UNITS
from sluicegate.gateway.types import ID_DIGITS, RequestEvent

_SECOND: Final = 1_000_000_000
_NAMES: Final = tuple(FIELDS)
_COLUMNS: Final = ("id", "time", "requests", "is_summed", *_NAMES)
_fields_of: Final = attrgetter(*_NAMES)
_used_by: Final = attrgetter(*(f"usage.{name}" for name in UNITS))
_details_of: Final = itemgetter(*map(_NAMES.index, DETAILS))
_NO_DETAILS: Final = _details_of([0 if name in NUMBERS else "" for name in _NAMES])
_by_id: Final = attrgetter("id")
_TEXTS: Final = ("id", *(name for name in _NAMES if name not in NUMBERS))
_texts_of: Final = attrgetter(*_TEXTS)
_LARGEST: Final = 2**63 - 1
_LENGTHS: Final = [
    getattr(schema.usage_events.c[name].type, "length", None) or _LARGEST for name in _TEXTS
]
_MOST_UNITS: Final = 2**40
"""The most units or requests of one event. A 64-bit column can hold the sum of millions of such
events."""


def is_valid(event: RequestEvent) -> bool:
    """Return whether the values of `event` fit into the columns of `usage_events`."""
    used, texts = _used_by(event), _texts_of(event)
    count, time = event.count, event.time
    return (
        min(used) >= 0
        and count > 0
        and max(used) * count <= _MOST_UNITS
        and count <= _MOST_UNITS
        and 0 <= event.status < 2**31
        and 0 <= time <= _LARGEST
        and all(map(le, map(len, texts), _LENGTHS))
        and "\0" not in "".join(texts)  # PostgreSQL refuses it
    )


def row_of(event: RequestEvent) -> dict[str, Any]:
    """Return the row of one event."""
    (row,) = rows_of_runs([event])
    return row


def rows_of_runs(events: Sequence[RequestEvent]) -> list[dict[str, Any]]:
    """Return one row for each run of similar `events`.

    The events of a run have consecutive ids, their times lie in the same second, and they have the
    same `FIELDS`. An event with one of `DETAILS`, such as an id of the caller, is in no run. The
    row of a run has the first event's id, the events' earliest time, and the sums of their units.
    All events of a run have the same price, because prices change only at whole seconds.
    """
    rows: list[dict[str, Any]] = []
    used: list[list[tuple[int, ...]]] = []  # for each row, the usage of its events
    last: object = None
    following = ""
    for event in sorted(events, key=_by_id):
        fields, time, count = _fields_of(event), event.time, event.count
        second = time // _SECOND
        is_following = event.id == following and (fields, second) == last
        if is_following and _details_of(fields) == _NO_DETAILS:
            row = rows[-1]
            row["requests"] += count
            row["time"] = min(row["time"], time)
        else:
            last = fields, second
            values = (event.id, time, count, schema.IN_TOTALS, *fields)
            rows.append(dict(zip(_COLUMNS, values, strict=True)))
            used.append([])
        each = _used_by(event)
        used[-1].append(each if count == 1 else tuple([one * count for one in each]))
        following = _following(event.id, count)
    for row, of_row in zip(rows, used, strict=True):
        units = of_row[0] if len(of_row) == 1 else map(sum, zip(*of_row, strict=True))
        row.update(zip(UNITS, units, strict=True))
    return rows


def _following(first: str, count: int) -> str:
    """Return the id whose number is higher by `count` than the number at the end of `first`.

    The result is empty if `first` does not end in a hexadecimal number.
    """
    try:
        number = int(first[-ID_DIGITS:], 16) + count
    except ValueError:
        return ""
    return f"{first[:-ID_DIGITS]}{number:0{ID_DIGITS}x}"
