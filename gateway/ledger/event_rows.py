"""Turns usage events into database rows. One row can hold a run: several similar requests."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from gateway.ledger.schema import IN_TOTALS
from gateway.types import ID_DIGITS, RequestEvent

_SECOND: Final = 1_000_000_000
_KIND: Final = ("tenant", "key", "model", "task", "status", "region", "revision", "code", "batch")
_USED: Final = ("items", "hit", "collapsed", "computed", "failed", "rows", "tokens")
_kind_of: Final = attrgetter(*_KIND)
_used_by: Final = attrgetter(*(f"usage.{name}" for name in _USED))
_by_id: Final = attrgetter("id")
_LARGEST: Final = 2**63 - 1
_MOST_UNITS: Final = 2**40
"""The most units or requests of one event. A 64-bit column can hold the sum of millions of such
events."""


def is_valid(event: RequestEvent) -> bool:
    """Return whether the values of `event` fit into the columns of `usage_events`."""
    used = _used_by(event)
    count, status, time = event.count, event.status, event.time
    return (
        min(used) >= 0
        and count > 0
        and max(used) * count <= _MOST_UNITS
        and count <= _MOST_UNITS
        and 0 <= status <= _LARGEST
        and 0 <= time <= _LARGEST
        and len(event.id) <= 128  # noqa: PLR2004
        and len(event.tenant) <= 64  # noqa: PLR2004
        and len(event.key) <= 64  # noqa: PLR2004
    )


def row_of(event: RequestEvent) -> dict[str, Any]:
    """Return the row of one event."""
    row = dict(zip(_KIND, _kind_of(event), strict=True))
    count, used = event.count, _used_by(event)
    row |= {"id": event.id, "time": event.time, "requests": count, "is_summed": IN_TOTALS}
    row |= zip(_USED, used if count == 1 else [each * count for each in used], strict=True)
    return row


def rows_of_runs(events: Sequence[RequestEvent]) -> list[dict[str, Any]]:
    """Return one row for each run of similar `events`.

    The events of a run have consecutive ids, and their times lie in the same second. They have the
    same tenant, key, model, task, status, region, revision, error code and value of `batch`. The
    row of a run has the first event's id, the events' earliest time, and the sums of their units.
    All events of a run have the same price, because prices change only at whole seconds.
    """
    rows: list[dict[str, Any]] = []
    used: list[list[tuple[int, ...]]] = []  # for each row, the usage of its events
    last: object = None
    following = ""
    for event in sorted(events, key=_by_id):
        kind, time, count = _kind_of(event), event.time, event.count
        second = time // _SECOND
        if event.id == following and (kind, second) == last:
            row = rows[-1]
            row["requests"] += count
            row["time"] = min(row["time"], time)
        else:
            last = kind, second
            rows.append(dict(zip(_KIND, kind, strict=True)))
            rows[-1] |= {"id": event.id, "time": time, "requests": count, "is_summed": IN_TOTALS}
            used.append([])
        each = _used_by(event)
        used[-1].append(each if count == 1 else tuple([one * count for one in each]))
        following = _following(event.id, count)
    for row, of_row in zip(rows, used, strict=True):
        row.update(zip(_USED, map(sum, zip(*of_row, strict=True)), strict=True))
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
