"""Traffic between two readings: rates, hit ratio, percentiles, regions."""

import pytest

from sluicegate.gateway.console.traffic import Reading, quantile, traffic_between
from sluicegate.gateway.telemetry.metric_reading import Series

REQUESTS = "sluicegate_requests_total"
ITEMS = "sluicegate_items_total"
BUCKETS = "sluicegate_request_duration_seconds_bucket"


def series(name: str, **labels: str) -> Series:
    return name, tuple(sorted(labels.items()))


def test_rates_are_per_second_by_model_and_added_up() -> None:
    before = Reading(at=10.0, values={series(REQUESTS, model="a", status="200"): 5.0})
    after = Reading(
        at=15.0,
        values={
            series(REQUESTS, model="a", status="200"): 55.0,
            series(REQUESTS, model="b", status="200"): 10.0,
            series(REQUESTS, model="b", status="503"): 5.0,
            series(REQUESTS, model="", status="429"): 20.0,
        },
    )

    traffic = traffic_between(before, after)

    assert [(flow.name, flow.requests) for flow in traffic.models] == [("a", 10.0), ("b", 3.0)]
    assert traffic.models[1].errors == 1.0
    assert (traffic.total.requests, traffic.total.refused) == (17.0, 4.0)


def test_the_hit_ratio_counts_answers_that_needed_no_work() -> None:
    values = {
        series(ITEMS, model="m", revision="r", source=source): 10.0
        for source in ("memory_hit", "redis_hit", "computed", "collapsed")
    }

    traffic = traffic_between(Reading(at=0.0, values={}), Reading(at=1.0, values=values))

    assert traffic.total.hit_ratio == 0.5
    assert traffic.models[0].items == 40.0


def test_percentiles_are_of_requests_that_were_answered() -> None:
    values = {
        series(BUCKETS, model="m", route="r", outcome="ok", le="0.001"): 90.0,
        series(BUCKETS, model="m", route="r", outcome="ok", le="0.1"): 10.0,
        series(BUCKETS, model="m", route="r", outcome="overloaded", le="10.0"): 900.0,
    }

    traffic = traffic_between(Reading(at=0.0, values={}), Reading(at=1.0, values=values))

    p50, _, p99 = traffic.total.latencies
    assert p50 == pytest.approx(0.001 * 50 / 90)
    assert p99 == pytest.approx(0.001 + 0.099 * 0.9)


def test_one_reading_is_no_traffic() -> None:
    reading = Reading(at=5.0, values={series(REQUESTS, model="a", status="200"): 5.0})

    assert traffic_between(reading, reading).total.requests == 0.0


def test_a_counter_that_began_anew_is_no_negative_rate() -> None:
    key = series(REQUESTS, model="a", status="200")

    traffic = traffic_between(Reading(at=0, values={key: 9.0}), Reading(at=1, values={key: 2.0}))

    assert traffic.total.requests == 0.0


def test_a_region_has_its_backends_and_calls() -> None:
    def endpoint(figure: str, name: str, **more: str) -> Series:
        return series(f"sluicegate_endpoint_{figure}", region="eu", endpoint=name, **more)

    values = {
        endpoint("up", "eu-0"): 1.0,
        endpoint("up", "eu-1"): 1.0,  # it answers probes
        endpoint("drained", "eu-1"): 1.0,
        endpoint("in_flight_items", "eu-0"): 7.0,
        endpoint("predicted_finish_seconds", "eu-0"): 0.02,
        endpoint("predicted_finish_seconds", "eu-1"): 0.001,
        endpoint("calls_total", "eu-0", outcome="ok"): 30.0,
        endpoint("calls_total", "eu-0", outcome="failed"): 10.0,
        series("sluicegate_spilled_items_total", from_region="us", to_region="eu"): 4.0,
    }

    traffic = traffic_between(Reading(at=0.0, values={}), Reading(at=2.0, values=values))

    (region,) = traffic.regions
    assert (region.ready, region.endpoints, region.drained) == (1, 2, 1)
    assert (region.calls, region.failed, region.spilled) == (20.0, 5.0, 2.0)
    assert (region.in_flight, region.finish) == (7.0, 0.02)


def test_a_region_without_a_ready_backend_predicts_nothing() -> None:
    endpoint = {"region": "eu", "endpoint": "eu-0"}
    values = {
        series("sluicegate_endpoint_up", **endpoint): 0.0,
        series("sluicegate_endpoint_predicted_finish_seconds", **endpoint): 0.001,
    }

    traffic = traffic_between(Reading(at=0.0, values={}), Reading(at=2.0, values=values))

    assert [region.finish for region in traffic.regions] == [None]


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({}, None),
        ({0.1: 0.0}, None),
        ({1.0: 4.0}, 0.5),
        ({1.0: 1.0, float("inf"): 9.0}, 1.0),
    ],
)
def test_a_quantile_lies_between_the_bounds_of_its_bucket(
    buckets: dict[float, float], expected: float | None
) -> None:
    assert quantile(buckets, 0.5) == expected
