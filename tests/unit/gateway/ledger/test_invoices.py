"""An invoice is rounded once per line, and reads the same as JSON and as CSV."""

import csv
import io

import msgspec
import pytest

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.invoices import make_invoice, month_bounds
from sluicegate.gateway.ledger.pricing import Price, decimal, starts_at
from sluicegate.gateway.ledger.rendering import invoice_csv, usage_csv
from sluicegate.gateway.ledger.types import GroupUsage, Units
from sluicegate.gateway.ledger.usage import PricedUsage

CENT = 10_000_000


def priced(hit: int, *, model: str = "m", currency: str = "EUR", price: int = CENT) -> PricedUsage:
    entry = PriceConfig(model=model, currency=currency, hit=price)
    units = Units(requests=hit, items=hit, hit=hit)
    return PricedUsage(
        group=(), model=model, price=Price(entry=entry, since=starts_at(entry)), units=units
    )


def test_a_line_is_rounded_once_not_each_of_its_parts() -> None:
    thirds = [priced(1, price=CENT // 2 - 1) for _ in range(3)]

    (line,) = make_invoice("acme", "2026-09", thirds).lines

    assert line.exact == decimal(3 * (CENT // 2 - 1))
    assert line.amount == "0.01"


def test_the_total_is_the_sum_of_rounded_lines() -> None:
    lines = [priced(1, model=name, price=CENT + CENT // 2) for name in ("a", "b")]

    invoice = make_invoice("acme", "2026-09", lines)

    assert [line.amount for line in invoice.lines] == ["0.02", "0.02"]
    assert [total.amount for total in invoice.totals] == ["0.04"]


def test_what_batch_jobs_used_has_a_line_of_its_own() -> None:
    one = priced(1)
    of_batch = msgspec.structs.replace(one, price=one.price.for_batches())

    lines = make_invoice("acme", "2026-09", [one, of_batch, one]).lines

    kinds = [(line.price.partition("+")[2], line.units.hit) for line in lines]
    assert kinds == [("", 2), ("batch", 1)]


def test_currencies_are_never_added_up() -> None:
    lines = [priced(1), priced(2, model="n", currency="CHF")]

    totals = make_invoice("acme", "2026-09", lines).totals

    assert [(t.currency, t.amount) for t in totals] == [("CHF", "0.02"), ("EUR", "0.01")]


def test_an_invoice_as_json_writes_money_as_decimal_numbers() -> None:
    invoice = msgspec.to_builtins(make_invoice("acme", "2026-09", [priced(150)]))

    (line,) = invoice["lines"]
    assert line["unit_prices"]["hit"] == "0.010000000"
    assert (line["exact"], line["amount"]) == ("1.500000000", "1.50")
    assert line["units"]["hit"] == 150
    assert invoice["totals"] == [{"currency": "EUR", "amount": "1.50"}]


def test_an_invoice_as_csv_has_a_row_per_line() -> None:
    text = invoice_csv(make_invoice("acme", "2026-09", [priced(150), priced(1, model="n")]))

    rows = list(csv.DictReader(io.StringIO(text)))

    assert [(r["model"], r["hit"], r["amount"]) for r in rows] == [
        ("m", "150", "1.50"),
        ("n", "1", "0.01"),
    ]


def test_a_name_in_csv_is_no_formula() -> None:
    text = invoice_csv(make_invoice("acme", "2026-09", [priced(1, model="=1+1")]))

    assert "'=1+1" in text


def test_usage_shows_the_groups_it_has() -> None:
    row = GroupUsage(
        day="2026-09-01", model="m", requests=1, hit=1, cost=decimal(5), currency="EUR"
    )

    shown = msgspec.to_builtins(row)

    assert shown["day"] == "2026-09-01"
    assert "tenant" not in shown
    assert shown["cost"] == "0.000000005"
    groups = ("model", "day")
    assert usage_csv([row], groups).startswith("day,model,requests,items,")
    assert usage_csv([], groups).startswith("day,model,requests,items,")


def test_a_month_is_as_long_as_its_days() -> None:
    for month, days in (("2026-02", 28), ("2028-02", 29), ("2026-12", 31)):
        since, until = month_bounds(month)
        assert until - since == days * 86_400 * 1_000_000_000


@pytest.mark.parametrize(
    "text", ["2026-9", "2026-13", "26-09", "2026-09-01", "2026 -9", "0000-01", ""]
)
def test_a_month_has_one_spelling(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a month such as"):
        month_bounds(text)
