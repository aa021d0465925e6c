"""Endpoints are shown by region and backend while they are there."""

import math
from collections.abc import Sequence

import msgspec
from prometheus_client import CollectorRegistry

from sluicegate.gateway.app.endpoint_metrics import EndpointMetrics
from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.statistics import OTHERS, EndpointCounts
from sluicegate.gateway.routing.endpoint_state import EndpointState, Health, ProbeFailure
from sluicegate.gateway.routing.statistics import EndpointStatistics, endpoint_statistics
from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.gateway.types import BackendId, Endpoint, RegionName
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Report, ServingState

_READY = ServingState(
    backend_id="eu-1",
    region="eu",
    ready=True,
    missing=[],
    provider="cpu",
    models=[],
    report=Report(),
)


def endpoint(number: int, region: str = "eu") -> Endpoint:
    return Endpoint(
        backend=BackendId(f"{region}-{number}"), region=RegionName(region), url=f"http://b{number}"
    )


def statistics(count: int) -> list[EndpointStatistics]:
    return [
        endpoint_statistics(EndpointState(endpoint(number)), 1.0, 30.0) for number in range(count)
    ]


class Scene:
    """Publishes `shown` to a registry."""

    def __init__(self, shown: Sequence[EndpointStatistics]) -> None:
        self.shown = shown
        self.registry = CollectorRegistry()
        instruments = Instruments(self.registry)
        self.metrics = EndpointMetrics(instruments, lambda: self.shown)

    def value(self, name: str, backend: str) -> float | None:
        labels = {"region": "eu", "endpoint": backend}
        return self.registry.get_sample_value(f"sluicegate_endpoint_{name}", labels)


def test_an_ejected_and_a_lost_endpoint_show() -> None:
    lost, ejected = EndpointState(endpoint(0)), EndpointState(endpoint(1))
    lost.observe(ProbeFailure(detail="refused"), 1.0, 0.0)
    ejected.observe(_READY, 1.0, 0.01)
    routing = RoutingConfig(eject_after=1)
    ejected.record_failure(1.0, routing, may_eject=lambda: True)
    scene = Scene([endpoint_statistics(one, 1.1, 30.0) for one in (lost, ejected)])

    scene.metrics.publish()

    assert (scene.value("up", "eu-0"), scene.value("up", "eu-1")) == (0.0, 1.0)
    assert (scene.value("ejected", "eu-0"), scene.value("ejected", "eu-1")) == (0.0, 1.0)
    assert scene.value("ejections_total", "eu-1") == 1.0


def test_an_endpoint_that_is_gone_is_shown_no_more_and_may_return() -> None:
    scene = Scene(statistics(2))
    scene.metrics.publish()

    scene.shown = statistics(1)
    scene.metrics.publish()
    gone = scene.value("share", "eu-1")
    scene.shown = [msgspec.structs.replace(one, share=0.5) for one in statistics(2)]
    scene.metrics.publish()

    assert gone is not None
    assert math.isnan(gone)  # the page leaves it out
    assert scene.value("share", "eu-1") == 0.5


def test_of_many_endpoints_a_part_is_published_at_a_time() -> None:
    scene = Scene(statistics(600))

    scene.metrics.publish()
    first = scene.value("up", "eu-300")
    for _ in range(4):
        scene.metrics.publish()

    assert first is None
    assert scene.value("up", "eu-599") == 0.0


def test_calls_are_counted_by_how_they_ended() -> None:
    counts = EndpointCounts()
    refused, cut = CallFailed(Cause.REFUSED, "full"), CallFailed(Cause.CUT, "gone")

    for error in (None, refused, cut, ValueError("a bug"), KeyboardInterrupt()):
        counts.call_ended(endpoint(0), error)
    counts.spilled(endpoint(0, "us"), 2, RegionName("eu"))
    found = counts.statistics

    assert found.calls == {
        ("eu", "eu-0", "ok"): 1,
        ("eu", "eu-0", "refused"): 1,
        ("eu", "eu-0", "failed"): 2,
        ("eu", "eu-0", "given_up"): 1,
    }
    assert {key[2] for key in found.failures} == {"refused", "cut", "unexpected"}
    assert found.spilled == {("eu", "us"): 2}


def test_endpoints_beyond_a_bound_are_counted_as_one() -> None:
    counts = EndpointCounts()

    for number in range(5000):
        counts.call_ended(endpoint(number), None)

    calls = counts.statistics.calls
    assert len(calls) == 4097
    assert calls["eu", OTHERS, "ok"] == 904


def test_an_endpoint_is_compared_with_ready_ones_that_serve_a_model_of_it() -> None:
    shown = [
        msgspec.structs.replace(one, models=models, finish_time=finish, health=health)
        for one, models, finish, health in zip(
            statistics(4),
            ({"a": "1", "b": "1"}, {"b": "1"}, {"c": "1"}, {"a": "1"}),
            (2.0, 0.5, 0.02, 0.01),
            (Health.READY, Health.READY, Health.READY, Health.NOT_READY),
            strict=True,
        )
    ]
    scene = Scene(shown)

    scene.metrics.publish()
    scene.metrics.publish()

    fastest = [scene.value("fastest_finish_seconds", f"eu-{number}") for number in range(4)]
    assert fastest == [0.5, 0.5, 0.02, 0.01]


def serving(finish_times: Sequence[float], *, drained: Sequence[int] = ()) -> Scene:
    """Return endpoints of one model that have published once."""
    shown = [
        msgspec.structs.replace(
            one,
            models={"a": "1"},
            finish_time=finish,
            health=Health.READY,
            drained=number in drained,
        )
        for number, (one, finish) in enumerate(
            zip(statistics(len(finish_times)), finish_times, strict=True)
        )
    ]
    scene = Scene(shown)
    scene.metrics.publish()
    return scene


def test_an_endpoint_is_not_compared_with_what_it_was_itself() -> None:
    scene = serving([0.02])

    scene.shown = [msgspec.structs.replace(one, finish_time=2.0) for one in scene.shown]
    scene.metrics.publish()

    assert scene.value("fastest_finish_seconds", "eu-0") == 2.0


def test_a_drained_endpoint_which_has_no_work_is_not_the_fastest() -> None:
    scene = serving([2.0, 0.02], drained=[1])

    scene.metrics.publish()

    assert scene.value("fastest_finish_seconds", "eu-0") == 2.0
