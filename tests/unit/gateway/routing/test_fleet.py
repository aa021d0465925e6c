"""The fleet's catalog of models, and the backends that it chooses."""

from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.endpoint_state import (
    INITIAL_SHARE,
    CallVerdict,
    Health,
    ProbeFailure,
)
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.routing.limit import LEAST
from sluicegate.gateway.types import Criticality, Endpoint, ServedModel
from sluicegate.wire.protocol import Report, ServingState
from testing.stub_backend import stub_model
from tests.support.clock import Clock
from tests.support.dispatching import endpoint, state

EU = [endpoint("eu-0"), endpoint("eu-1")]
US = [endpoint("us-0", region="us")]
SPARE = [endpoint("eu-spare", overflow=True)]
ROUTING = RoutingConfig(eject_after=5, eject_for=10.0)
LOADING = state(models=[], ready=False)
BROKEN = replace(state(models=[stub_model("more")]), problems={"stub": "its server is not ready"})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fleet_of(endpoints: list[Endpoint], clock: Clock, *, observed: bool = True) -> Fleet:
    fleet = Fleet(clock=clock, random=Random(1))
    fleet.configure(endpoints, ROUTING)
    for each in endpoints if observed else []:
        fleet.observe(each, state(each.backend))
    return fleet


def model_of(fleet: Fleet, name: str = "stub") -> ServedModel:
    model = fleet.model(name)
    assert model is not None
    return model


def ids(endpoints: list[Endpoint]) -> list[str]:
    return [str(each.backend) for each in endpoints]


def fail(fleet: Fleet, target: Endpoint, times: int = 5) -> None:
    for _ in range(times):
        fleet.record(target, CallVerdict.FAILED)


def test_a_model_is_known_once_a_backend_names_it(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock, observed=False)

    before = fleet.model("stub")
    fleet.observe(US[0], state(models=[stub_model("stub"), stub_model("other")]))

    assert before is None
    assert [model.info.name for model in fleet.models()] == ["other", "stub"]
    assert model_of(fleet).regions == ("us",)


def test_models_are_known_from_the_first_backend_that_names_one_on(clock: Clock) -> None:
    fleet = fleet_of(US, clock, observed=False)

    told = [fleet.knows_models()]
    fleet.observe(US[0], ProbeFailure(detail="refused"))
    told.append(fleet.knows_models())
    fleet.observe(US[0], state())
    fleet.observe(US[0], ProbeFailure(detail="refused"))
    told.append(fleet.knows_models())

    assert told == [False, False, True]


def test_a_ready_backend_without_models_says_that_none_is_served(clock: Clock) -> None:
    """Its operator has assigned it none."""
    fleet = fleet_of(US, clock, observed=False)

    fleet.observe(US[0], state(models=[]))

    assert fleet.knows_models()


@pytest.mark.parametrize("other", [None, ProbeFailure(detail="refused"), LOADING])
def test_no_model_is_known_while_one_backend_has_none_and_another_starts(
    clock: Clock, other: ServingState | ProbeFailure | None
) -> None:
    fleet = fleet_of([*EU[:1], *US], clock, observed=False)
    fleet.observe(EU[0], state(models=[]))

    if other is not None:
        fleet.observe(US[0], other)

    assert not fleet.knows_models()


@pytest.mark.parametrize(
    ("found", "is_gone"),
    [
        (state(models=[]), True),
        (state(models=[stub_model("more")]), True),
        (state(), False),
        (LOADING, False),
        (BROKEN, False),
        (ProbeFailure(detail="refused"), False),
        (None, False),
    ],
)
def test_a_model_is_gone_once_all_backends_are_ready_without_it(
    clock: Clock, found: ServingState | ProbeFailure | None, *, is_gone: bool
) -> None:
    """Not while one restarts, perhaps at another address."""
    fleet = fleet_of([*EU[:1], *US], clock)
    model = model_of(fleet)
    fleet.observe(EU[0], state(models=[stub_model("other")]))

    fleet.configure([*EU[:1], replace(US[0], url="http://new.invalid")], ROUTING)
    if found is not None:
        fleet.observe(replace(US[0], url="http://new.invalid"), found)

    assert fleet.is_gone(model) is is_gone


def test_without_backends_no_model_is_gone(clock: Clock) -> None:
    assert not fleet_of([], clock).is_gone(model_of(fleet_of(US, clock)))


def test_a_model_stays_known_while_its_backends_are_away(clock: Clock) -> None:
    fleet = fleet_of(US, clock)

    fleet.observe(US[0], ProbeFailure(detail="refused"))

    assert fleet.model("stub") is not None
    assert fleet.candidates(model_of(fleet), b"item") == []


def test_regions_come_in_order_and_overflow_pools_last(clock: Clock) -> None:
    fleet = fleet_of([*SPARE, *EU, *US], clock)

    found = ids(fleet.candidates(model_of(fleet), b"item"))

    assert sorted(found[:2]) == ["eu-0", "eu-1"]
    assert found[2:] == ["us-0", "eu-spare"]


def test_backends_that_are_not_ready_are_no_candidates(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock)

    fleet.observe(EU[0], state(ready=False))

    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-1", "us-0"]


def test_a_backend_gets_no_items_of_a_model_that_it_lost(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)
    both = ids(fleet.candidates(model_of(fleet), b"item"))

    fleet.observe(EU[0], state(models=[stub_model("other")]))

    assert both == ["eu-0", "us-0"]
    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["us-0"]


def test_an_ejected_backend_comes_last_until_its_time_is_over(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)
    before = ids(fleet.candidates(model_of(fleet), b"item"))

    fail(fleet, EU[0])
    while_ejected = ids(fleet.candidates(model_of(fleet), b"item"))
    clock.advance(10.0)
    afterwards = ids(fleet.candidates(model_of(fleet), b"item"))
    share = fleet.statistics()[0].share

    assert before == afterwards == ["eu-0", "us-0"]
    assert while_ejected == ["us-0", "eu-0"]
    assert share == INITIAL_SHARE


def test_when_all_are_ejected_all_are_tried_anyway(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock)

    for each in [*EU, *US]:
        fail(fleet, each)

    model = model_of(fleet)
    assert sorted(ids(fleet.candidates(model, b"item"))) == ["eu-0", "eu-1", "us-0"]
    assert len(fleet.spread(model, [b"item"])) == 1


def test_a_backend_that_came_back_is_not_ejected_for_its_past(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)
    fail(fleet, EU[0])

    fleet.observe(EU[0], ProbeFailure(detail="refused"))
    fleet.observe(EU[0], state())

    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-0", "us-0"]


def test_only_backends_of_one_revision_are_candidates(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock)

    fleet.observe(EU[1], state(models=[stub_model(revision="bbbbbbbbbbbb")]))
    fleet.observe(US[0], state(models=[stub_model(revision="bbbbbbbbbbbb")]))

    # eu is split, us decides.
    assert model_of(fleet).info.revision == "bbbbbbbbbbbb"
    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-1", "us-0"]


def test_only_backends_of_one_version_of_the_algorithm_are_candidates(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock)
    upgraded = replace(stub_model(), algorithm_version=stub_model().algorithm_version + 1)

    fleet.observe(EU[1], state(models=[upgraded]))
    fleet.observe(US[0], state(models=[upgraded]))

    assert model_of(fleet).info == upgraded
    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-1", "us-0"]


def test_the_majority_of_the_preferred_region_decides_the_revision(clock: Clock) -> None:
    us = [endpoint(f"us-{n}", region="us") for n in range(3)]
    fleet = fleet_of([*EU, *us], clock)

    for each in us:
        fleet.observe(each, state(models=[stub_model(revision="bbbbbbbbbbbb")]))

    assert model_of(fleet).info.revision == "aaaaaaaaaaaa"
    assert model_of(fleet).regions == ("eu",)


def test_a_request_keeps_the_revision_it_began_with(clock: Clock) -> None:
    fleet = fleet_of(EU, clock)
    begun = model_of(fleet)

    for each, revision in zip(EU, ("aaaaaaaaaaaa", "zzzzzzzzzzzz"), strict=True):
        fleet.observe(each, state(models=[stub_model(revision=revision)]))

    assert model_of(fleet).info.revision == "zzzzzzzzzzzz"
    assert ids(fleet.candidates(begun, b"item")) == ["eu-0"]


@pytest.mark.parametrize("change", [{}, {"algorithm": "other"}, {"algorithm_version": 9}])
def test_only_the_code_a_request_began_with_answers_it(
    clock: Clock, change: dict[str, Any]
) -> None:
    fleet = fleet_of(EU, clock)
    begun = model_of(fleet)
    replaced = replace(begun.info, **change).variant
    newer = replace(stub_model(revision="zzzzzzzzzzzz"), replaced=(replaced,))

    for each in EU:
        fleet.observe(each, state(models=[newer]))

    expected = [] if change else ["eu-0", "eu-1"]
    assert ids(fleet.candidates(begun, b"item")) == expected


@pytest.mark.parametrize("change", [{"algorithm": "split"}, {"algorithm_version": 9}])
def test_a_request_is_answered_although_newer_code_has_replaced_its_own(
    clock: Clock, change: dict[str, Any]
) -> None:
    fleet = fleet_of(EU, clock)
    begun = model_of(fleet)
    newer = replace(stub_model(revision="zzzzzzzzzzzz"), replaced=(begun.info.variant,), **change)

    for each in EU:
        fleet.observe(each, state(models=[newer]))

    assert ids(fleet.candidates(begun, b"item")) == ["eu-0", "eu-1"]


def test_few_items_go_to_one_backend_and_many_to_few(clock: Clock) -> None:
    eight = [endpoint(f"eu-{n}") for n in range(8)]
    fleet = fleet_of(eight, clock)
    model = model_of(fleet)

    one = fleet.spread(model, [bytes([n]) for n in range(16)])
    three = fleet.spread(model, [bytes([n]) for n in range(48)])
    all_of_them = fleet.spread(model, [n.to_bytes(2, "big") for n in range(1000)])

    assert [share.items for share in one] == [tuple(range(16))]
    assert len(three) == 3
    assert sorted(n for share in three for n in share.items) == list(range(48))
    assert len(all_of_them) == 8


def test_nothing_is_spread_over_a_region_that_is_not_the_first(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)

    shares = fleet.spread(model_of(fleet), [n.to_bytes(2, "big") for n in range(100)])

    assert [share.endpoint.backend for share in shares] == ["eu-0"]


def test_a_reload_keeps_what_is_known_of_backends_that_stay(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock)

    moved = endpoint("us-0", region="us", url="http://elsewhere.invalid")
    fleet.configure([moved, EU[1]], ROUTING)

    health = {each.backend: each.health for each in fleet.statistics()}
    assert health == {"us-0": Health.UNKNOWN, "eu-1": Health.READY}
    assert fleet.endpoints == (moved, EU[1])


def test_a_drained_backend_is_given_nothing_until_it_is_restored(clock: Clock) -> None:
    fleet = fleet_of([*EU[:1], *US], clock)

    fleet.drain(frozenset({"eu-0"}))
    fleet.configure([*EU[:1], *US], ROUTING)
    drained = ids(fleet.candidates(model_of(fleet), b"item"))
    fleet.drain(frozenset())
    restored = fleet.statistics()[0].share
    clock.advance(10.0)

    assert drained == ["us-0"]
    assert restored == INITIAL_SHARE
    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-0", "us-0"]


def test_backends_of_a_name_are_drained_together_by_its_entry(clock: Clock) -> None:
    named = [endpoint(f"eu@10.0.0.{n}") for n in range(3)]
    fleet = fleet_of([*named[:2], *US], clock)

    fleet.drain(frozenset({"eu"}))
    drained = ids(fleet.candidates(model_of(fleet), b"item"))
    fleet.configure([*named, *US], ROUTING)
    fleet.observe(named[2], state())

    assert drained == ["us-0"]
    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["us-0"]


def test_a_slow_backend_that_still_answers_is_far_away_and_not_lost(clock: Clock) -> None:
    lost: list[Endpoint] = []
    fleet = fleet_of([*EU[:1], *US], clock)
    fleet.on_lost(lost.append)

    fleet.record(EU[0], CallVerdict.OK)
    clock.advance(0.5)
    fleet.observe(EU[0], ProbeFailure(detail="late", silence=1.0))
    while_slow = ids(fleet.candidates(model_of(fleet), b"item"))
    before = list(lost)
    clock.advance(1.0)
    fleet.observe(EU[0], ProbeFailure(detail="late", silence=1.0))

    assert while_slow == ["us-0", "eu-0"]
    assert before == []
    assert lost == EU[:1]


def test_half_of_all_backends_is_ejected_at_most(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US, *SPARE], clock)

    for each in [*EU, *US, *SPARE]:
        fail(fleet, each)

    assert [each.ejected_for > 0 for each in fleet.statistics()] == [True, True, False, False]


def test_in_a_panic_ejections_count_for_nothing(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US, *SPARE], clock)

    for each in EU:
        fail(fleet, each)
    calm = ids(fleet.candidates(model_of(fleet), b"item"))
    fleet.observe(US[0], ProbeFailure(detail="refused"))
    panicking = ids(fleet.candidates(model_of(fleet), b"item"))

    assert calm[:2] == ["us-0", "eu-spare"]
    assert panicking[0] in ("eu-0", "eu-1")


def test_a_drained_backend_is_given_nothing_in_a_panic_either(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US, *SPARE], clock)
    fleet.drain(frozenset({"eu-0"}))

    fail(fleet, EU[1])
    fleet.observe(US[0], ProbeFailure(detail="refused"))

    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-1", "eu-spare"]


def test_drained_backends_cause_no_panic(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US, *SPARE], clock)
    fleet.drain(frozenset({"eu-0", "us-0"}))

    fail(fleet, EU[1])

    assert ids(fleet.candidates(model_of(fleet), b"item")) == ["eu-spare", "eu-1"]


def test_full_backends_that_just_came_back_take_what_is_critical_only(clock: Clock) -> None:
    fleet = fleet_of(US, clock)
    model = model_of(fleet)
    fleet.observe(US[0], ProbeFailure(detail="refused"))
    fleet.observe(US[0], state())

    empty = fleet.shed(model, Criticality.DEFAULT)
    fleet.started(US[0], int(LEAST))
    full = {each: fleet.shed(model, each) for each in Criticality}
    clock.advance(ROUTING.slow_start)
    later = {each: fleet.shed(model, each) for each in Criticality}

    assert empty is None
    assert full[Criticality.CRITICAL] is None
    assert (full[Criticality.DEFAULT] or 0.0) >= 0.5
    assert full[Criticality.SHEDDABLE] is not None
    assert [each for each, refused in later.items() if refused] == [Criticality.SHEDDABLE]


def test_nothing_is_shed_at_the_first_start_nor_when_one_of_several_comes_back(
    clock: Clock,
) -> None:
    fleet = fleet_of([EU[0], US[0]], clock)
    model = model_of(fleet)

    for each in (EU[0], US[0]):
        fleet.started(each, 1000)
    at_first = [fleet.shed(model, each) for each in (Criticality.CRITICAL, Criticality.DEFAULT)]
    fleet.observe(EU[0], ProbeFailure(detail="refused"))
    fleet.observe(EU[0], state())
    fleet.started(EU[0], 1000)
    after_one = fleet.shed(model, Criticality.DEFAULT)

    assert at_first == [None, None]
    assert after_one is None


def test_who_waited_for_the_only_backend_of_a_model_is_held_back_though_others_serve_other_models(
    clock: Clock,
) -> None:
    fleet = fleet_of(EU, clock, observed=False)
    rare, common = stub_model("rare"), stub_model("common")
    fleet.observe(EU[0], state("eu-0", models=[rare]))
    fleet.observe(EU[1], state("eu-1", models=[common]))

    fleet.observe(EU[0], ProbeFailure(detail="refused"))
    fleet.observe(EU[0], state("eu-0", models=[rare]))
    fleet.started(EU[0], int(LEAST))
    fleet.started(EU[1], int(LEAST))

    assert fleet.shed(model_of(fleet, "rare"), Criticality.DEFAULT) is not None
    assert fleet.shed(model_of(fleet, "rare"), Criticality.CRITICAL) is None
    assert fleet.shed(model_of(fleet, "common"), Criticality.DEFAULT) is None


def test_nothing_is_shed_while_a_backend_has_room(clock: Clock) -> None:
    fleet = fleet_of([*EU, *US], clock)

    fleet.observe(US[0], ProbeFailure(detail="refused"))
    fleet.observe(US[0], state())
    fleet.started(US[0], 1000)

    assert [fleet.shed(model_of(fleet), each) for each in Criticality] == [None] * 3


def test_items_of_others_that_leave_a_region_are_spread_over_all_the_rest(clock: Clock) -> None:
    apart = [*EU, *US, endpoint("ap-0", region="ap")]
    fleet = fleet_of(apart, clock)
    for each in EU:
        fleet.started(each, 1000)

    shares = fleet.spread(model_of(fleet), [bytes([n]) for n in range(60)], together=False)

    assert sorted(ids([share.endpoint for share in shares])) == ["ap-0", "us-0"]
    assert min(len(share.items) for share in shares) > 15


@pytest.mark.parametrize(("is_ejected", "regions"), [(False, {"eu"}), (True, {"eu", "us"})])
def test_a_region_that_lacks_a_backend_shares_large_requests(
    *, is_ejected: bool, regions: set[str], clock: Clock
) -> None:
    fleet = fleet_of([*EU, *US], clock)
    fail(fleet, EU[0], times=5 * is_ejected)

    shares = fleet.spread(model_of(fleet), [bytes([n]) for n in range(60)], together=False)

    assert {share.endpoint.region for share in shares} == regions


def test_a_choice_that_fails_leaves_no_trace(clock: Clock) -> None:
    fleet = fleet_of(EU, clock)

    with pytest.raises(TypeError):
        fleet.spread(model_of(fleet), [b"item", cast("bytes", None)], together=False)

    assert [each.in_flight for each in fleet.statistics()] == [0, 0]


def test_a_backend_that_joins_others_begins_with_little(clock: Clock) -> None:
    fleet = fleet_of(EU, clock)

    fleet.configure([*EU, *US], ROUTING)
    fleet.observe(US[0], state())

    assert [each.share for each in fleet.statistics()] == [1.0, 1.0, INITIAL_SHARE]


def test_calls_to_a_former_backend_free_no_items_of_the_new(clock: Clock) -> None:
    fleet = fleet_of(EU, clock)
    for each in EU:
        fleet.started(each, 3)
    fleet.configure(US, ROUTING)
    fleet.configure(EU, ROUTING)

    fleet.answered(EU[0], 3, 0.1, ended=3)
    fleet.ended(EU[1], 3)

    assert [each.in_flight for each in fleet.statistics()] == [0, 0]


def test_news_of_a_backend_that_left_is_ignored(clock: Clock) -> None:
    fleet = fleet_of(EU, clock)

    fleet.observe(US[0], state())
    fleet.started(US[0], 3)
    fleet.ended(US[0], 3)
    fail(fleet, US[0])

    assert [each.backend for each in fleet.statistics()] == ["eu-0", "eu-1"]


def test_news_of_a_former_address_of_a_backend_is_ignored(clock: Clock) -> None:
    fleet = fleet_of(EU, clock)
    fleet.configure([replace(EU[0], url="http://elsewhere.invalid"), EU[1]], ROUTING)

    fleet.observe(EU[0], state())
    fail(fleet, EU[0])

    found = fleet.statistics()[0]
    assert (found.health, found.failures) == (Health.UNKNOWN, 0)


def test_statistics_tell_what_is_known(clock: Clock) -> None:
    fleet = fleet_of(US, clock)

    fleet.started(US[0], 3)
    fleet.called(US[0])
    fleet.record(US[0], CallVerdict.OK, Report(queued_tokens=9))
    fail(fleet, US[0])

    (found,) = fleet.statistics()
    assert (found.in_flight, found.calls, found.failures) == (3, 1, 5)
    assert found.ejected_for == 10.0
    assert found.report.queued_tokens == 9
    assert found.health is Health.READY


def test_a_model_is_served_at_a_revision_whose_backends_are_not_all_drained(clock: Clock) -> None:
    fleet = fleet_of(EU, clock, observed=False)
    old, new = stub_model(revision="bbbbbbbbbbbb"), stub_model(revision="aaaaaaaaaaaa")
    fleet.observe(EU[0], state("eu-0", models=[old]))
    fleet.observe(EU[1], state("eu-1", models=[new]))

    fleet.drain(frozenset({"eu-0"}))
    after_drain = fleet.spread(model_of(fleet), [b"item"])
    fleet.drain(frozenset({"eu-1"}))
    the_other = fleet.spread(model_of(fleet), [b"item"])

    assert [share.endpoint for share in after_drain] == [EU[1]]
    assert [share.endpoint for share in the_other] == [EU[0]]


def test_a_model_is_served_at_a_revision_of_ready_backends(clock: Clock) -> None:
    fleet = fleet_of(EU, clock, observed=False)
    for each, revision in zip(EU, ("bbbbbbbbbbbb", "aaaaaaaaaaaa"), strict=True):
        fleet.observe(each, state(models=[stub_model(revision=revision)]))
    before = model_of(fleet).info.revision

    fleet.observe(EU[0], ProbeFailure(detail="refused"))

    assert (before, model_of(fleet).info.revision) == ("bbbbbbbbbbbb", "aaaaaaaaaaaa")
