"""Forms: limits, budgets, words and times, and what is wrong in them."""

from datetime import UTC, datetime

import pytest

from sluicegate.gateway.console.forms import budget_of, moment_of, number_of, rules_of, words_of
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.types import Budget
from sluicegate.gateway.types import Rule

ROWS = {
    "rule_name": ["minute", "month", ""],
    "rule_unit": ["requests", "items", "requests"],
    "rule_capacity": [" 600 ", "1000000", ""],
    "rule_window": ["60", "", ""],
    "rule_period": ["", "month", ""],
    "rule_model": ["", "sentiment", ""],
    "rule_shadow": ["no", "yes", "no"],
}


def test_each_row_with_a_name_is_a_limit() -> None:
    assert rules_of(ROWS) == (
        Rule(name="minute", unit="requests", capacity=600, window=60.0),
        Rule(
            name="month",
            unit="items",
            capacity=1_000_000,
            period="month",
            model="sentiment",
            shadow=True,
        ),
    )


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(InvalidRequest, match="`minute`, capacity: `many`"):
        rules_of(ROWS | {"rule_capacity": ["many", "1", ""]})
    with pytest.raises(InvalidRequest, match="window: `soon`"):
        rules_of(ROWS | {"rule_window": ["soon", "", ""]})
    with pytest.raises(InvalidRequest, match="incomplete"):
        rules_of(ROWS | {"rule_unit": ["items"]})


def test_a_budget_has_thresholds_and_may_refuse() -> None:
    fields = {"amount": ["250.00"], "thresholds": ["80, 100"], "refuse": ["yes"]}

    assert budget_of(fields) == Budget(amount="250.00", thresholds=(80, 100), refuse=True)
    assert budget_of({"amount": ["1"]}).refuse is False


def test_words_and_times_may_be_left_out() -> None:
    fields = {"models": ["a, b\nc"], "until": ["2026-11-02T10:00"], "none": [" "]}

    assert words_of(fields, "models") == ("a", "b", "c")
    assert words_of(fields, "none") is None
    assert moment_of(fields, "until") == datetime(2026, 11, 2, 10, tzinfo=UTC)
    assert moment_of(fields, "none") is None
    with pytest.raises(InvalidRequest, match="not a date or a time"):
        moment_of({"since": ["soon"]}, "since")


@pytest.mark.parametrize("text", ["", "-1", "one", "9" * 5000])
def test_what_is_no_number_that_something_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="`before`"):
        number_of(text, "before")
