"""The price of an event is that of its model at its time; amounts are exact, rounded once."""

from datetime import UTC, datetime

import pytest

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.ledger.pricing import (
    PriceList,
    amount,
    decimal,
    digits,
    round_amount,
    starts_at,
)
from sluicegate.gateway.ledger.store import to_datetime, to_nanoseconds
from sluicegate.gateway.ledger.types import Units

CENT = 10_000_000


def at(text: str) -> int:
    return to_nanoseconds(datetime.fromisoformat(text).replace(tzinfo=UTC))


def test_the_latest_price_that_has_begun_applies() -> None:
    prices = PriceList(
        [PriceConfig(since="2026-09-01", hit=2), PriceConfig(since="2026-01-01", hit=1)]
    )

    assert prices.at("m", at("2026-08-31T23:59:59")).entry.hit == 1
    assert prices.at("m", at("2026-09-01T00:00:00")).entry.hit == 2


def test_a_models_own_price_goes_before_a_newer_general_one() -> None:
    prices = PriceList(
        [
            PriceConfig(model="big", since="2026-01-01", hit=9),
            PriceConfig(model="*", since="2026-06-01", hit=1),
        ]
    )

    assert prices.at("big", at("2026-09-01")).entry.hit == 9
    assert prices.at("small", at("2026-09-01")).entry.hit == 1


def test_before_its_own_price_begins_the_general_one_applies() -> None:
    prices = PriceList(
        [
            PriceConfig(model="big", since="2026-06-01", hit=9),
            PriceConfig(model="*", since="2026-01-01", hit=1),
        ]
    )

    assert prices.at("big", at("2026-05-31")).entry.hit == 1


def test_before_any_price_nothing_costs_anything() -> None:
    prices = PriceList([PriceConfig(since="2026-06-01", currency="CHF", computed=5)])

    price = prices.at("m", at("2026-01-01"))

    assert amount(Units(computed=10), price.entry) == 0
    assert price.entry.currency == "CHF"


def test_no_price_changes_within_a_period() -> None:
    prices = PriceList([PriceConfig(since=s) for s in ("2026-01-01", "2026-06-01", "2026-09-01")])

    periods = prices.periods(at("2026-05-01"), at("2026-07-01"))

    assert periods == [
        (at("2026-05-01"), at("2026-06-01")),
        (at("2026-06-01"), at("2026-07-01")),
    ]
    assert prices.periods(at("2026-05-01"), at("2026-05-01")) == []


def test_a_collapsed_item_costs_a_hit_and_a_failed_one_nothing() -> None:
    price = PriceConfig(hit=1, computed=10, row=100, token=1000)
    units = Units(hit=2, collapsed=3, computed=4, failed=50, rows=6, tokens=7)

    assert amount(units, price) == 5 * 1 + 4 * 10 + 6 * 100 + 7 * 1000


@pytest.mark.parametrize(
    ("exact", "rounded"),
    [
        (0, 0),
        (CENT // 2, 0),
        (CENT // 2 + 1, CENT),
        (CENT + CENT // 2, 2 * CENT),
        (2 * CENT + CENT // 2, 2 * CENT),
        (3 * CENT - 1, 3 * CENT),
    ],
)
def test_a_tie_is_rounded_to_the_even_cent(exact: int, rounded: int) -> None:
    assert round_amount(exact, "EUR") == rounded


def test_currencies_have_their_own_smallest_unit() -> None:
    assert round_amount(1_400_000_000, "JPY") == 1_000_000_000
    assert round_amount(1_234_600_000, "KWD") == 1_235_000_000


def test_amounts_are_written_as_decimal_numbers() -> None:
    assert decimal(12_345_000_000, 2) == "12.34"
    assert decimal(1, 9) == "0.000000001"
    assert decimal(7_000_000_000, 0) == "7"
    assert decimal(-50_000_000, 2) == "-0.05"


def test_a_price_that_begins_at_no_date_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="soon"):
        starts_at(PriceConfig(since="soon"))


def test_times_survive_the_ledger_to_the_microsecond() -> None:
    moment = datetime(2026, 9, 1, 12, 30, 15, 999_999, tzinfo=UTC)

    assert to_datetime(to_nanoseconds(moment)) == moment


@pytest.mark.parametrize(
    ("currency", "rounded"), [("EUR", "1.50"), ("VND", "2"), ("XAF", "2"), ("OMR", "1.500")]
)
def test_amounts_have_the_decimal_places_of_their_currency(currency: str, rounded: str) -> None:
    amounts = round_amount(1_500_000_000, currency)

    assert decimal(amounts, digits(currency)) == rounded
