"""Tests the plans of load tests, and what k6 is told of them."""

import pytest

from loadtests.scenarios.catalogue import SCENARIOS
from loadtests.scenarios.plan import Phase, Plan, k6_scenario


def _plan(*rates: float, seconds: float = 10.0) -> Plan:
    return Plan(phases=tuple(Phase(name=f"{r}", rate=r, duration=seconds) for r in rates))


def test_a_constant_rate_is_k6s_constant_arrival_rate() -> None:
    found = k6_scenario(_plan(12.5), deadline=1.0, most_in_flight=500)

    assert found["executor"] == "constant-arrival-rate"
    assert (found["rate"], found["timeUnit"], found["duration"]) == (125, "10s", "10s")


def test_rates_change_at_once_between_phases() -> None:
    found = k6_scenario(_plan(5, 50), deadline=1.0, most_in_flight=500)

    assert found["executor"] == "ramping-arrival-rate"
    assert found["startRate"] == 50
    assert found["stages"] == [
        {"target": 50, "duration": "0s"},
        {"target": 50, "duration": "10s"},
        {"target": 500, "duration": "0s"},
        {"target": 500, "duration": "10s"},
    ]


def test_as_many_requests_may_be_under_way_as_callers_wait_for_and_no_more_than_wanted() -> None:
    some = k6_scenario(_plan(100), deadline=1.0, most_in_flight=500)
    most = k6_scenario(_plan(5000), deadline=1.0, most_in_flight=500)

    assert some["preAllocatedVUs"] == some["maxVUs"] == 130
    assert most["preAllocatedVUs"] == most["maxVUs"] == 500


def test_callers_who_wait_are_k6s_constant_users() -> None:
    plan = Plan(phases=(Phase(name="wait", rate=0.0, duration=8.0),), callers=32)

    found = k6_scenario(plan, deadline=1.0, most_in_flight=500)

    assert (found["executor"], found["vus"], found["duration"]) == ("constant-vus", 32, "8s")


def test_a_time_is_in_one_phase() -> None:
    plan = _plan(1, 2, 3)

    names = [plan.phase_at(at).name for at in (0.0, 9.9, 10.0, 25.0, 99.0)]

    assert names == ["1", "1", "2", "3", "3"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_something_that_is_judged(name: str) -> None:
    phases = SCENARIOS[name].phases(100.0, 60.0)

    assert any(phase.is_judged and not phase.is_overload for phase in phases)
    assert all(phase.arrivals > 0 for phase in phases)


def test_a_spike_is_ten_times_the_rate_before_and_after_it() -> None:
    phases = {phase.name: phase for phase in SCENARIOS["spike"].phases(60.0, 40.0)}

    assert phases["before"].rate == phases["after"].rate == 60.0
    assert phases["spike"].rate == 600.0
    assert phases["spike"].is_overload
