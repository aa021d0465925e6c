"""Choices in fleets of thousands of backends: what they cost, and where equal items go."""

from collections import Counter
from random import Random

import msgspec
import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing import choice
from sluicegate.gateway.routing.choice import WIDE
from sluicegate.gateway.routing.endpoint_state import CallVerdict, EndpointState, ProbeFailure
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import BackendId, Endpoint, RegionName, ServedModel
from sluicegate.wire.protocol import Report
from testing.stub_backend import stub_model
from tests.support.clock import Clock
from tests.support.dispatching import state

ENDPOINTS = 600
ITEMS = [number.to_bytes(4, "big") for number in range(6000)]


def large_fleet(clock: Clock, endpoints: int = ENDPOINTS, regions: int = 1) -> Fleet:
    fleet = Fleet(clock=clock, random=Random(1))
    fleet.configure([endpoint(number, regions) for number in range(endpoints)], RoutingConfig())
    for each in fleet.endpoints:
        fleet.observe(each, state(each.backend))
    clock.advance(60.0)
    return fleet


def endpoint(number: int, regions: int = 1) -> Endpoint:
    return Endpoint(
        backend=BackendId(f"b-{number}"),
        region=RegionName(f"r-{number % regions}"),
        url=f"http://b-{number}.invalid",
    )


def model_of(fleet: Fleet) -> ServedModel:
    model = fleet.model("stub")
    assert model is not None
    return model


def homes(fleet: Fleet) -> list[BackendId]:
    """Return the backend that each item goes to while nothing is in flight."""
    model = model_of(fleet)
    return [fleet.spread(model, [item])[0].endpoint.backend for item in ITEMS]


@pytest.mark.parametrize("endpoints", [WIDE, 3 * WIDE, 2000])
def test_a_choice_looks_at_few_endpoints_however_many_there_are(
    endpoints: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = large_fleet(Clock(), endpoints, regions=3)
    looked_at: Counter[str] = Counter()
    for each in (EndpointState.wait, EndpointState.share, EndpointState.is_available, choice.score):
        name = each.__name__
        owner = EndpointState if hasattr(EndpointState, name) else choice

        def counted(*args: object, of: object = each, name: str = name, **kw: object) -> object:
            looked_at[name] += 1
            return of(*args, **kw)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, counted)
    model = model_of(fleet)
    fleet.candidates(model, b"item")  # finds out who is available
    looked_at.clear()

    fleet.spread(model, [b"item"])
    in_spread = looked_at.total()
    fleet.candidates(model, b"item")

    assert in_spread <= 4 * WIDE
    assert looked_at.total() - in_spread <= 12 * WIDE


def test_equal_items_go_to_one_backend_and_few_move_when_one_is_lost() -> None:
    fleet = large_fleet(Clock())
    before = homes(fleet)

    again = homes(fleet)
    fleet.observe(fleet.endpoints[7], ProbeFailure(detail="refused"))
    after = homes(fleet)

    assert again == before
    moved = sum(one != other for one, other in zip(before, after, strict=True))
    assert before.count(fleet.endpoints[7].backend) <= moved <= 4 * len(ITEMS) / ENDPOINTS


@pytest.mark.parametrize("endpoints", [WIDE, WIDE + 1, 2 * WIDE])
def test_few_items_move_at_every_size_when_one_backend_is_lost(endpoints: int) -> None:
    fleet = large_fleet(Clock(), endpoints)
    model = model_of(fleet)

    def places() -> list[BackendId]:
        return [fleet.spread(model, [item])[0].endpoint.backend for item in ITEMS[:1000]]

    before = places()
    fleet.observe(fleet.endpoints[7], ProbeFailure(detail="refused"))
    moved = sum(one != other for one, other in zip(before, places(), strict=True))

    assert moved / len(before) <= 5 / endpoints


def test_items_are_spread_over_all_backends_and_more_over_faster_ones() -> None:
    clock = Clock()
    fleet = large_fleet(clock)
    evenly = Counter(homes(fleet))
    fast = fleet.endpoints[:60]
    for each in fast:
        fleet.record(each, CallVerdict.OK, Report(rows_per_second=600.0))
    unevenly = Counter(homes(fleet))

    mean = len(ITEMS) / ENDPOINTS
    assert len(evenly) >= 0.98 * ENDPOINTS
    assert max(evenly.values()) <= 3.5 * mean
    assert sum(unevenly[each.backend] for each in fast) >= 2 * mean * len(fast)


def test_the_catalog_stays_while_health_decides_nothing() -> None:
    fleet = large_fleet(Clock(), 100)
    model = model_of(fleet)

    fleet.observe(fleet.endpoints[3], ProbeFailure(detail="refused"))
    without = {each.backend for each in fleet.candidates(model, b"item")}
    fleet.observe(fleet.endpoints[3], state(fleet.endpoints[3].backend))
    again = fleet.model("stub")

    assert again is model
    assert fleet.endpoints[3].backend not in without


@pytest.mark.parametrize("change", ["health", "ejection", "models"])
def test_who_is_available_stays_known_while_backends_of_other_models_change(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    fleet = large_fleet(clock, 2 * WIDE)
    other = fleet.endpoints[3]
    fleet.observe(other, state(models=[stub_model("other")]))
    model = model_of(fleet)
    fleet.spread(model, [b"item"])
    looked_at = Counter[EndpointState]()
    is_available = EndpointState.is_available

    def counted(state: EndpointState, now: float) -> bool:
        looked_at[state] += 1
        return is_available(state, now)

    if change == "health":
        fleet.observe(other, ProbeFailure(detail="refused"))
    elif change == "ejection":
        for _ in range(fleet.routing.eject_after):
            fleet.record(other, CallVerdict.FAILED)
    else:
        fleet.observe(other, state(models=[stub_model("another")]))
    monkeypatch.setattr(EndpointState, "is_available", counted)
    fleet.spread(model, [b"item"])

    assert len(looked_at) <= 1


def test_a_request_still_tries_a_backend_that_moved_on_from_its_revision() -> None:
    fleet = large_fleet(Clock(), 3)
    model, moved = model_of(fleet), fleet.endpoints[0]
    newer = msgspec.structs.replace(
        stub_model(revision="bbbbbbbbbbbb"), replaced=[model.info.variant]
    )
    fleet.observe(moved, state(models=[newer]))

    found = {each.backend for each in fleet.candidates(model, b"item")}

    assert model_of(fleet).info.revision == model.info.revision
    assert found == {each.backend for each in fleet.endpoints}


def test_a_request_tries_no_backend_with_another_version_of_its_algorithm() -> None:
    fleet = large_fleet(Clock(), 3)
    model, upgraded = model_of(fleet), fleet.endpoints[0]
    info = model.info
    newer = msgspec.structs.replace(info, algorithm_version=info.algorithm_version + 1)
    fleet.observe(upgraded, state(models=[newer]))

    found = {each.backend for each in fleet.candidates(model, b"item")}

    assert found == {each.backend for each in fleet.endpoints[1:]}


def test_an_ejected_member_is_used_again_at_the_end_of_its_ejection() -> None:
    clock = Clock()
    fleet = large_fleet(clock, 100)
    model, one = model_of(fleet), fleet.endpoints[3]
    item = next(i for i in ITEMS if fleet.spread(model, [i])[0].endpoint == one)

    for _ in range(fleet.routing.eject_after):
        fleet.record(one, CallVerdict.FAILED)
    elsewhere = fleet.spread(model, [item])[0].endpoint
    clock.advance(fleet.routing.eject_for + 2 * fleet.routing.slow_start)

    assert elsewhere != one
    assert fleet.spread(model, [item])[0].endpoint == one
