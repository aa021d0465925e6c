"""A speedup counts only as far as nearly all turns show it."""

import pytest

from sluicegate.backends.model_tools.tuning.variant_gate import speed_reasons
from sluicegate.backends.qualification.text_runs import SpeedSample, Speedup, summarize_turns


def speedup(*rates: float) -> Speedup:
    """Return what turns show in which fp32 runs 100 rows a second."""
    before = SpeedSample(rows_per_second=100.0, p95=0.02)
    return summarize_turns(
        [(before, SpeedSample(rows_per_second=rate, p95=1 / rate)) for rate in rates]
    )


def test_a_variant_that_was_lucky_in_most_turns_is_refused() -> None:
    found = speedup(*[106] * 8, 95, 95, 95)

    assert (found.ratio, found.at_least) == (1.06, 0.95)
    assert (
        "1.06 times as fast as fp32, but may be only 0.95"
        in speed_reasons(found.ratio, found.at_least, 1.0)[0]
    )


def test_two_slow_turns_of_eleven_are_the_machine() -> None:
    found = speedup(*[200] * 9, 50, 50)

    assert (found.ratio, found.at_least) == (2.0, 2.0)
    assert found.after.p95 == pytest.approx(0.005)
    assert not speed_reasons(found.ratio, found.at_least, 1.5)


def test_a_variant_that_is_slower_is_refused_with_its_ratio() -> None:
    assert speed_reasons(0.95, 0.9, 1.0) == [
        "it is 0.95 times as fast as fp32; at least 1 is required"
    ]
