"""Reads the calendar, and defines the calendar periods of quotas.

Days and months begin and end in UTC.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

_DAY: Final = 86_400
_MONTHS: Final = 12


def utc_now() -> datetime:
    """Return the present time in UTC."""
    return datetime.fromtimestamp(time.time_ns() / 1e9, UTC)


class Period(msgspec.Struct, frozen=True):
    """Describes a kind of period.

    `seconds` is about its length. `ends` takes a Unix time in seconds. It returns when the period
    that contains this time ends, and when the next period ends.
    """

    seconds: int
    ends: Callable[[float], tuple[float, float]]


def _ends_of_days(now: float) -> tuple[float, float]:
    end = (now // _DAY + 1) * _DAY
    return end, end + _DAY


def _ends_of_months(now: float) -> tuple[float, float]:
    today = datetime.fromtimestamp(now, UTC)
    months = today.year * _MONTHS + today.month
    first, second = (
        datetime((months + more) // _MONTHS, (months + more) % _MONTHS + 1, 1, tzinfo=UTC)
        for more in (0, 1)
    )
    return first.timestamp(), second.timestamp()


PERIODS: Final = {
    "day": Period(_DAY, _ends_of_days),
    "month": Period(30 * _DAY, _ends_of_months),
}
"""The periods by their names in limits (`period`)."""
