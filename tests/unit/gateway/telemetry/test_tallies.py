"""Metrics that are added up in Python and brought to the instruments now and then."""

import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.telemetry.metrics import GatewayMetrics, outcome_of

_ROUTE = "/v1/classify"


def test_a_flush_brings_what_was_counted_and_no_more() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)

    for duration in (0.000008, 0.003, 20.0):
        metrics.request(_ROUTE, "sentiment", duration)
    metrics.request(_ROUTE, "", 0.001, status=429, code="rate_limited")
    metrics.items("sentiment", "ab12", "memory_hit", 3)
    metrics.work("sentiment", rows=2, tokens=9)
    metrics.phases.add("cache", 0.00001, 64)
    item = {"model": "sentiment", "revision": "ab12", "source": "memory_hit"}
    before = registry.get_sample_value("sluicegate_items_total", item)
    metrics.flush()
    metrics.flush()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sluicegate_{name}", labels)

    assert before is None
    assert value("requests_total", route=_ROUTE, model="sentiment", status="200") == 3
    assert value("requests_total", route=_ROUTE, model="", status="429") == 1
    assert value("items_total", **item) == 3
    assert (value("rows_total", model="sentiment"), value("tokens_total", model="sentiment")) == (
        2,
        9,
    )
    seconds, labels = "request_duration_seconds", {"route": _ROUTE, "model": "sentiment"}
    assert value(f"{seconds}_count", outcome="ok", **labels) == 3
    assert value(f"{seconds}_bucket", outcome="ok", le="1e-05", **labels) == 1
    assert value(f"{seconds}_bucket", outcome="ok", le="10.0", **labels) == 2
    assert value(f"{seconds}_sum", outcome="ok", **labels) == 20.003008
    assert value(f"{seconds}_count", outcome="rate_limited", route=_ROUTE, model="") == 1
    assert value("phase_duration_seconds_count", phase="cache") == 64


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (200, "", "ok"),
        (304, "", "ok"),
        (422, "invalid_item", "client_error"),
        (429, "rate_limited", "rate_limited"),
        (503, "overloaded", "overloaded"),
        (503, "upstream_unavailable", "server_error"),
        (504, "deadline_exceeded", "deadline"),
        (504, "not_cached", "client_error"),
        (500, "internal_error", "server_error"),
    ],
)
def test_the_outcome_of_a_request_is_by_status_and_code(
    status: int, code: str, outcome: str
) -> None:
    assert outcome_of(status, code) == outcome
