"""Incidents in words: regions, backends, callers' errors, this machine."""

import re

import pytest

from sluicegate.gateway.console.fleet import Backend, EndpointReport, FleetView
from sluicegate.gateway.console.incidents import (
    backend_incidents,
    state_incidents,
    traffic_incidents,
    worst_first,
)
from sluicegate.gateway.console.traffic import Reading, Samples, Traffic, traffic_between
from sluicegate.gateway.telemetry.metric_reading import Series


def backend(
    name: str,
    *,
    health: str = "ready",
    drained: bool = False,
    model: str = "sentiment",
    **more: float,
) -> Backend:
    seen = EndpointReport(
        backend=name,
        health=health,
        ejected_for=more.get("ejected_for", 0.0),
        finish_time=more.get("finish_time", 0.0),
        models={model: "abc"},
    )
    return Backend(
        id=name,
        region=name[:2],
        url="http://127.0.0.1:1",
        pool="default",
        drained=drained,
        is_entry=False,
        seen=[seen],
    )


def fleet(*backends: Backend) -> FleetView:
    regions: dict[str, list[Backend]] = {}
    for each in backends:
        regions.setdefault(each.region, []).append(each)
    return FleetView(regions=regions, workers=["w"])


def texts(*backends: Backend) -> list[str]:
    return [incident.text for incident in backend_incidents(fleet(*backends), traffic({}))]


def test_a_fleet_that_is_ready_has_no_incident() -> None:
    assert texts(backend("eu-0"), backend("us-0")) == []


def test_a_region_without_a_ready_backend_is_lost() -> None:
    found = texts(backend("eu-0", health="not_ready"), backend("us-0"))

    assert [text.partition(":")[0] for text in found] == ["Region eu is down"]


def test_a_region_whose_backends_are_all_drained_answers_nothing() -> None:
    found = texts(backend("eu-0", drained=True), backend("us-0"))

    assert [text.partition(":")[0] for text in found] == [
        "Region eu is out of use",
        "Drained in eu",
    ]


def test_backends_are_named_by_what_is_the_matter() -> None:
    found = texts(
        backend("eu-0"),
        backend("eu-1", ejected_for=9.0),
        backend("eu-2", drained=True),
    )

    assert found == ["1 of 3 backends in eu: ejected (eu-1).", "Drained in eu: eu-2."]


def test_a_backend_much_slower_than_the_fastest_is_named() -> None:
    slow, fast = backend("eu-0", finish_time=0.4), backend("us-0", finish_time=0.002)

    (text,) = texts(slow, fast)
    assert re.findall(r"eu-0|\d+ ms", text) == ["eu-0", "400 ms", "2 ms"]
    assert texts(slow, backend("us-0", finish_time=0.2)) == []
    assert texts(backend("eu-0", finish_time=0.2), fast) == []
    assert texts(slow) == []


def test_a_backend_is_not_compared_with_those_of_quicker_models() -> None:
    slow = backend("eu-0", model="long", finish_time=0.4)
    fast = backend("us-0", model="short", finish_time=0.002)

    assert texts(slow, fast) == []


def test_no_worker_is_the_worst() -> None:
    (incident,) = backend_incidents(FleetView(regions={}, workers=[]), traffic({}))

    assert incident.is_bad


def traffic(values: dict[Series, float]) -> Traffic:
    return traffic_between(Reading(at=0.0, values={}), Reading(at=1.0, values=values))


def request(status: str, model: str = "m") -> Series:
    return "sluicegate_requests_total", (("model", model), ("status", status))


def test_workers_whose_reports_do_not_arrive_are_not_said_to_be_gone_while_they_answer() -> None:
    served = traffic({request("200"): 9.0, request("502"): 1.0})
    (incident,) = backend_incidents(FleetView(regions={}, workers=[]), served)

    assert not incident.is_bad


def test_a_full_disk_comes_before_what_follows_from_it() -> None:
    values: dict[Series, float] = {
        ("sluicegate_breaker_open", (("dependency", "state_redis"),)): 1.0,
        ("sluicegate_data_disk_free_bytes", ()): 0.0,
        ("sluicegate_shipper_lag_seconds", ()): 90.0,
    }

    found = worst_first(state_incidents(Samples(values)))

    assert [re.findall(r"0 B|state_redis|90 s", each.text)[0] for each in found] == [
        "0 B",
        "state_redis",
        "90 s",
    ]


def test_errors_are_named_by_model() -> None:
    found = list(traffic_incidents(traffic({request("200"): 90.0, request("502"): 10.0}), {}))

    assert [each.text for each in found] == [
        "10 % of all requests fail (10 per second).",
        "10 % of requests for m fail (10 per second).",
    ]
    assert all(each.is_bad for each in found)
    assert [each.page for each in found] == ["", "/console/models/m"]


def failed(model: str, revision: str) -> Series:
    labels = (("model", model), ("revision", revision), ("source", "failed"))
    return "sluicegate_items_total", labels


def test_errors_are_named_by_revision_and_code() -> None:
    values = {
        request("200", "sound"): 90.0,
        request("502"): 10.0,
        failed("m", "975160ee2d61"): 9.0,
        failed("m", "0efe1cba2171"): 1.0,
        failed("m", ""): 1.0,
        failed("sound", "f00"): 0.0,
        ("sluicegate_failed_items_total", (("code", "algorithm_failed"),)): 10.0,
        ("sluicegate_failed_items_total", (("code", "overloaded"),)): 0.0,
    }

    found = list(traffic_incidents(traffic(values), {}))

    assert [each.text for each in found] == [
        "10 % of all requests fail (10 per second). Codes of failed items: algorithm_failed.",
        (
            "100 % of requests for m fail (10 per second)."
            " Revisions of failed items: 975160ee2d61, 0efe1cba2171."
            " Codes of failed items: algorithm_failed."
        ),
    ]


def test_codes_are_not_said_of_one_of_several_models_that_fail() -> None:
    values = {
        request("502", "a"): 1.0,
        request("502", "b"): 1.0,
        ("sluicegate_failed_items_total", (("code", "upstream_failed"),)): 2.0,
    }

    found = list(traffic_incidents(traffic(values), {}))

    assert [each.text.endswith("upstream_failed.") for each in found] == [True, False, False]


def test_refused_requests_are_named_by_limit() -> None:
    refused = (("decision", "refused"), ("policy", "tenant"))
    values = {
        request("200"): 50.0,
        request("429"): 50.0,
        ("sluicegate_limit_decisions_total", refused): 50.0,
    }

    (incident,) = traffic_incidents(traffic(values), {})

    assert incident.text == "Limits refuse 50 % of all requests (tenant)."


def test_refused_requests_are_named_by_tenant_with_its_page() -> None:
    values = {request("200"): 50.0, request("429"): 50.0}

    (incident,) = traffic_incidents(traffic(values), {"birch": 2.0, "a b": 48.0})

    assert "a b 48 per second, birch 2.0 per second" in incident.text
    assert incident.page == "/console/tenants/a%20b"


@pytest.mark.parametrize(
    ("name", "labels", "value", "text"),
    [
        ("breaker_open", (("dependency", "cache_redis"),), 1.0, "cache_redis"),
        ("event_log_writable", (), 0.0, "event log"),
        ("data_disk_free_bytes", (), 5e6, "4.8 MiB"),
        ("clock_skew_seconds", (("dependency", "ledger"),), 3600.0, "3,600 s"),
        ("billing_lag_seconds", (("stream", "0"),), 90.0, "Billing is 90 s"),
        ("dead_letters", (("stream", "usage"),), 2.0, "2 dead letters (usage)"),
    ],
)
def test_gauges_become_sentences(
    name: str, labels: tuple[tuple[str, str], ...], value: float, text: str
) -> None:
    (incident,) = state_incidents(Samples({(f"sluicegate_{name}", labels): value}))

    assert text in incident.text


def test_gauges_that_are_well_say_nothing() -> None:
    well: dict[Series, float] = {("sluicegate_breaker_open", (("dependency", "a"),)): 0.0}

    assert list(state_incidents(Samples(well))) == []
