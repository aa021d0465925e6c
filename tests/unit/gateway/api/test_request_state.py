"""Ids of requests, and the event that a request leaves."""

import pytest

from sluicegate.gateway.api.native_routes import ROUTE_OF
from sluicegate.gateway.api.request_state import RequestIds, RequestState
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.errors import GatewayError, InvalidItem, Overloaded, UpstreamUnavailable
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.types import (
    Answer,
    ItemOutcome,
    KeyId,
    Principal,
    RegionName,
    RequestId,
    ServedModel,
    Source,
    TenantId,
    Usage,
)
from sluicegate.wire.protocol import Task
from tests.support.inference_scene import INFO

_ROUTE = ROUTE_OF[Task.CLASSIFY]
_RUNTIME = compile_runtime(Document(), 1)
_USAGE = Usage.of(hit=1, computed=1, rows=1, tokens=5)
_FAILED = Usage.of(failed=2)


def state() -> RequestState:
    made = RequestState(RequestId("req_1"), route=_ROUTE, runtime=_RUNTIME, started=100.0)
    made.principal = Principal(tenant=TenantId("acme"), key=KeyId("key_1"))
    made.model, made.revision, made.usage = "sentiment", "aaaaaaaaaaaa", _USAGE
    return made


def test_ids_differ_within_a_process_and_between_processes() -> None:
    processes = [RequestIds() for _ in range(50)]

    ids = [ids.new() for ids in processes for _ in range(100)]

    assert len(set(ids)) == len(ids)
    assert all(id_.startswith("req_") and id_.isascii() for id_ in ids)


def test_an_answered_request_leaves_an_event() -> None:
    event = state().event(wall=lambda: 7, now=100.25)

    assert event is not None
    assert (event.id, event.time, event.tenant, event.key) == ("req_1", 7, "acme", "key_1")
    assert (event.model, event.revision, event.task) == ("sentiment", "aaaaaaaaaaaa", "classify")
    assert (event.status, event.code, event.usage, event.duration) == (200, "", _USAGE, 0.25)


@pytest.mark.parametrize(
    ("regions", "shown"),
    [(["eu"], "eu"), (["us", "", "eu", "us"], "eu,us"), (["", "us"], "us"), (["", ""], "")],
)
def test_the_event_names_the_regions_of_the_backends_that_answered(
    regions: list[str], shown: str
) -> None:
    answered = state()
    outcomes = [
        ItemOutcome(
            source=Source.COMPUTED if region else Source.HIT,
            tier="" if region else "memory",
            region=RegionName(region),
        )
        for region in regions
    ]
    model = ServedModel(info=INFO, regions=(RegionName("eu"),))

    answered.sum_up(Answer(model=model, outcomes=outcomes), continue_on_error=False)
    event = answered.event(wall=lambda: 7, now=100.0)

    assert event is not None
    assert event.backend_region == shown


def test_a_failed_request_leaves_the_errors_status_and_code() -> None:
    failed = state()

    failed.fail(Overloaded("Busy."), _USAGE)
    event = failed.event(wall=lambda: 7, now=100.0)

    assert event is not None
    assert (event.status, event.code) == (503, "overloaded")


def test_the_hits_of_a_request_that_fails_after_all_are_no_hits() -> None:
    failed = state()
    failed.hit_sources = (("memory_hit", 1),)

    failed.fail(Overloaded("Busy."), _FAILED)

    assert sum(count for _, count in failed.sources()) == 2


def test_a_request_of_nobody_leaves_no_event() -> None:
    nobody = RequestState(RequestId("req_1"), route=_ROUTE, runtime=_RUNTIME, started=100.0)

    assert nobody.event(wall=lambda: 7, now=100.0) is None


@pytest.mark.parametrize(
    ("error", "source"),
    [
        (InvalidItem("Empty.", index=0, item_code="empty_input"), "refused"),
        (Overloaded("Busy."), "refused"),
        (UpstreamUnavailable("None is ready."), "failed"),
    ],
)
def test_items_of_a_request_that_is_refused_are_no_failures(
    error: GatewayError, source: str
) -> None:
    """Otherwise a caller's empty texts would wake whoever watches a model's failures."""
    failed = state()

    failed.fail(error, Usage.of(failed=2))

    assert {name: count for name, count in failed.sources() if count} == {source: 2}
