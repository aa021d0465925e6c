"""Backends that leave or have only just stopped answering probes are candidates of last resort."""

import pytest

from sluicegate.gateway.routing.endpoint_state import ProbeFailure
from tests.support.clock import Clock
from tests.support.dispatching import state
from tests.unit.gateway.routing.test_fleet import EU, US, fleet_of, ids, model_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_backend_that_missed_a_probe_is_tried_where_no_other_is_left(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)
    model = model_of(fleet)
    late = ProbeFailure(detail="late", silence=1.0)

    fleet.observe(US[0], late)
    beside_another = ids(fleet.candidates(model, b"item"))
    fleet.observe(EU[0], ProbeFailure(detail="refused"))
    alone = ids(fleet.candidates(model, b"item"))
    shares = fleet.spread(model, [b"item"])
    fleet.observe(US[0], late)
    after_two = ids(fleet.candidates(model, b"item"))
    fleet.observe(US[0], late)

    assert beside_another == ["eu-0", "us-0"]
    assert alone == after_two == ["us-0"]
    assert [share.endpoint for share in shares] == US
    assert fleet.candidates(model, b"item") == []


def test_a_backend_that_is_leaving_is_tried_where_no_other_is_left(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)
    model = model_of(fleet)

    fleet.observe(US[0], state("us-0", leaving=True))
    beside_another = ids(fleet.candidates(model, b"item"))
    fleet.observe(EU[0], ProbeFailure(detail="refused"))
    alone = ids(fleet.candidates(model, b"item"))
    shares = fleet.spread(model, [b"item"])
    fleet.observe(US[0], ProbeFailure(detail="refused"))

    assert beside_another == ["eu-0", "us-0"]
    assert alone == ["us-0"]
    assert [share.endpoint for share in shares] == US
    assert fleet.candidates(model, b"item") == []


def test_a_backend_that_refuses_connections_is_not_tried_for_what_it_missed_before(
    clock: Clock,
) -> None:
    fleet = fleet_of(US, clock)
    model = model_of(fleet)

    fleet.observe(US[0], ProbeFailure(detail="late", silence=1.0))
    fleet.observe(US[0], ProbeFailure(detail="refused"))
    refused = fleet.candidates(model, b"item")
    fleet.observe(US[0], ProbeFailure(detail="late", silence=1.0))
    late_again = fleet.candidates(model, b"item")
    fleet.observe(US[0], state("us-0"))
    fleet.observe(US[0], ProbeFailure(detail="late", silence=1.0))

    assert refused == late_again == []
    assert fleet.candidates(model, b"item") == US
