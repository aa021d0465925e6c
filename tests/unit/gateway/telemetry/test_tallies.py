"""Metrics that are added up in Python and brought to the instruments now and then."""

from prometheus_client import CollectorRegistry

from gateway.telemetry.metrics import GatewayMetrics


def test_a_flush_brings_what_was_counted_and_no_more() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)

    for duration in (0.0001, 0.003, 20.0):
        metrics.request("classify", 200, duration)
    metrics.items("sentiment", "hit", 3)
    metrics.work("sentiment", rows=2, tokens=9)
    before = registry.get_sample_value("sluicegate_items_total", {"model": "sentiment"})
    metrics.flush()
    metrics.flush()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sluicegate_{name}", labels)

    assert before is None
    assert value("requests_total", task="classify", status="200") == 3
    assert value("items_total", model="sentiment", source="hit") == 3
    assert (value("rows_total", model="sentiment"), value("tokens_total", model="sentiment")) == (
        2,
        9,
    )
    seconds = "request_duration_seconds"
    assert value(f"{seconds}_count", task="classify") == 3
    assert value(f"{seconds}_bucket", task="classify", le="0.0005") == 1
    assert value(f"{seconds}_bucket", task="classify", le="10.0") == 2
    assert value(f"{seconds}_sum", task="classify") == 20.0031
