"""Statistics of a worker's parts are reported as metrics and as JSON."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.app.stats_reporter import StatsReporter
from sluicegate.gateway.inference.coalescing import FlightStatistics
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from testing.waiting import until


@pytest.mark.anyio
async def test_statistics_reach_the_metrics_at_each_interval() -> None:
    registry = CollectorRegistry()
    asked: list[int] = []
    published: list[int] = []

    def source() -> FlightStatistics:
        asked.append(1)
        return FlightStatistics(in_flight=len(asked), led=2 * len(asked), joined=0)

    reporter = StatsReporter(
        metrics=GatewayMetrics(registry),
        sources={"coalescing": source},
        details={"fleet": lambda: [{"region": "eu"}]},
        publish=(lambda: published.append(1),),
        interval=0.001,
    )
    async with reporter:
        await until(lambda: len(asked) > 2)

    led = registry.get_sample_value("sluicegate_coalescing_items_total", {"role": "led"})
    assert registry.get_sample_value("sluicegate_coalescing_in_flight") == len(asked)
    assert led == 2 * len(asked)
    assert len(published) == len(asked)


def test_a_report_is_json_of_every_part() -> None:
    reporter = StatsReporter(
        metrics=GatewayMetrics(CollectorRegistry()),
        sources={"coalescing": lambda: FlightStatistics(in_flight=3, led=1, joined=0)},
        details={"fleet": lambda: [{"region": "eu"}]},
    )

    assert msgspec.json.decode(reporter.report()) == {
        "coalescing": {"in_flight": 3, "led": 1, "joined": 0},
        "fleet": [{"region": "eu"}],
    }
