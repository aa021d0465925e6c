"""Makes the series of the usage charts from the ledger's rows of usage."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from operator import attrgetter

import msgspec

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import GroupBy, GroupUsage
from sluicegate.gateway.types import Source

MOST_SERIES = 7
OTHERS = "others"
NO_GROUP = "none"
"""Stands for requests without a value, such as requests that no backend answered."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
SOURCES = [source.value for source in Source]


class ChartSpan(StrEnum):
    """Names the spans of time that the charts can show."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"
    THIS_MONTH = "month"
    YEAR = "365d"


class Measure(StrEnum):
    """Names what charts can show and the table has a column for: numbers of usage, and money."""

    REQUESTS = "requests"
    ITEMS = "items"
    COMPUTED = "computed"
    FAILED = "failed"
    ROWS = "rows"
    CHARGED = "charged"

    @property
    def label(self) -> str:
        """What the console calls the measure."""
        return self.value.replace("_", " ")

    @property
    def is_money(self) -> bool:
        """Whether the measure is an amount of money. Others are fields of `GroupUsage`."""
        return self is Measure.CHARGED


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """The hours or days of a chart. The last hour or day is cut off at `until`."""

    since: datetime
    until: datetime
    unit: GroupBy

    @property
    def starts(self) -> list[datetime]:
        """The start of each hour or day."""
        step = _DAY if self.unit is GroupBy.DAY else _HOUR
        count = -((self.since - self.until) // step)
        return [self.since + index * step for index in range(count)]

    @property
    def edges(self) -> list[float]:
        """The bounds of the hours or days, as Unix times in seconds."""
        return [*(start.timestamp() for start in self.starts), self.until.timestamp()]

    def label(self, start: datetime) -> str:
        """Return the name that rows of usage have for the hour or day that begins at `start`."""
        return (
            start.date().isoformat()
            if self.unit is GroupBy.DAY
            else start.strftime("%Y-%m-%dT%H:%M:%SZ")
        )


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart, with a value for each hour or day."""

    label: str
    values: list[float]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a chart. `times` are Unix times in seconds."""

    times: list[float]
    series: list[Series]
    unit: str

    @property
    def json(self) -> str:
        """The chart as `usage.js` reads it."""
        return msgspec.json.encode(self).decode()


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's choices on the page of usage."""

    span: ChartSpan = ChartSpan.WEEK
    tenant: str = ""
    model: str = ""
    by: GroupBy = GroupBy.MODEL
    measure: Measure = Measure.ITEMS

    @property
    def models(self) -> list[str] | None:
        """The models to show. `None` means all models."""
        return [self.model] if self.model else None

    @property
    def is_too_slow(self) -> bool:
        """Whether reading the usage would take seconds, because it is that of many events."""
        return self.span is ChartSpan.YEAR and not self.by.is_summed


def buckets_of(span: ChartSpan, now: datetime) -> Buckets:
    """Return the hours or days of `span` up to `now`, in UTC."""
    now = now.astimezone(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    until = now + timedelta(seconds=1)
    if span is ChartSpan.DAY:
        return Buckets(since=hour - 23 * _HOUR, until=until, unit=GroupBy.HOUR)
    if span is ChartSpan.WEEK:
        return Buckets(since=day - 6 * _DAY, until=until, unit=GroupBy.HOUR)
    if span is ChartSpan.THIS_MONTH:
        return Buckets(since=day.replace(day=1), until=until, unit=GroupBy.DAY)
    days = 29 if span is ChartSpan.MONTH else 364
    return Buckets(since=day - days * _DAY, until=until, unit=GroupBy.DAY)


class UsageReader:
    """Reads the usage for a chart. All calls block."""

    def __init__(self, ledger: Ledger, prices: Sequence[PriceConfig]) -> None:
        self._ledger = ledger
        self._prices = prices

    def totals(self, wanted: UsageQuery, buckets: Buckets) -> list[GroupUsage]:
        """Return one row for each group. Rows with the most usage come first."""
        rows = self._rows(wanted, buckets, [wanted.by])
        return sorted(rows, key=lambda row: -measured(row, wanted.measure))

    def over_time(self, wanted: UsageQuery, buckets: Buckets) -> list[GroupUsage]:
        """Return one row for each hour or day and each currency."""
        return self._rows(wanted, buckets, [buckets.unit])

    def largest(
        self, wanted: UsageQuery, buckets: Buckets, names: Collection[str]
    ) -> list[GroupUsage]:
        """Return rows for each hour or day and each group in `names`, maybe also for others."""
        if not names:
            return []
        return self._rows(wanted, buckets, [buckets.unit, wanted.by], names=names)

    def _rows(
        self,
        wanted: UsageQuery,
        buckets: Buckets,
        groups: list[GroupBy],
        *,
        names: Collection[str] = (),
    ) -> list[GroupUsage]:
        return self._ledger.usage(
            wanted.tenant or None,
            buckets.since,
            buckets.until,
            groups,
            prices=self._prices,
            models=(names if wanted.by is GroupBy.MODEL else None) or wanted.models,
            tenants=(names if wanted.by is GroupBy.TENANT else None) or None,
        )


def measured(row: GroupUsage, measure: Measure) -> float:
    """Return the value of `measure` in a row."""
    return float(Decimal(row.cost) if measure.is_money else getattr(row, measure.value))


def source_chart(rows: Sequence[GroupUsage], buckets: Buckets) -> Chart:
    """Return a chart of the number of items by outcome: hit, collapsed, computed or failed.

    A collapsed item has shared the result of an equal item that was in flight.
    """
    series = [
        Series(label=name, values=_values(rows, buckets, attrgetter(name))) for name in SOURCES
    ]
    return _chart(buckets, series, unit="items")


def breakdown_chart(
    total: Sequence[GroupUsage],
    rows: Sequence[GroupUsage],
    names: Sequence[str],
    wanted: UsageQuery,
    buckets: Buckets,
) -> Chart:
    """Return a series for each group in `names`, and one series for all others."""

    def value(row: GroupUsage) -> float:
        return measured(row, wanted.measure)

    series = [
        Series(
            label=name,
            values=_values(
                [row for row in rows if group_of(row, wanted.by) == name], buckets, value
            ),
        )
        for name in names
    ]
    whole = _values(total, buckets, value)
    shown = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    rest = [max(0.0, a - b) for a, b in zip(whole, shown or [0.0] * len(whole), strict=True)]
    if any(value > 1e-9 for value in rest):  # noqa: PLR2004 - below the smallest amount
        series.append(Series(label=OTHERS, values=rest))
    return _chart(buckets, series, unit=wanted.measure.value)


def charged_over_time(rows: Sequence[GroupUsage], buckets: Buckets, currency: str) -> list[float]:
    """Return the charges in each hour or day, in `currency`."""
    own = [row for row in rows if row.currency == currency]
    return _values(own, buckets, lambda row: float(Decimal(row.cost)))


def group_of(row: GroupUsage, by: GroupBy) -> str:
    """Return the group of a row, such as its tenant or model."""
    return str(getattr(row, by.value)) or NO_GROUP


def margin_chart(
    charged: Sequence[float], costs: Sequence[int] | None, buckets: Buckets, currency: str
) -> Chart:
    """Return a chart of charges, and of costs and margin if the `costs` of backends are known."""
    series = [Series(label="charged", values=list(charged))]
    if costs is not None:
        spent = [cost / 1e9 for cost in costs]
        margin = [a - b for a, b in zip(charged, spent, strict=True)]
        series += [Series(label="backends", values=spent), Series(label="margin", values=margin)]
    return _chart(buckets, series, unit=currency)


def _chart(buckets: Buckets, series: list[Series], *, unit: str) -> Chart:
    return Chart(times=buckets.edges[:-1], series=series, unit=unit)


def _values(
    rows: Sequence[GroupUsage], buckets: Buckets, value: Callable[[GroupUsage], float]
) -> list[float]:
    sums: dict[str, float] = {}
    for row in rows:
        label = str(row.day if buckets.unit is GroupBy.DAY else row.hour)
        sums[label] = sums.get(label, 0.0) + value(row)
    return [sums.get(buckets.label(start), 0.0) for start in buckets.starts]
