"""Charts of usage: buckets without gaps, the largest by name, the others together."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.console.usage_series import (
    OTHERS,
    ChartSpan,
    Measure,
    UsageQuery,
    UsageReader,
    breakdown_chart,
    buckets_of,
    charged_over_time,
    margin_chart,
    source_chart,
)
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import GroupBy
from sluicegate.gateway.types import Usage
from tests.support.events import START, make_event
from tests.support.ledgers import open_ledger, record

_SECOND = 1_000_000_000
NOW = datetime.fromtimestamp(START / _SECOND, UTC) + timedelta(hours=30, minutes=10)
PRICES = (PriceConfig(computed=2_000_000_000),)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[UsageReader]:
    with open_ledger(tmp_path) as ledger:
        _fill(ledger)
        yield UsageReader(ledger, PRICES)


def _fill(ledger: Ledger) -> None:
    hour = 3_600 * _SECOND
    events = [
        make_event(1, time=START + 30 * hour, usage=Usage.of(hit=4)),
        make_event(2, time=START + 30 * hour, tenant="beta", usage=Usage.of(computed=3)),
        make_event(3, time=START + 29 * hour, model="other", usage=Usage.of(failed=2)),
    ]
    record(ledger, "log", 3, events)


def test_buckets_have_no_gap_and_end_now() -> None:
    day, week, month = (
        buckets_of(span, NOW) for span in (ChartSpan.DAY, ChartSpan.WEEK, ChartSpan.MONTH)
    )

    assert (len(day.starts), len(week.starts), len(month.starts)) == (24, 151, 30)
    assert day.starts[-1] == NOW.replace(minute=0)
    assert day.edges[-1] > NOW.timestamp()
    assert buckets_of(ChartSpan.THIS_MONTH, NOW).since.day == 1


def test_items_are_drawn_by_source(reader: UsageReader) -> None:
    buckets = buckets_of(ChartSpan.DAY, NOW)

    chart = source_chart(reader.over_time(UsageQuery(), buckets), buckets)

    last = {series.label: series.values[-2:] for series in chart.series}
    assert last == {"hit": [0, 4], "collapsed": [0, 0], "computed": [0, 3], "failed": [2, 0]}
    assert len(chart.times) == len(chart.series[0].values) == 24


def test_a_breakdown_names_the_largest_and_adds_up_the_others(reader: UsageReader) -> None:
    buckets, wanted = buckets_of(ChartSpan.DAY, NOW), UsageQuery(by=GroupBy.TENANT)
    names = [str(row.tenant) for row in reader.totals(wanted, buckets)]

    rows = reader.largest(wanted, buckets, names[:1])
    chart = breakdown_chart(reader.over_time(wanted, buckets), rows, names[:1], wanted, buckets)

    assert names == ["acme", "beta"]
    found = {series.label: series.values[-2:] for series in chart.series}
    assert found == {"acme": [2, 4], OTHERS: [0, 3]}


def test_a_breakdown_of_nothing_has_no_line(reader: UsageReader) -> None:
    buckets, wanted = buckets_of(ChartSpan.DAY, NOW), UsageQuery(tenant="nobody")

    chart = breakdown_chart(reader.over_time(wanted, buckets), [], [], wanted, buckets)

    assert chart.series == []


def test_the_margin_is_what_was_charged_less_the_cost(reader: UsageReader) -> None:
    buckets, wanted = buckets_of(ChartSpan.DAY, NOW), UsageQuery(measure=Measure.CHARGED)
    charged = charged_over_time(reader.over_time(wanted, buckets), buckets, "EUR")

    with_costs = margin_chart(charged, [5_000_000_000] * 24, buckets, "EUR")
    without = margin_chart(charged, None, buckets, "EUR")

    last = {series.label: series.values[-1] for series in with_costs.series}
    assert last == {"charged": 6.0, "backends": 5.0, "margin": 1.0}
    assert [series.label for series in without.series] == ["charged"]
