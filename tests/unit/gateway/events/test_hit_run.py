"""A run stands for requests whose ids follow on from its own."""

from sluicegate.gateway.events.hit_run import HitRun, ids_of
from sluicegate.gateway.types import RequestId
from tests.support.events import make_event, make_run


def test_an_event_stands_for_one_request() -> None:
    assert list(ids_of(make_event(1))) == ["req_000000000001"]


def test_the_ids_of_a_run_follow_on_in_hexadecimal() -> None:
    run = make_run("req_ab00000000fe", count=3)

    assert list(ids_of(run)) == ["req_ab00000000fe", "req_ab00000000ff", "req_ab0000000100"]


def test_a_payload_has_the_size_that_is_set_aside() -> None:
    run = HitRun(make_event(1))

    for count in (1, 65_535):
        payload = run.event.payload(RequestId("req_00000000ffff"), 2**63, 1e300, count)
        assert len(payload) == run.event.size
