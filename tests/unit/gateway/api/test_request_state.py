"""Ids of requests, and the event that a request leaves."""

from backends.protocol import Task
from gateway.api.native_routes import ROUTE_OF
from gateway.api.request_state import RequestIds, RequestState
from gateway.config.document import Document
from gateway.errors import Overloaded
from gateway.runtime.runtime import compile_runtime
from gateway.types import KeyId, Principal, RequestId, TenantId, Usage

_ROUTE = ROUTE_OF[Task.CLASSIFY]
_RUNTIME = compile_runtime(Document(), 1)
_USAGE = Usage(items=2, hit=1, collapsed=0, computed=1, failed=0, rows=1, tokens=5)


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


def test_a_failed_request_leaves_the_errors_status_and_code() -> None:
    failed = state()

    failed.fail(Overloaded("Busy."), _USAGE)
    event = failed.event(wall=lambda: 7, now=100.0)

    assert event is not None
    assert (event.status, event.code) == (503, "overloaded")


def test_a_request_of_nobody_leaves_no_event() -> None:
    nobody = RequestState(RequestId("req_1"), route=_ROUTE, runtime=_RUNTIME, started=100.0)

    assert nobody.event(wall=lambda: 7, now=100.0) is None
