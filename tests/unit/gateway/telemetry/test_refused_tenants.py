"""Refused requests are counted by tenant over a while, for a bounded number of tenants."""

from sluicegate.gateway.telemetry.refused_tenants import RefusedTenants
from tests.support.clock import Clock


def found(counted: RefusedTenants) -> dict[str, float]:
    return {each.tenant: each.per_second for each in counted.statistics()}


def test_those_with_the_most_refused_requests_come_first() -> None:
    clock = Clock()
    counted = RefusedTenants(clock)

    for tenant in (*("a",) * 10, *("b",) * 20, *"cdefg"):
        counted.add(tenant)
    clock.advance(10.0)

    assert list(found(counted).items())[:2] == [("b", 2.0), ("a", 1.0)]
    assert len(found(counted)) == 5


def test_a_tenant_that_is_refused_no_more_is_forgotten() -> None:
    clock = Clock()
    counted = RefusedTenants(clock)
    counted.add("a")

    clock.advance(31.0)
    assert found(counted) == {"a": 1 / 31}
    clock.advance(30.0)
    assert found(counted) == {}


def test_a_pause_of_the_reports_forgets_as_well() -> None:
    clock = Clock()
    counted = RefusedTenants(clock)
    counted.add("a")

    clock.advance(1000.0)

    assert found(counted) == {}


def test_more_tenants_than_the_bound_are_not_counted() -> None:
    counted = RefusedTenants(Clock())

    for number in range(1001):
        counted.add(f"t{number}")
    counted.add("t0")
    for _ in range(2):
        counted.add("t1000")

    assert found(counted)["t0"] == 2.0
    assert "t1000" not in found(counted)
