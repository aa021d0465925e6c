"""Makes rows of usage events, one for each run of requests that differ by their ids and numbers."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from gateway.types import ID_DIGITS, RequestEvent

_SECOND: Final = 1_000_000_000
_KIND: Final = ("tenant", "key", "model", "task", "status", "region", "revision", "code", "batch")
_USED: Final = ("items", "hit", "collapsed", "computed", "failed", "rows", "tokens")
_kind_of: Final = attrgetter(*_KIND)
_used_by: Final = attrgetter(*(f"usage.{name}" for name in _USED))
_by_id: Final = attrgetter("id")
_LARGEST: Final = 2**63 - 1
_MOST_UNITS: Final = 2**40
"""The most units of an event: sums of millions of events still fit SQL numbers."""


def is_valid(event: RequestEvent) -> bool:
    """Tell whether the columns can hold the values of `event`."""
    used = _used_by(event)
    count, status, time = event.count, event.status, event.time
    return (
        min(used) >= 0
        and count > 0
        and max(used) * count <= _MOST_UNITS
        and count <= _LARGEST
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
    row["id"], row["time"], row["requests"] = event.id, event.time, count
    row |= zip(_USED, used if count == 1 else [each * count for each in used], strict=True)
    return row


def rows_of_runs(events: Sequence[RequestEvent]) -> list[dict[str, Any]]:
    """Return rows of events: one for those of a second and kind whose ids follow on each other.

    A row has the first id, the earliest time, and the sums. Prices change at whole seconds, so that
    all events of a row have one.
    """
    rows: list[dict[str, Any]] = []
    row: dict[str, Any] = {}
    last: object = None
    following = ""
    for event in sorted(events, key=_by_id):
        kind = (*_kind_of(event), event.time // _SECOND)
        if event.id == following and kind == last:
            count = event.count
            row["requests"] += count
            row["time"] = min(row["time"], event.time)
            for name, used in zip(_USED, _used_by(event), strict=True):
                row[name] += used * count
        else:
            row, last = row_of(event), kind
            rows.append(row)
        following = _following(event)
    return rows


def _following(event: RequestEvent) -> str:
    """Return the id after those of `event`; empty where ids are of another form."""
    stem, number = event.id[:-ID_DIGITS], event.id[-ID_DIGITS:]
    try:
        return f"{stem}{int(number, 16) + event.count:0{ID_DIGITS}x}"
    except ValueError:
        return ""
