"""Statistics of a worker's parts are reported as metrics and as JSON."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.app.stats_reporter import StatsReporter
from gateway.telemetry.metrics import GatewayMetrics, numbers
from loadtests.harness.waiting import until


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    hits: int = 3
    state: str = "closed"


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    entries: int = 2
    ratio: float = 0.5
    is_full: bool = True
    memory: Inner = Inner()
    names: tuple[str, ...] = ("a",)
    nothing: int | None = None


def test_numbers_are_taken_and_the_rest_left() -> None:
    assert numbers(Outer()) == {
        "entries": 2.0,
        "ratio": 0.5,
        "is_full": 1.0,
        "memory_hits": 3.0,
    }


@pytest.mark.anyio
async def test_statistics_reach_the_metrics_at_each_interval() -> None:
    registry = CollectorRegistry()
    asked: list[int] = []

    def source() -> Inner:
        asked.append(1)
        return Inner(hits=len(asked))

    reporter = StatsReporter(
        metrics=GatewayMetrics(registry),
        sources={"cache": source},
        details={"fleet": lambda: [{"region": "eu"}]},
        interval=0.001,
    )
    async with reporter:
        await until(lambda: len(asked) > 2)

    labels = {"part": "cache", "figure": "hits"}
    assert registry.get_sample_value("sluicegate_worker", labels) == len(asked)


def test_a_report_is_json_of_every_part() -> None:
    reporter = StatsReporter(
        metrics=GatewayMetrics(CollectorRegistry()),
        sources={"cache": Inner},
        details={"fleet": lambda: [{"region": "eu"}]},
    )

    assert msgspec.json.decode(reporter.report()) == {
        "cache": {"hits": 3, "state": "closed"},
        "fleet": [{"region": "eu"}],
    }
