"""Durations are written in the unit that suits them, without exponents."""

import pytest

from sluicegate.gateway.console.formats import seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (5e-83, "< 1 µs"),
        (0.00008, "80 µs"),
        (0.0009996, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (1.25, "1.25 s"),
        (1234.0, "1,230 s"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(value: float | None, text: str) -> None:
    assert seconds(value) == text
