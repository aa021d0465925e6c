"""Amounts and times as people read them."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

from sluicegate.gateway.console.amounts import moment, money


def test_amounts_have_two_decimals_and_small_ones_three_digits() -> None:
    shown = [money(each) for each in ("1234.5", 0, "0.0123", "0.002042668", Decimal("-0.00000002"))]

    assert shown == ["1,234.50", "0.00", "0.01", "0.00204", "-0.0000000200"]


def test_times_are_in_utc() -> None:
    east = timezone(timedelta(hours=2))

    assert moment(datetime(2026, 11, 2, 1, 30, tzinfo=east)) == "2026-11-01 23:30"
    assert moment(datetime(2026, 11, 2, tzinfo=UTC).timestamp()) == "2026-11-02 00:00"
    assert moment(None) == "-"
