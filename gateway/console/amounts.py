"""Formats amounts of money and times for the console's pages."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_CENT = Decimal("0.01")
_DIGITS = 3


def money(amount: str | float | Decimal) -> str:
    """Format an amount with two decimal places, or three significant digits if it is below 0.01."""
    value = Decimal(str(amount))
    if value and abs(value) < _CENT:
        return f"{value:.{_DIGITS - 1 - value.adjusted()}f}"
    return f"{value:,.2f}"


def moment(value: datetime | float | None) -> str:
    """Format a time in UTC as `2026-11-02 10:30`. Format `None` as a dash."""
    if value is None:
        return "-"
    if not isinstance(value, datetime):
        value = datetime.fromtimestamp(value, UTC)
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


FILTERS: dict[str, Callable[[Any], str]] = {"money": money, "moment": moment}
