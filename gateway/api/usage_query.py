"""Parses the query parameters of usage, for both listeners."""

from collections.abc import Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime

from sluicegate.gateway.errors import InvalidRequest

_ALL_YEARS = range(MINYEAR, MAXYEAR + 1)


def parse_group_by(
    values: Sequence[str] | None, allowed: Sequence[str], *, default: str
) -> list[str]:
    """Return the names of `group_by`, each once; `default` where there are none.

    They are repeated, or separated by commas.

    Raises:
        InvalidRequest: a name is not `allowed`.
    """
    parts = [part.strip() for text in values or [default] for part in text.split(",")]
    names = list(dict.fromkeys(part for part in parts if part))
    for name in names:
        if name not in allowed:
            listed = "`, `".join(allowed)
            raise InvalidRequest(f"`group_by` takes `{listed}`, and not `{name[:80]}`.")
    return names


def parse_moment(name: str, value: str | None, *, years: range = _ALL_YEARS) -> datetime | None:
    """Return the moment that the parameter `name` says; without a zone it is UTC.

    Raises:
        InvalidRequest: it is no date or time, or not in `years`.
    """
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidRequest(f"`{name}` must be a date or time, as 2026-11-21.") from error
    if moment.year not in years:
        raise InvalidRequest(f"`{name}` must be in the years {years[0]} to {years[-1]}.")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
